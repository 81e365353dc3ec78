// The client's one thread: sees at once that the daemon is gone, and runs what must run later.
#ifndef RAILS_CLIENT_SRC_WATCHER_H_
#define RAILS_CLIENT_SRC_WATCHER_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/owner_process.h"
#include "client/src/unique_fd.h"

namespace rails::internal {

class Watcher {
 public:
  Watcher();
  ~Watcher();

  // Joins the thread, then runs all tasks that are left. Not from the thread itself.
  void Stop();

  // Calls `on_lost` once, from the thread, when `socket_fd` hangs up or `process_fd` becomes readable. Both stay open
  // until then. Replaces what was watched before.
  void Watch(int socket_fd, int process_fd, std::function<void()> on_lost);
  // Returns when nothing is watched and no `on_lost` runs.
  void Unwatch();
  // Runs `task` on the thread after `delay`; after Stop(), at once on this one.
  void Post(absl::Duration delay, std::function<void()> task);

 private:
  struct Task {
    absl::Time due;
    std::function<void()> run;
  };

  void Run();
  void Wake();
  // Takes the tasks that are due; `next` becomes the time of the first that is not.
  std::vector<Task> TakeDue(absl::Time* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OwnerProcess owner_{};
  UniqueFd wake_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;
  int socket_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  int process_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  std::function<void()> on_lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_WATCHER_H_
