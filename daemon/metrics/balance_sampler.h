// Feeds a BalanceMeter at a steady pace.
#ifndef RAILSD_DAEMON_METRICS_BALANCE_SAMPLER_H_
#define RAILSD_DAEMON_METRICS_BALANCE_SAMPLER_H_

#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "agent/agent.h"
#include "daemon/metrics/balance.h"

namespace railsd {

// Asks the agent for its rails until destroyed. Its thread "balance" only waits; the engine thread adds the samples.
class BalanceSampler {
 public:
  // `agent` outlives the sampler.
  explicit BalanceSampler(Agent* agent);
  ~BalanceSampler();
  BalanceSampler(const BalanceSampler&) = delete;
  BalanceSampler& operator=(const BalanceSampler&) = delete;

  const BalanceMeter& meter() const { return *meter_; }

 private:
  const std::shared_ptr<BalanceMeter> meter_;  // shared with outstanding samples
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_BALANCE_SAMPLER_H_
