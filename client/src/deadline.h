// Deadlines by the steady clock. A step of the wall clock neither ends nor prolongs a wait.
#ifndef RAILS_CLIENT_SRC_DEADLINE_H_
#define RAILS_CLIENT_SRC_DEADLINE_H_

#include <chrono>
#include <compare>
#include <condition_variable>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace rails::internal {

class Deadline {
 public:
  static Deadline After(absl::Duration timeout) {
    if (timeout >= kNever) return Never();
    return Deadline(Clock::now() + absl::ToChronoNanoseconds(timeout));
  }
  static Deadline Never() { return Deadline(Clock::time_point::max()); }

  // The time until the deadline: negative when it has passed, infinite for Never().
  absl::Duration left() const {
    if (at_ == Clock::time_point::max()) return absl::InfiniteDuration();
    return absl::FromChrono(at_ - Clock::now());
  }
  bool passed() const { return at_ <= Clock::now(); }
  auto operator<=>(const Deadline& other) const = default;

 private:
  friend class WaitQueue;
  using Clock = std::chrono::steady_clock;
  // Timeouts of this length or more are no limit; the clock's range ends at three times as much.
  static constexpr absl::Duration kNever = absl::Hours(24 * 365 * 100);
  explicit Deadline(Clock::time_point at) : at_(at) {}

  Clock::time_point at_;
};

// Threads that wait for a condition under one absl::Mutex, until a deadline. The mutex's own waits with a time limit
// use the wall clock.
class WaitQueue {
 public:
  // Releases `mutex` while it waits. False: the deadline has passed, and `condition()` is still false.
  template <typename Condition>
  bool Await(absl::Mutex& mutex, Condition condition, Deadline deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Unlocker unlocker{mutex};
    while (!condition()) {
      if (deadline.passed()) return false;
      if (deadline == Deadline::Never()) {
        changed_.wait(unlocker);
      } else {
        changed_.wait_until(unlocker, deadline.at_);
      }
    }
    return true;
  }
  // Call it with the mutex held, after each change that can make a condition true.
  void WakeAll() { changed_.notify_all(); }

 private:
  // Gives the mutex the method names that the standard library expects.
  struct Unlocker {
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
    absl::Mutex& mutex;
  };

  std::condition_variable_any changed_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_DEADLINE_H_
