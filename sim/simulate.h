// One exchange on one fabric under one policy: a matrix between GPUs becomes transfers, a network model carries them.
//
// All functions are pure: no I/O, no clock, no state between calls. Several threads may call them at once, as long as
// no thread changes the objects that a request refers to. The same request gives the same outcome, bit by bit.
#ifndef RAILSD_SIM_SIMULATE_H_
#define RAILSD_SIM_SIMULATE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/workload/workload.h"
#include "sim/fabric.h"
#include "sim/network/outcome.h"

namespace railsd::sim {

enum class NetworkMode : uint8_t {
  kFluid,   // max-min fair rates, no queues; for any size
  kPacket,  // store and forward, finite queues; up to about 64 nodes of 8 rails
};

// How a switch answers a full queue.
enum class QueueMode : uint8_t {
  kDrop,   // the packet is lost; the sender learns it and sends again, with half its window
  kEcn,    // packets are marked from a threshold on, senders shrink their windows as DCTCP does; full queues drop
  kPause,  // as PFC: a full queue stops every port whose next packet goes into it, and so all packets behind that one
};

struct PacketOptions {
  uint32_t packet_bytes = 4096;
  uint64_t queue_bytes = 1 << 20;  // of each output port of a switch
  QueueMode queue_mode = QueueMode::kEcn;
  uint64_t mark_bytes = 256 << 10;  // kEcn: the threshold
  uint64_t window_bytes = 0;        // of a connection between two NICs, at most; 0: two bandwidth-delay products and
                                    // a share of the queue
  // Acknowledgements wait behind bytes that go the same way: those that the NIC has chosen to send, and the queue at
  // the switch. Set it if they travel in connections that carry bytes, as in daemons over TCP.
  bool acks_wait = false;
};

struct FluidOptions {
  // Transfers that end shortly after each other free their share of the network together, when the last of them ends.
  // Shortly: within this part of the time at which, at present rates, the last of all transfers would end. Rates never
  // exceed a NIC's speed, so times are too long rather than too short: tests find at most 3 times the tolerance. 0:
  // exact. With more than about 1,000,000 transfers, set 0.01.
  double tolerance = 1e-3;
};

struct Request {
  const Fabric& fabric;
  // Bytes between GPUs, size fabric.ranks(). The diagonal is ignored; bytes inside a node use R1 only.
  const rails::workload::TrafficMatrix& matrix;
  std::string_view policy;  // of PolicyNames()
  NetworkMode mode = NetworkMode::kFluid;
  FluidOptions fluid = {};
  PacketOptions packet = {};
  uint64_t seed = 1;                   // of hashes and draws of the policies
  uint64_t chunk_bytes = 1 << 20;      // of policies that cut flows into chunks
  uint64_t min_chunk_bytes = 8 << 10;  // of the planner: as of the daemon
  size_t timeline_bins = 0;            // 0: no time line
};

// Errors:
// INVALID_ARGUMENT: the fabric is not valid (Validate), the matrix has another size, a number of the request is out of
//   range; the text names the field and its value.
// NOT_FOUND: no policy has that name; the text lists the names.
// FAILED_PRECONDITION: the policy cannot run here: see CanRun(); or it would make too many pieces of this matrix.
// UNAVAILABLE: two nodes exchange bytes and no rail joins them at the start.
// A transfer that never arrives is no error: see Outcome::seconds.
absl::StatusOr<Outcome> Simulate(const Request& request);

// The least time that any policy can reach: the least T such that every node's NICs together can send, and receive,
// what the node must by T, with the changes of the rails honoured. Infinite when that never comes. With constant
// speeds: max over nodes of max(out, in) / sum of rail speeds (RailS, arXiv 2510.19262).
// `fabric` must be valid and `matrix` of its size.
double BoundSeconds(const Fabric& fabric, const rails::workload::TrafficMatrix& matrix);

struct PolicyInfo {
  std::string_view name;
  std::string_view source;     // citation
  std::string_view summary;    // one sentence, without a full stop
  bool crosses_rails = false;  // needs spines when GPUs of different rails exchange
  bool reacts = false;         // moves bytes while they run
  size_t most_nodes = 0;       // 0: any number
};
// In the order in which reports list them: the floor first, this project's, then the others.
const std::vector<PolicyInfo>& Policies();
std::vector<std::string_view> PolicyNames();
// Whether the policy can run on the fabric, whatever the matrix; Simulate() asks before it computes anything.
// FAILED_PRECONDITION tells why not: more nodes than it can compute, or no spines though it crosses rails. NOT_FOUND:
// no policy has that name. `fabric` must be valid.
absl::Status CanRun(std::string_view policy, const Fabric& fabric);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SIMULATE_H_
