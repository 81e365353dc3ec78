// One flow whole on one rail: most plans of small exchanges.
#include <algorithm>

#include "agent/plan/plan_internal.h"

namespace railsd::plan_internal {
namespace {

uint64_t Backlog(const PlanRail& rail) { return std::max(rail.source_backlog_bytes, rail.destination_backlog_bytes); }

// True when only what was planned before decides between the rails.
bool AreAlike(const Problem& problem, absl::Span<const PlanRail> rails) {
  const double speed = std::min(rails[0].source_speed, rails[0].destination_speed);
  uint64_t least = Backlog(rails[0]), most = least;
  for (const PlanRail& rail : rails) {
    if (!rail.usable || std::min(rail.source_speed, rail.destination_speed) != speed) return false;
    least = std::min(least, Backlog(rail));
    most = std::max(most, Backlog(rail));
  }
  return speed > 0 && (most - least) / kBacklogThresholdChunks < problem.chunk_bytes;
}

}  // namespace

bool LayOneRun(const Problem& problem, absl::Span<const PlanRail> rails, PlanWorkspace* w) {
  if (rails.empty() || !AreAlike(problem, rails)) return false;
  const absl::Span<double> sender = problem.ledger->Sender();
  const absl::Span<double> pair = problem.ledger->Pair(problem.destination);
  const auto bytes = static_cast<double>(problem.total_bytes), share = bytes / static_cast<double>(rails.size());
  const OneRunOrder better{*std::min_element(sender.begin(), sender.end()) + bytes, problem.first_rail, rails.size()};
  size_t best = 0;
  const auto key = [&](size_t r) { return OneRunOrder::Key{sender[r], pair[r], Backlog(rails[r]), r}; };
  for (size_t r = 1; r < rails.size(); ++r) best = better(key(r), key(best)) ? r : best;
  for (size_t r = 0; r < rails.size(); ++r) {
    const double error = (r == best ? bytes : 0) - share;
    sender[r] += error;
    pair[r] += error;
  }
  w->rail_bytes[best] = problem.total_bytes;
  w->runs.push_back({w->order[0].flow, RailIndex(static_cast<uint32_t>(best)), 0, problem.total_bytes});
  return true;
}

}  // namespace railsd::plan_internal
