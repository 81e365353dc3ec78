#include "daemon/metrics/balance_sampler.h"

#include <pthread.h>

#include <utility>

#include "absl/time/clock.h"

namespace railsd {

BalanceSampler::BalanceSampler(Agent* agent)
    : meter_(std::make_shared<BalanceMeter>()), thread_([this, agent] {
        ::pthread_setname_np(::pthread_self(), "balance");
        do {
          agent->Snapshot([meter = meter_](const AgentSnapshot& snapshot) { meter->Add(snapshot.rails, absl::Now()); });
        } while (!stop_.WaitForNotificationWithTimeout(BalanceMeter::kPace));
      }) {}

BalanceSampler::~BalanceSampler() {
  stop_.Notify();
  thread_.join();
}

}  // namespace railsd
