// The parts of BuildPlan, one file each. They share the workspace: `bins` are the usable rails, `order` holds the flows
// with bytes; each part lays runs into `pending`, whose rail is the index of a bin.
#ifndef RAILSD_AGENT_PLAN_PLAN_INTERNAL_H_
#define RAILSD_AGENT_PLAN_PLAN_INTERNAL_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/types/span.h"
#include "agent/plan/plan.h"

namespace railsd::plan_internal {

// The input of one plan.
struct Problem {
  absl::Span<const PlanFlow> flows;
  size_t rails = 0;
  PeerIndex destination;
  uint64_t chunk_bytes = 0;
  uint64_t min_bytes = 0;  // effective: every run of at least this is cut into chunks of at least this
  uint64_t total_bytes = 0;
  uint32_t first_rail = 0;
  Ledger* ledger = nullptr;
};

// The shortest chunk that can be promised: min_chunk_bytes, or half of chunk_bytes rounded up.
inline uint64_t EffectiveMinBytes(const PlanOptions& options) {
  const uint64_t half = options.chunk_bytes / 2 + options.chunk_bytes % 2;
  return options.min_chunk_bytes < half ? options.min_chunk_bytes : half;
}

inline void Lay(uint32_t bin, uint32_t flow, uint64_t offset_bytes, uint64_t length_bytes, PlanWorkspace* w) {
  PlanRun& run = w->pending.emplace_back();
  run.flow = flow;
  run.rail = RailIndex(bin);
  run.offset_bytes = offset_bytes;
  run.length_bytes = length_bytes;
  w->bins[bin].bytes += length_bytes;
}

// Longest processing time first. Flows of `whole_below` bytes or more may be split. `*whole` counts the runs at the
// front of `pending`, of flows laid whole, that must come last on their rails.
void LayLpt(const Problem& problem, uint64_t whole_below, size_t* whole, PlanWorkspace* workspace);
// Decides which rail each bin is and books the result in the ledger.
void MatchBinsToRails(const Problem& problem, PlanWorkspace* workspace);

// Chooses the rail of a plan of one run among rails that are otherwise equal. They are offered in the order of turns:
// from problem.first_rail to the last one, then from rail 0 on. The sender's total alone does not decide: otherwise a
// destination that gets the same share of each job would get it over the same rail each time. Nor does the least total
// decide before the turn: otherwise senders to one destination would meet on one of its rails as soon as one sender has
// left its turn.
class OneRunChoice {
 public:
  // `least`: of the sender's totals on the rails that will be offered; `least_backlog_bytes`: of their backlogs.
  OneRunChoice(const Problem& problem, double least, uint64_t least_backlog_bytes)
      : slack_(kRounding * static_cast<double>(problem.total_bytes)),
        most_(least + static_cast<double>(problem.total_bytes) + slack_),
        most_backlog_bytes_(least_backlog_bytes + 2 * std::min(problem.total_bytes, ~least_backlog_bytes / 2)) {}
  // `sender`, `pair`: the rail's entries in the ledger. `backlog_bytes`: a peer may say any number.
  void Offer(size_t rail, double sender, double pair, uint64_t backlog_bytes) {
    const double more = pair - pair_;
    if (sender > most_ || more > slack_) return;
    const uint64_t waits = std::max(backlog_bytes, most_backlog_bytes_);
    if (more >= -slack_ && waits >= waits_) return;
    rail_ = rail;
    pair_ = pair;
    waits_ = waits;
  }
  // Call after the last Offer().
  size_t rail() const { return rail_; }

 private:
  static constexpr double kRounding = 1e-6;  // of the run, at most

  const double slack_;  // totals that differ by less count as equal: they differ by rounding
  // A rail may be chosen if the sender's total on it is at most this: the least of all totals plus the run.
  const double most_;
  // Backlogs up to this count as equal, so that the turn decides: the least of all plus two runs, because a sender's
  // own plans differ by that much.
  const uint64_t most_backlog_bytes_;
  size_t rail_ = 0;
  double pair_ = std::numeric_limits<double>::infinity();
  uint64_t waits_ = 0;
};
// Plans the only flow, whole, over usable rails of equal speed whose backlogs differ by less than the threshold. The
// result is that of the policies, without the cost of bins. Writes the result. False: the rails are not alike, and
// nothing was changed.
bool LayOneRun(const Problem& problem, absl::Span<const PlanRail> rails, PlanWorkspace* workspace);

// Each flow whole, on the rail that a field of it names: kPinned, kAligned, kEcmp.
void LayByName(const Problem& problem, Policy policy, PlanWorkspace* workspace);
// Chunks in turn. A rail's chunks of a flow are laid as one stretch: the same bytes and chunks per rail, fewer runs.
void LayRoundRobin(const Problem& problem, PlanWorkspace* workspace);

}  // namespace railsd::plan_internal

#endif  // RAILSD_AGENT_PLAN_PLAN_INTERNAL_H_
