#include "agent/jobs/exchange_planner.h"

#include <algorithm>
#include <chrono>

namespace railsd {

void ExchangePlanner::TakeFlows(const Group& group, const Exchange& exchange) {
  if (context_.options->plan.policy == Policy::kLpt) {
    flows_.resize(1);
    flows_[0].bytes = exchange.out.total_bytes();  // evenness is asked for per destination node
    return;
  }
  flows_.clear();
  for (const StreamFlow& flow : exchange.out.flows()) {
    const uint64_t hash = (uint64_t{flow.source.value()} << 32) + flow.destination.value() + 1;
    flows_.push_back(
        {flow.bytes, group.ranks[flow.source.value()].place, group.ranks[flow.destination.value()].place, hash});
  }
}

double ExchangePlanner::TakeRails(const NodeJob& job, const Exchange& exchange) {
  const Ready::Rails& theirs = exchange.peer_rails;
  const double* const own = speeds_.ForPlan(job.now()).data();
  const uint64_t* const told = theirs.bytes_per_s.data();
  const RailHandle* handle = context_.rails->data();
  const RailMask known =
      theirs.bytes_per_s.size() < rails_.size() ? RailBit(theirs.bytes_per_s.size()) - 1 : ~RailMask{0};
  const RailMask targets = exchange.out.Targets() & known;
  const uint64_t backlog = theirs.backlog_bytes;
  double speeds = 0;
  size_t r = 0;
  for (PlanRail& rail : rails_) {
    const double theirs_per_s = Has(targets, r) ? static_cast<double>(told[r]) : 0;
    rail.speed_bytes_per_s = own[r] < theirs_per_s ? own[r] : theirs_per_s;
    rail.backlog_bytes = std::max(handle++->backlog_bytes(), backlog);
    speeds += rail.speed_bytes_per_s;
    ++r;
  }
  return speeds;
}

void ExchangePlanner::Count(NodeJob& job, Exchange& exchange) {
  exchange.planned_bytes = BytesByRail(no_bytes_);
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
  const auto before = std::chrono::steady_clock::now();
  const absl::Status planned = BuildPlan(flows_, rails_, exchange.peer, options, &ledger_, &workspace_);
  // No rail is up towards the peer: planned again when one comes up; the job's deadline bounds the wait.
  if (absl::IsUnavailable(planned)) return absl::OkStatus();
  if (!planned.ok()) return planned;
  ++plans_;
  nanoseconds_ += static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - before).count());
  exchange.planned = true;
  exchange.times.planned = job.now();
  Count(job, exchange);
  job.first_chunk_at = std::min(job.first_chunk_at, job.now());
  exchange.out.Start(workspace_.runs, by_flow);
  return absl::OkStatus();
}

}  // namespace railsd
