// How long a thread that has nothing to do looks for work before it sleeps.
#ifndef RAILSD_AGENT_BASE_SPIN_BUDGET_H_
#define RAILSD_AGENT_BASE_SPIN_BUDGET_H_

#include "absl/time/time.h"

namespace railsd {

class SpinBudget {
 public:
  // Zero: the thread sleeps at once.
  explicit SpinBudget(absl::Duration budget) : budget_(budget) {}
  void OnWork(absl::Time now) { until_ = now + budget_; }
  bool Spent(absl::Time now) const { return now >= until_; }

 private:
  const absl::Duration budget_;
  absl::Time until_ = absl::InfinitePast();
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_SPIN_BUDGET_H_
