// The client's thread. Detects the daemon's exit at once and runs delayed tasks. Polls the ring's doorbell while jobs
// or calls need it and no other thread does. Otherwise it sleeps.
#ifndef RAILS_CLIENT_SRC_WATCHER_H_
#define RAILS_CLIENT_SRC_WATCHER_H_

#include <functional>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/deadline.h"
#include "client/src/own_thread.h"
#include "client/src/unique_fd.h"

namespace rails::internal {

class Watcher {
 public:
  Watcher();
  ~Watcher();

  // Joins the thread, then runs all remaining tasks. Must not be called on the thread itself.
  void Stop();

  // Calls `on_lost` once, on the thread, when `socket_fd` hangs up or `process_fd` becomes readable. Both stay open
  // until then. Replaces an earlier Watch().
  void Watch(int socket_fd, int process_fd, std::function<void()> on_lost);
  // Stops watching, and waits for an `on_lost` that runs.
  void Unwatch();
  // Calls `on_bell` on the thread, now and whenever `bell_fd` is readable or hangs up, until it returns false. Replaces
  // an earlier WatchBell().
  void WatchBell(int bell_fd, std::function<bool()> on_bell);
  // Runs `task` on the thread after `delay`; after Stop() at once, on the caller's thread.
  void Post(absl::Duration delay, std::function<void()> task);

 private:
  struct Task {
    Deadline due;
    std::function<void()> run;
  };

  void Run();
  void Wake();
  // Takes the due tasks. Sets `next` to the time of the first task that is not due.
  std::vector<Task> TakeDue(Deadline* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  UniqueFd wake_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;
  int socket_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  int process_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  std::function<void()> on_lost_ ABSL_GUARDED_BY(mutex_);
  int bell_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  bool bell_due_ ABSL_GUARDED_BY(mutex_) = false;  // on_bell_ is to be called
  std::function<bool()> on_bell_ ABSL_GUARDED_BY(mutex_);
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  OwnThread thread_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_WATCHER_H_
