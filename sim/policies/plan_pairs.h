// Transfers by BuildPlan(), which every node calls for each of its destinations with a ledger of its own, as the
// daemons do.
#ifndef RAILSD_SIM_POLICIES_PLAN_PAIRS_H_
#define RAILSD_SIM_POLICIES_PLAN_PAIRS_H_

#include "absl/status/statusor.h"
#include "agent/plan/plan.h"
#include "sim/policies/policy.h"

namespace railsd::sim {

absl::StatusOr<TransferPlan> PlanPairs(const PolicyInput& input, Policy policy);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_POLICIES_PLAN_PAIRS_H_
