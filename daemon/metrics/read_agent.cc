#include "daemon/metrics/read_agent.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

std::optional<AgentSnapshot> ReadAgent(Agent* agent, absl::Duration deadline) {
  struct Box {
    absl::Mutex mutex;
    std::optional<AgentSnapshot> snapshot ABSL_GUARDED_BY(mutex);
  };
  const auto box = std::make_shared<Box>();
  agent->Snapshot([box](AgentSnapshot snapshot) {
    absl::MutexLock lock(&box->mutex);
    box->snapshot = std::move(snapshot);
  });
  const auto there = [&box]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(box->mutex) { return box->snapshot.has_value(); };
  absl::MutexLock lock(&box->mutex);
  box->mutex.AwaitWithTimeout(absl::Condition(&there), deadline);
  return std::move(box->snapshot);
}

}  // namespace railsd
