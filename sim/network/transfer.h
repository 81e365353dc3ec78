// The interface between policies and networks: bytes on paths, and a hook by which a policy moves them to other paths
// while they run.
#ifndef RAILSD_SIM_NETWORK_TRANSFER_H_
#define RAILSD_SIM_NETWORK_TRANSFER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace railsd::sim {

// From one NIC to another: over the switch of the rail, or over a spine when the rails differ.
struct Path {
  static constexpr uint32_t kNoSpine = UINT32_MAX;
  uint32_t source_node = 0, destination_node = 0;
  uint16_t source_rail = 0, destination_rail = 0;
  uint32_t spine = kNoSpine;
  friend bool operator==(const Path&, const Path&) = default;
};

// All bytes that a policy sends over one path in one stage.
struct Transfer {
  Path path = {};
  uint32_t stage = 0;  // begins when every transfer of the stage before has ended
  // Its part of a link beside other transfers, by TransferPlan::sharing. Flows merged into one weigh the sum of their
  // bytes over the largest: the transfer ends when the largest of the flows, each with weight 1, would have ended.
  float weight = 1;
  double bytes = 0;
};

enum class Sharing : uint8_t {
  // Max-min fair by weight: each flow is a connection that congestion control holds to its fair share.
  kByWeight,
  // Max-min fair by the bytes that are left: the sender prefers the destinations with the most bytes left, as the rail
  // scheduler does.
  kByBytesLeft,
};

struct TransferPlan {
  std::vector<Transfer> transfers = {};  // one for each path and stage
  Sharing sharing = Sharing::kByWeight;
  uint32_t stages = 1;
  // Bytes that GPUs send to, and receive from, others of their node; by rank.
  std::vector<double> inner_sent = {}, inner_received = {};
};

// A policy's view of a network while transfers run. Each transfer has a number of its own; moves can make more
// transfers.
class NetworkView {
 public:
  virtual ~NetworkView() = default;
  virtual double Now() const = 0;  // seconds
  // Numbers of the transfers from that node that have bytes to be sent; valid until the next call of Move().
  virtual absl::Span<const uint32_t> ActiveFrom(size_t node) = 0;
  virtual const Path& PathOf(uint32_t transfer) const = 0;
  virtual double BytesLeft(uint32_t transfer) const = 0;  // not sent yet; these can move
  virtual double WeightOf(uint32_t transfer) const = 0;   // Transfer::weight of what is left
  virtual double Rate(uint32_t transfer) const = 0;       // bytes per second, recently
  // Part of the transfer's recent bytes that met congestion inside the network, 0 to 1. Packet mode: packets marked,
  // lost or stopped; fluid mode: 1 when a port of a switch, and not the sender's NIC, limits the rate.
  virtual double Congestion(uint32_t transfer) const = 0;
  virtual double SpeedOf(size_t nic) const = 0;  // bytes per second; 0: dead
  // Bytes per second that a NIC sends in its present stretch of work, as its daemon measures them; 0: unknown.
  virtual double SendRate(size_t nic) const = 0;
  virtual uint64_t PostedBytes(size_t nic) const = 0;  // on a NIC and not sent yet, which cannot move; fluid mode: 0
  // Moves bytes of a transfer to another path between the same nodes; at most what is left.
  virtual void Move(uint32_t transfer, double bytes, const Path& to) = 0;
};

// How a policy reacts. A network calls it with the node that the cause concerns.
class Reaction {
 public:
  virtual ~Reaction() = default;
  // Seconds between calls of OnPeriod(); 0: no calls. See NextPeriod().
  virtual double PeriodSeconds() const { return 0; }
  virtual void OnPeriod(size_t /*node*/, NetworkView& /*view*/) {}
  // A NIC of the node has nothing left to send.
  virtual void OnIdle(size_t /*node*/, size_t /*rail*/, NetworkView& /*view*/) {}
  // The speed of some NICs has changed. Called for every node.
  virtual void OnChange(size_t /*node*/, NetworkView& /*view*/) {}
};

// The time of the OnPeriod() after one at `now`. `since`: the start, or the last change of speeds. After kManyPeriods
// the periods grow, so that the number of calls grows only with the logarithm of the time, even if a rail is very slow.
// A network in which nothing moves does not call OnPeriod() until the next change.
inline double NextPeriod(double now, double since, double period_seconds) {
  constexpr double kManyPeriods = 2000;
  return now + std::max(period_seconds, (now - since) / kManyPeriods);
}

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_TRANSFER_H_
