// One flow whole on one rail: most plans of small exchanges.
#include <algorithm>

#include "agent/plan/plan_internal.h"

namespace railsd::plan_internal {
namespace {

uint64_t Backlog(const PlanRail& rail) { return std::max(rail.source_backlog_bytes, rail.destination_backlog_bytes); }

// True when all rails are usable and of one speed, and their backlogs differ by less than the threshold.
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
  double* const sender = problem.ledger->Sender().data();
  double* const pair = problem.ledger->Pair(problem.destination).data();
  const auto bytes = static_cast<double>(problem.total_bytes), share = bytes / static_cast<double>(rails.size());
  uint64_t least_backlog = Backlog(rails[0]);
  for (const PlanRail& rail : rails) least_backlog = std::min(least_backlog, Backlog(rail));
  const OneRunOrder better{.most = *std::min_element(sender, sender + rails.size()) + bytes,
                           .slack = OneRunOrder::kRounding * bytes,
                           .most_backlog_bytes = static_cast<double>(least_backlog) + 2 * bytes,
                           .first_rail = problem.first_rail,
                           .rails = rails.size()};
  const auto key = [&](size_t r) {
    return OneRunOrder::Key{sender[r], pair[r], static_cast<double>(Backlog(rails[r])), r};
  };
  OneRunOrder::Key best = key(0);
  for (size_t r = 1; r < rails.size(); ++r) {
    if (const OneRunOrder::Key other = key(r); better(other, best)) best = other;
  }
  for (size_t r = 0; r < rails.size(); ++r) {
    const double error = (r == best.rail ? bytes : 0) - share;
    sender[r] += error;
    pair[r] += error;
  }
  w->rail_bytes[best.rail] = problem.total_bytes;
  w->runs.push_back({w->order[0].flow, RailIndex(static_cast<uint32_t>(best.rail)), 0, problem.total_bytes});
  return true;
}

}  // namespace railsd::plan_internal
