// The planner's contract: flows of one destination onto rails. Pure: no I/O, no clock, no threads.
//
// A plan is a list of runs. A run is a stretch of one flow on one rail; the rail cuts it into chunks when it posts
// them. The evenness that RailS (arXiv 2510.19262) needs is per destination, so one call plans everything that this
// node sends to ONE destination node for one job, when that destination's READY arrives, and a Ledger carries over to
// later plans what pieces could not even out.
#ifndef RAILSD_AGENT_PLAN_PLAN_H_
#define RAILSD_AGENT_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
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

// A rail between this node and the destination.
struct PlanRail {
  double speed_bytes_per_s = 0;  // of its slower end; 0: the rail is not usable
  // The larger one of two backlogs, because both shrink at the same time: bytes that other jobs have queued here for
  // any destination, and bytes that are to arrive over the rail at the destination.
  uint64_t backlog_bytes = 0;
};

struct PlanFlow {
  uint64_t bytes = 0;
  uint32_t source_local_rank = 0;       // place of the source rank among its node's ranks (for pinned)
  uint32_t destination_local_rank = 0;  // place of the destination rank among its node's ranks (for aligned)
  uint64_t hash = 0;                    // stable per (source rank, destination rank) (for ecmp)
};

struct PlanOptions {
  Policy policy = Policy::kLpt;
  uint64_t chunk_bytes = 256 << 10;    // no chunk is longer
  uint64_t min_chunk_bytes = 8 << 10;  // no chunk is shorter unless its flow is (at most half of chunk_bytes counts)
  // A plan of one run takes this rail if others are equally good. Senders to one destination get different values,
  // because their ledgers go in step and they would all choose the same rail. Destinations of one sender get different
  // values, too.
  uint32_t first_rail = 0;
};

// The properties of an exchange that decide about the options of its plan.
struct PlannedExchange {
  uint64_t bytes = 0;
  double speeds_bytes_per_s = 0;                  // sum over all usable rails
  size_t source = 0, destination = 0, nodes = 0;  // places in an order that all nodes share; number of nodes
  size_t rails = 0;                               // at least 1
};
// The options of the exchange's plan. All rails together carry a short exchange in less time than it takes to give each
// of them a share. `lpt` then leaves it whole on one rail, and the ledger puts the next one on another rail.
PlanOptions OptionsFor(const PlannedExchange& exchange, PlanOptions configured);

// A stretch of one flow on one rail.
struct PlanRun {
  uint32_t flow = 0;  // index into the flows given
  RailIndex rail;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// How a run is cut: into the fewest chunks of at most `chunk_bytes`, as equal as can be (differing by at most 1 byte).
// The next chunk of a run with r bytes left is ceil(r / ceil(r / chunk_bytes)).
inline uint64_t NextChunkBytes(uint64_t remaining_bytes, uint64_t chunk_bytes) {
  const uint64_t pieces = (remaining_bytes + chunk_bytes - 1) / chunk_bytes;
  return (remaining_bytes + pieces - 1) / pieces;
}

// Residual bytes per rail and per (destination, rail), kept across plans so that the odd pieces of many small jobs do
// not pile up on one rail. Values are relative: bytes planned over (or, negative, under) the rail's share of what was
// planned, so they sum to zero over the rails of a plan and do not grow with the traffic. `lpt` and `lpt_flow` read and
// write them; `round_robin` keeps its turn here; the other policies leave the ledger alone. Owned by the engine's
// thread.
class Ledger {
 public:
  explicit Ledger(size_t rails) : sender_(rails, 0) {}
  // One entry per rail, all destinations together.
  absl::Span<double> Sender() { return absl::MakeSpan(sender_); }
  // The same for one destination; created at first use.
  absl::Span<double> Pair(PeerIndex destination);
  void Forget(PeerIndex destination);
  // Place, among the usable rails, that round_robin's next chunk goes to.
  uint64_t& Turn() { return turn_; }

 private:
  std::vector<double> sender_;
  std::vector<std::vector<double>> pairs_;
  uint64_t turn_ = 0;
};

// Scratch memory and the result. A workspace that is used for one call after another soon allocates nothing more.
struct PlanWorkspace {
  std::vector<PlanRun> runs;         // the result: grouped by rail, larger flows first
  std::vector<uint64_t> rail_bytes;  // the result: bytes per rail

  // Scratch.
  struct SizedFlow {
    uint64_t bytes = 0;
    uint32_t flow = 0;
  };
  // Stands for one usable rail of the pair. MatchBinsToRails() decides at the end for which of the interchangeable
  // ones.
  struct Bin {
    uint32_t rail = 0;
    uint32_t group = 0;    // the first bin that it is interchangeable with
    uint32_t matched = 0;  // the rail that it is in the end
    double speed = 0;      // relative to the fastest
    uint64_t backlog_bytes = 0;
    double load = 0;       // bytes, what it starts with included
    uint64_t bytes = 0;    // laid
    uint64_t deficit = 0;  // bytes still to be laid
    double error = 0;      // of the first of a group: bytes that the sender has planned too much on the group's rails
    uint32_t alike = 0;    // of the first of a group: its size
  };
  // The key by which rails are matched, the lightest first.
  struct RailKey {
    uint32_t group = 0, rail = 0;
    double sender = 0, pair = 0;
    uint64_t backlog_bytes = 0;
  };
  std::vector<SizedFlow> order;  // flows with bytes, largest first
  std::vector<Bin> bins;         // by rail
  std::vector<uint32_t> bin_order;
  std::vector<RailKey> rail_order;
  std::vector<PlanRun> pending;  // runs whose `rail` is the index of a bin
  std::vector<Bin> split_bins;   // the plan with split flows, while a plan without splits is tried
  std::vector<PlanRun> split_runs;
  std::vector<PlanRun> rest;  // stretches that no bin had room for
  std::vector<uint64_t> cursor;
};

// A rail whose backlog exceeds the least backlogged usable rail's by more than this many chunks (in bytes, backlogs
// compared by the time that they take) gets a smaller share of the pair, as if the excess over the threshold were
// already laid on it. Below the threshold, backlog decides only between rails that are otherwise equal, and for a plan
// of one run only if it exceeds the least by two such runs.
inline constexpr uint64_t kBacklogThresholdChunks = 64;

// Plans all `flows` (this node to `destination`) over `rails` and writes the result into `workspace`; updates
// `ledger`. Flows of zero bytes yield no run. Costs O(flows * (log flows + rails) + runs), whatever the bytes.
//
// `min` below is min_chunk_bytes, or half of chunk_bytes (rounded up) where that is smaller: some lengths cannot be
// cut otherwise. P is the largest piece that cannot be split: 2 * min - 1 when any flow can be split, else the largest
// flow (all are under 2 * min then). Promises of `lpt`, backlog below the threshold:
// - Rails of equal pair speed: bytes per rail of this pair differ by at most P. If the sender's totals (the ledger)
//   differed by at most 2 P before, they do after; P where every plan has several runs. A plan of one run goes to the
//   rail that has least of its destination, among those whose total is within the run of the least.
// - Rails of unequal speed s: for rails i and j, bytes_i / s_i <= (bytes_j + P) / s_j + D, where D is zero when the
//   ledger is even between rails of different speed and at most P / s_i + P / s_j otherwise: that is the room in which
//   errors are diffused over destinations. The sender's residuals then stay within P * (1 + s_i / mean speed) of
//   rail i's share plus the spread of rails of the same speed, 2 P; they do not accumulate.
// - At most (flows + 2 * usable rails) runs.
// `lpt_flow` keeps the same with P the largest flow.
//
// Errors: UNAVAILABLE when no rail is usable and some flow has bytes; INVALID_ARGUMENT for a zero or inverted chunk
// size, a speed that is negative or not finite, flows of more than 2^63 bytes together, or a ledger for another number
// of rails. On error the result is empty and the ledger unchanged.
absl::Status BuildPlan(absl::Span<const PlanFlow> flows, absl::Span<const PlanRail> rails, PeerIndex destination,
                       const PlanOptions& options, Ledger* ledger, PlanWorkspace* workspace);

// The lower bound on the time of an exchange at one node: max(out, in) / sum of speeds (RailS, section on the model).
// `out_bytes` and `in_bytes` exclude what stays on the node. Zero speed with bytes to move gives infinity.
double NodeBoundSeconds(uint64_t out_bytes, uint64_t in_bytes, double sum_of_speeds_bytes_per_s);

}  // namespace railsd

#endif  // RAILSD_AGENT_PLAN_PLAN_H_
