// Plans exchanges: which rail is to carry how much.
#ifndef RAILSD_AGENT_JOBS_EXCHANGE_PLANNER_H_
#define RAILSD_AGENT_JOBS_EXCHANGE_PLANNER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "agent/groups/groups.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"
#include "agent/plan/plan.h"
#include "agent/rails/rail_speeds.h"

namespace railsd {

// Owned by the engine's thread.
class ExchangePlanner {
 public:
  // Both outlive this.
  ExchangePlanner(const ExchangeContext* context, RailSpeeds* speeds)
      : context_(*context),
        speeds_(*speeds),
        ledger_(context->rail_count()),
        rails_(context->rail_count()),
        no_bytes_(context->rail_count()),
        planned_bytes_(context->rail_count()) {}

  // Plans the exchange and gives the plan to the rails, unless that was done or cannot be done yet. Not OK when the
  // exchange cannot be planned at all.
  absl::Status Plan(NodeJob& job, const Group& group, Exchange& exchange);
  // A READY has told the speeds that the peer counts on, at its ends of the rails.
  void OnTold(const Ready::Rails& told, absl::Time now) {
    if (!speeds_.any_slow()) return;
    for (size_t r = 0; r < std::min(rails_.size(), told.bytes_per_s.size()); ++r) {
      speeds_.OnTold(r, static_cast<double>(told.bytes_per_s[r]), now);
    }
  }
  // The speeds that plans count on at this end of the rails, in bytes per second.
  absl::Span<const double> Speeds(absl::Time now) { return speeds_.ForPlan(now); }
  void OnPeerLost(PeerIndex peer) { ledger_.Forget(peer); }

  // Bytes that plans have put onto the rail; late binding and failures may have moved it since.
  uint64_t planned_bytes(size_t rail) const { return planned_bytes_[rail]; }
  uint64_t plans() const { return plans_; }
  uint64_t nanoseconds() const { return nanoseconds_; }  // spent in the planner

 private:
  void TakeFlows(const Group& group, const Exchange& exchange);
  // Returns the sum of the speeds of the rails that can be used, in bytes per second.
  double TakeRails(const NodeJob& job, const Exchange& exchange);
  void Count(NodeJob& job, Exchange& exchange);

  const ExchangeContext& context_;
  RailSpeeds& speeds_;
  Ledger ledger_;
  PlanWorkspace workspace_;
  std::vector<PlanFlow> flows_;
  std::vector<PlanRail> rails_;
  const BytesByRail no_bytes_;  // is copied, which is cheaper than to set number by number
  std::vector<uint64_t> planned_bytes_;
  uint64_t plans_ = 0, nanoseconds_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_EXCHANGE_PLANNER_H_
