// One connection of the packet model: the bytes of a transfer, and the window that bounds its bytes in flight.
#ifndef RAILSD_SIM_NETWORK_CONNECTION_H_
#define RAILSD_SIM_NETWORK_CONNECTION_H_

#include <array>
#include <cstdint>
#include <deque>

#include "absl/types/span.h"
#include "sim/fabric.h"
#include "sim/network/ports.h"
#include "sim/network/transfer.h"
#include "sim/simulate.h"

namespace railsd::sim {

// The window of DCTCP (Alizadeh et al., SIGCOMM 2010), which starts full as RDMA does. A round ends when a window of
// bytes was acknowledged. A round without marks and losses adds a sixteenth of the largest window: exchanges are too
// short for one packet a round. Losses halve it, at most once a round.
class Window {
 public:
  Window() = default;
  Window(double most_bytes, double packet_bytes, QueueMode mode)
      : mode_(mode), most_(most_bytes), least_(packet_bytes), bytes_(most_bytes) {}

  double bytes() const { return bytes_; }
  void OnAcknowledged(double bytes, bool marked);
  void OnLost();
  // Round trips to wait before the next packet: after losses with the least window.
  double Pause() const { return bytes_ > least_ ? 0 : static_cast<double>(1U << losses_); }

 private:
  void EndRound();

  QueueMode mode_ = QueueMode::kPause;
  double most_ = 0, least_ = 0, bytes_ = 0;
  double alpha_ = 1;                      // moving average of the part that was marked
  double acknowledged_ = 0, marked_ = 0;  // in this round
  bool lost_ = false;                     // in this round
  uint32_t losses_ = 0;                   // in a row, at most 6
};

struct Connection {
  static constexpr uint32_t kMostHops = 4;
  Path path = {};
  std::array<uint32_t, kMostHops> ports{};  // the sender's NIC first, the port to the receiver's NIC last
  uint32_t hops = 0;
  double weight = 1;
  double propagation = 0;  // seconds, one way
  double round_trip = 0;   // seconds, with empty queues
  Window window = {};

  uint64_t left = 0;                 // bytes neither posted nor sent: these can move
  uint64_t posted = 0;               // bytes chosen by the scheduler and not sent
  uint64_t in_flight = 0;            // bytes sent and neither acknowledged nor known to be lost
  std::deque<uint64_t> pieces = {};  // bytes of each choice of RailScheduler, until they are acknowledged
  uint64_t piece_acknowledged = 0;   // acknowledged bytes of the first piece
  bool dead = false;                 // a NIC of its path is dead
  bool in_turn = false;              // waits for its turn at the NIC
  uint32_t turns = 0;                // packets sent in this turn
  double paused_until = 0;

  bool ended() const { return left == 0 && posted == 0 && in_flight == 0; }

  // Values for NetworkView, of the last stretch of 20 us or more.
  double stretch_since = 0, stretch_bytes = 0, stretch_congested = 0;
  double rate = 0, congestion = 0;
  void Observe(double bytes, bool congested, double now);
};

// A connection without bytes over ports of the fabric, which have the numbers of Resources.
Connection OpenConnection(const Fabric& fabric, const Path& path, absl::Span<const Port> ports,
                          const PacketOptions& options);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_CONNECTION_H_
