// Wakes one thread that sleeps in poll or epoll, at the price of a system call only when it really sleeps.
#ifndef RAILSD_AGENT_BASE_WAKE_EVENT_H_
#define RAILSD_AGENT_BASE_WAKE_EVENT_H_

#include <atomic>

#include "absl/status/statusor.h"
#include "agent/base/unique_fd.h"

namespace railsd {

// The sleeper calls BeginSleep(), looks at its queues once more, sleeps with fd() in its poll set, and calls
// EndSleep(). Producers push first and then call Wake(). Wake() may be called from any thread.
class WakeEvent {
 public:
  // Fails when no descriptor is left (RESOURCE_EXHAUSTED).
  static absl::StatusOr<WakeEvent> Create();

  WakeEvent(WakeEvent&& other) noexcept : fd_(std::move(other.fd_)), sleeping_(other.sleeping_.load()) {}

  int fd() const { return fd_.get(); }
  // A read-modify-write at both ends orders the two without fences, which ThreadSanitizer could not follow.
  void BeginSleep() { sleeping_.exchange(true, std::memory_order_acq_rel); }
  // Forgets pending wakes. Reads the descriptor only if somebody wrote to it.
  void EndSleep();
  void Wake();

 private:
  explicit WakeEvent(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
  std::atomic<bool> sleeping_{false};
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_WAKE_EVENT_H_
