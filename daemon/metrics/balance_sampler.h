// Feeds a BalanceMeter at a steady pace.
#ifndef RAILSD_DAEMON_METRICS_BALANCE_SAMPLER_H_
#define RAILSD_DAEMON_METRICS_BALANCE_SAMPLER_H_

#include <memory>
#include <thread>

#include "absl/synchronization/notification.h"
#include "agent/agent.h"
#include "daemon/metrics/balance.h"

namespace railsd {

// Asks the agent for its rails until it is destroyed. One thread of its own ("balance"), which only waits; samples are
// added on the engine's thread.
class BalanceSampler {
 public:
  // `agent` outlives it.
  explicit BalanceSampler(Agent* agent);
  ~BalanceSampler();
  BalanceSampler(const BalanceSampler&) = delete;
  BalanceSampler& operator=(const BalanceSampler&) = delete;

  const BalanceMeter& meter() const { return *meter_; }

 private:
  const std::shared_ptr<BalanceMeter> meter_;  // shared with samples that are under way
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_BALANCE_SAMPLER_H_
