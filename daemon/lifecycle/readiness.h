// Combines the daemon's states into its health, for gRPC's health service on every server and for /readyz.
#ifndef RAILSD_DAEMON_LIFECYCLE_READINESS_H_
#define RAILSD_DAEMON_LIFECYCLE_READINESS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

// The health service's name for "the daemon works", for probes that restart a daemon that does not. A draining daemon
// works. The empty name (the whole server) and the services' names say whether the daemon takes new work.
inline constexpr absl::string_view kLiveService = "live";

// Any thread may call any method. Listeners are called one at a time.
class Readiness {
 public:
  // `ready` implies `live`.
  using Listener = std::function<void(bool ready, bool live)>;

  // Calls the listener at once, then on every change. SetStopping() is the last change.
  void AddListener(Listener listener);
  // Call once all parts of the daemon serve.
  void SetStarted();
  // An operator has drained or undrained the node.
  void SetDrained(bool drained);
  // `threads`: names of the threads that hang; empty if none.
  void SetStuck(const std::vector<std::string>& threads);
  void SetStopping();
  // Why the daemon is not ready, a sentence without a full stop; empty if it is.
  std::string why_not() const {
    absl::MutexLock lock(&mutex_);
    return Why();
  }
  bool stopping() const {
    absl::MutexLock lock(&mutex_);
    return stopping_;
  }

 private:
  std::string Why() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tell(const Listener& listener) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellAll() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string stuck_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_READINESS_H_
