// The planner's contract: flows of one destination onto rails. Pure: no I/O, no clock, no threads.
//
// A plan is a list of runs. A run is a stretch of one flow on one rail; the sprayer cuts it into chunks when it
// dequeues them. The evenness that RailS (arXiv 2510.19262) needs is per destination, so one call plans everything
// that this node sends to ONE destination node for one job, when that destination's READY arrives, and a Ledger
// carries over what pieces could not even out.
#ifndef RAILSD_AGENT_PLAN_PLAN_H_
#define RAILSD_AGENT_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/base/ids.h"

namespace railsd {

enum class Policy : uint8_t {
  kLpt,         // default: even per destination and per sender, chunk by chunk
  kPinned,      // everything of a source rank on that rank's own rail (rank index on its node modulo rails)
  kAligned,     // everything for a destination rank on that rank's rail
  kEcmp,        // each flow whole, on the rail that a hash of (source rank, destination rank, seed) names
  kRoundRobin,  // chunks in turn over the rails
  kLptFlow,     // LPT over whole flows
};
inline constexpr Policy kAllPolicies[] = {Policy::kLpt,  Policy::kPinned,     Policy::kAligned,
                                          Policy::kEcmp, Policy::kRoundRobin, Policy::kLptFlow};
std::string_view PolicyName(Policy policy);                 // "lpt", "round_robin", ...
absl::StatusOr<Policy> ParsePolicy(std::string_view name);  // INVALID_ARGUMENT lists the names

// A pair's rail as both ends see it. Usable speed of the pair is min(source, destination); 0 for a rail that is dead
// at either end.
struct PlanRail {
  double source_speed = 0;                 // bytes per second
  double destination_speed = 0;            // bytes per second, from READY
  bool usable = true;                      // healthy at both ends
  uint64_t source_backlog_bytes = 0;       // queued here by other jobs, all destinations
  uint64_t destination_backlog_bytes = 0;  // ingress backlog that READY told
};

struct PlanFlow {
  uint64_t bytes = 0;
  uint32_t source_local_rank = 0;       // place of the source rank among its node's ranks (for pinned)
  uint32_t destination_local_rank = 0;  // place of the destination rank among its node's ranks (for aligned)
  uint64_t hash = 0;                    // stable per (source rank, destination rank) (for ecmp)
};

struct PlanOptions {
  Policy policy = Policy::kLpt;
  uint64_t chunk_bytes = 1 << 20;       // no chunk is longer
  uint64_t min_chunk_bytes = 64 << 10;  // no chunk is shorter unless its flow is
};

// A stretch of one flow on one rail.
struct PlanRun {
  uint32_t flow = 0;  // index into the flows given
  RailIndex rail;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// How a run is cut: into the fewest chunks of at most `chunk_bytes`, as equal as can be (differing by at most 1 byte).
// The last bytes of a run of r bytes at position p: chunk = ceil(remaining / ceil(remaining / chunk_bytes)).
inline uint64_t NextChunkBytes(uint64_t remaining_bytes, uint64_t chunk_bytes) {
  const uint64_t pieces = (remaining_bytes + chunk_bytes - 1) / chunk_bytes;
  return (remaining_bytes + pieces - 1) / pieces;
}

// Residual bytes per rail and per (destination, rail) that lasts across plans, so that the odd pieces of many small
// jobs do not pile up on one rail. Values are relative: only differences between rails matter, and they decay as they
// are evened out. Owned by the engine's thread.
class Ledger {
 public:
  explicit Ledger(size_t rails) : sender_(rails, 0) {}
  // One entry per rail: bytes planned over the level of the least loaded rail.
  absl::Span<double> Sender() { return absl::MakeSpan(sender_); }
  // The same for one destination; created at first use.
  absl::Span<double> Pair(PeerIndex destination);
  void Forget(PeerIndex destination);

 private:
  std::vector<double> sender_;
  std::vector<std::vector<double>> pairs_;
};

// Scratch memory and the result; reuse one for call after call and the steady state allocates nothing.
struct PlanWorkspace {
  std::vector<PlanRun> runs;         // the result: grouped by rail, larger flows first
  std::vector<uint64_t> rail_bytes;  // the result: bytes per rail
  // scratch below
  std::vector<uint32_t> order;
  std::vector<double> load;
  std::vector<double> target;
  std::vector<uint32_t> bin_of_rail;
  std::vector<uint32_t> rail_order;
  std::vector<uint64_t> cursor;
};

// Plans all `flows` (this node to `destination`) over `rails` and writes the result into `workspace`; updates
// `ledger`. Flows of zero bytes yield no run.
// Errors: UNAVAILABLE when no rail is usable and some flow has bytes; INVALID_ARGUMENT for a zero or inverted chunk
// size, or a speed that is negative or not finite.
absl::Status BuildPlan(absl::Span<const PlanFlow> flows, absl::Span<const PlanRail> rails, PeerIndex destination,
                       const PlanOptions& options, Ledger* ledger, PlanWorkspace* workspace);

// The lower bound on the time of an exchange at one node: max(out, in) / sum of speeds (RailS, section on the model).
// `out_bytes` and `in_bytes` exclude what stays on the node. Zero speed with bytes to move gives infinity.
double NodeBoundSeconds(uint64_t out_bytes, uint64_t in_bytes, double sum_of_speeds_bytes_per_s);

}  // namespace railsd

#endif  // RAILSD_AGENT_PLAN_PLAN_H_
