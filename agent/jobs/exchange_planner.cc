#include "agent/jobs/exchange_planner.h"

#include <algorithm>

#include "agent/base/steady_now.h"

namespace railsd {

void ExchangePlanner::TakeFlows(const Group& group, const Exchange& exchange) {
  flows_.clear();
  if (context_.options->plan.policy == Policy::kLpt) {
    flows_.push_back({exchange.out.total_bytes(), 0, 0, 0});  // evenness is asked for per destination node
    return;
  }
  for (const StreamFlow& flow : exchange.out.flows()) {
    const uint64_t hash = (uint64_t{flow.source.value()} << 32) + flow.destination.value() + 1;
    flows_.push_back(
        {flow.bytes, group.ranks[flow.source.value()].place, group.ranks[flow.destination.value()].place, hash});
  }
}

double ExchangePlanner::TakeRails(const NodeJob& job, const Exchange& exchange) {
  PlanRail* const rails = rails_.data();
  const RailHandle* const handles = context_.rails->data();
  for (size_t r = 0; r < rails_.size(); ++r) rails[r].usable = false;
  const RailMask targets = exchange.out.Targets();
  double speeds = 0;
  for (const Ready::RailState& rail : exchange.peer_rails) {
    const size_t r = rail.rail.value();
    if (r >= rails_.size() || (targets & RailBit(r)) == 0) continue;
    const double source = speeds_.ForPlan(r, job.now()), destination = static_cast<double>(rail.speed_bytes_per_s);
    rails[r] = {source, destination, true, handles[r].backlog_bytes(), rail.backlog_bytes};
    speeds += std::min(source, destination);
  }
  return speeds;
}

void ExchangePlanner::Count(NodeJob& job, Exchange& exchange) {
  exchange.planned_bytes.assign(rails_.size(), 0);
  Peer& peer = context_.peers->Get(exchange.peer);
  for (const PlanRun& run : workspace_.runs) {
    const size_t rail = run.rail.value();
    exchange.planned_bytes[rail] += run.length_bytes;
    job.rail_planned_bytes[rail] += run.length_bytes;
    planned_bytes_[rail] += run.length_bytes;
    peer.planned_tx_bytes[rail] += run.length_bytes;
  }
}

absl::Status ExchangePlanner::Plan(NodeJob& job, const Group& group, Exchange& exchange) {
  const bool waits = !exchange.planned && exchange.out.granted() && !exchange.out.asked();
  if (!waits || job.aborting() || exchange.left_out) return absl::OkStatus();
  TakeFlows(group, exchange);
  const double speeds = TakeRails(job, exchange);
  const PlanOptions& configured = context_.options->plan;
  const bool by_flow = configured.policy != Policy::kLpt;  // or else the plan is of one flow that begins at 0
  const GroupLayout& layout = *group.layout;
  const uint32_t other = layout.NodeOf(exchange.peer);  // among all nodes but this one
  const PlanOptions options = OptionsFor({.bytes = exchange.out.total_bytes(),
                                          .speeds_bytes_per_s = speeds,
                                          .source = layout.self,
                                          .destination = other + (other >= layout.self ? 1 : 0),
                                          .nodes = layout.peers.size() + 1,
                                          .rails = rails_.size()},
                                         configured);
  const absl::Time before = SteadyNow();
  const absl::Status planned = BuildPlan(flows_, rails_, exchange.peer, options, &ledger_, &workspace_);
  // No rail is up towards the peer: planned again when one comes up; the job's deadline bounds the wait.
  if (absl::IsUnavailable(planned)) return absl::OkStatus();
  if (!planned.ok()) return planned;
  ++plans_;
  nanoseconds_ += static_cast<uint64_t>(absl::ToInt64Nanoseconds(SteadyNow() - before));
  exchange.planned = true;
  exchange.times.planned = job.now();
  Count(job, exchange);
  job.first_chunk_at = std::min(job.first_chunk_at, job.now());
  exchange.out.Start(workspace_.runs, by_flow);
  return absl::OkStatus();
}

}  // namespace railsd
