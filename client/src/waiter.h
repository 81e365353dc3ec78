// A thread that waits for an answer or a report from the daemon, or for the end of a job.
#ifndef RAILS_CLIENT_SRC_WAITER_H_
#define RAILS_CLIENT_SRC_WAITER_H_

#include <sys/eventfd.h>

#include "absl/synchronization/mutex.h"
#include "client/src/deadline.h"

namespace rails::internal {

// Lives on the stack of the waiting thread, so that a forked child never destroys it. A thread that wakes it holds the
// lock under which it is registered.
class Waiter {
 public:
  // The thread's answer has come.
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    done_ = true;
    changed_.WakeAll();
    if (poll_fd_ >= 0) eventfd_write(poll_fd_, 1);
  }
  bool done() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  // Ends one Sleep().
  void Nudge() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    nudged_ = true;
    changed_.WakeAll();
  }
  // Sleeps until Wake(), Nudge() or `deadline`.
  void Sleep(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    changed_.Await(
        mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ || nudged_; }, deadline);
    nudged_ = false;
  }
  // The thread is about to sleep in poll(): Wake() makes the eventfd `fd` readable. False: it is done already.
  bool BeginPoll(int fd) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    if (!done_) poll_fd_ = fd;
    return !done_;
  }
  void EndPoll() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    poll_fd_ = -1;
  }

 private:
  mutable absl::Mutex mutex_;
  WaitQueue changed_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  bool nudged_ ABSL_GUARDED_BY(mutex_) = false;
  int poll_fd_ ABSL_GUARDED_BY(mutex_) = -1;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_WAITER_H_
