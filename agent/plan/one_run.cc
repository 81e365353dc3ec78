// One flow whole on one rail: most plans of small exchanges.
#include <limits>

#include "agent/plan/plan_internal.h"

namespace railsd::plan_internal {

bool LayOneRun(const Problem& problem, absl::Span<const PlanRail> rails, PlanWorkspace* w) {
  if (rails.empty()) return false;
  double* const sender = problem.ledger->Sender().data();
  const double speed = rails[0].speed_bytes_per_s;
  double least = sender[0];
  uint64_t least_backlog = rails[0].backlog_bytes, most_backlog = least_backlog;
  const size_t count = rails.size();
  for (size_t r = 0; r < count; ++r) {
    const uint64_t backlog = rails[r].backlog_bytes;
    if (rails[r].speed_bytes_per_s != speed) return false;
    least = sender[r] < least ? sender[r] : least;
    least_backlog = backlog < least_backlog ? backlog : least_backlog;
    most_backlog = backlog > most_backlog ? backlog : most_backlog;
  }
  if (!(speed > 0 && speed <= std::numeric_limits<double>::max())) return false;
  if ((most_backlog - least_backlog) / kBacklogThresholdChunks >= problem.chunk_bytes) return false;
  double* const pair = problem.ledger->Pair(problem.destination).data();
  OneRunChoice choice(problem, least, least_backlog);
  const auto offer = [&](size_t from, size_t to) {
    for (size_t r = from; r < to; ++r) choice.Offer(r, sender[r], pair[r], rails[r].backlog_bytes);
  };
  offer(problem.first_rail % count, count);
  offer(0, problem.first_rail % count);
  const size_t best = choice.rail();
  const auto bytes = static_cast<double>(problem.total_bytes), share = bytes / static_cast<double>(count);
  const double sender_total = sender[best] + (bytes - share), pair_total = pair[best] + (bytes - share);
  for (size_t r = 0; r < count; ++r) {
    sender[r] -= share;
    pair[r] -= share;
  }
  sender[best] = sender_total;
  pair[best] = pair_total;
  w->rail_bytes[best] = problem.total_bytes;
  w->runs.push_back({w->order[0].flow, RailIndex(static_cast<uint32_t>(best)), 0, problem.total_bytes});
  return true;
}

}  // namespace railsd::plan_internal
