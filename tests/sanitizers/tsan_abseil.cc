// Shows ThreadSanitizer what Debian's Abseil does, which is not instrumented: in builds with -fsanitize=thread this
// file is linked into every program. Its functions come before those of Abseil's shared libraries, for gRPC's calls
// too; each does what the real one does, and says what that orders.
#include <sanitizer/tsan_interface.h>

#include <cstdint>

#include "absl/base/config.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tests/sanitizers/tsan_real.h"

#if ABSL_LTS_RELEASE_VERSION != 20220623
#error "Look up in absl/synchronization/mutex.h what this version has out of line, and who calls whom."
#endif
#define RAILSD_ABSL "_ZN4absl7debian3"
#define RAILSD_ABSL_CONST "_ZNK4absl7debian3"

// ThreadSanitizer's, in no header of the compiler.
extern "C" void AnnotateIgnoreWritesBegin(const char* file, int line);
extern "C" void AnnotateIgnoreWritesEnd(const char* file, int line);

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

using railsd::Real;

constexpr unsigned kWriter = 0;
constexpr unsigned kReader = __tsan_mutex_read_lock;
constexpr intptr_t kWriterBit = 0x0008;  // kMuWriter in mutex.cc

// While one of these lives, ThreadSanitizer looks away from what the thread does: from the mutex's own atomics, and
// from conditions, which the real function evaluates while it holds the mutex.
class Locking {
 public:
  explicit Locking(Mutex* mutex, unsigned flags) : mutex_(mutex), flags_(flags) { __tsan_mutex_pre_lock(mutex, flags); }
  ~Locking() { __tsan_mutex_post_lock(mutex_, flags_ | (failed_ ? __tsan_mutex_try_lock_failed : 0), 0); }
  bool Got(bool got) {
    failed_ = !got;
    return got;
  }

 private:
  Mutex* mutex_;
  unsigned flags_;
  bool failed_ = false;
};

class Unlocking {
 public:
  explicit Unlocking(Mutex* mutex, unsigned flags) : mutex_(mutex), flags_(flags) {
    __tsan_mutex_pre_unlock(mutex, flags);
  }
  ~Unlocking() { __tsan_mutex_post_unlock(mutex_, flags_); }

 private:
  Mutex* mutex_;
  unsigned flags_;
};

// Gives the mutex back and takes it again: what a wait looks like from outside.
class Waiting {
 public:
  explicit Waiting(Mutex* mutex, unsigned flags) : unlocked_(mutex, flags), locking_(mutex, flags) {}

 private:
  struct Unlocked {
    Unlocked(Mutex* mutex, unsigned flags) { const Unlocking unlocking(mutex, flags); }
  };
  Unlocked unlocked_;
  Locking locking_;
};

// Where a Notification keeps its flag, which is read inline, by instrumented code: behind its mutex.
void* Flag(const Notification* notification) {
  return reinterpret_cast<char*>(const_cast<Notification*>(notification)) + sizeof(Mutex);
}

}  // namespace

Mutex::~Mutex() {
  static const auto real = Real<void(Mutex*)>(RAILSD_ABSL "5MutexD1Ev");
  real(this);
  __tsan_mutex_destroy(this, __tsan_mutex_not_static);
}

void Mutex::Lock() {
  static const auto real = Real<void(Mutex*)>(RAILSD_ABSL "5Mutex4LockEv");
  const Locking locking(this, kWriter);
  real(this);
}

void Mutex::Unlock() {
  static const auto real = Real<void(Mutex*)>(RAILSD_ABSL "5Mutex6UnlockEv");
  const Unlocking unlocking(this, kWriter);
  real(this);
}

bool Mutex::TryLock() {
  static const auto real = Real<bool(Mutex*)>(RAILSD_ABSL "5Mutex7TryLockEv");
  Locking locking(this, kWriter | __tsan_mutex_try_lock);
  return locking.Got(real(this));
}

void Mutex::ReaderLock() {
  static const auto real = Real<void(Mutex*)>(RAILSD_ABSL "5Mutex10ReaderLockEv");
  const Locking locking(this, kReader);
  real(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void(Mutex*)>(RAILSD_ABSL "5Mutex12ReaderUnlockEv");
  const Unlocking unlocking(this, kReader);
  real(this);
}

bool Mutex::ReaderTryLock() {
  static const auto real = Real<bool(Mutex*)>(RAILSD_ABSL "5Mutex13ReaderTryLockEv");
  Locking locking(this, kReader | __tsan_mutex_try_lock);
  return locking.Got(real(this));
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto real = Real<void(Mutex*, const Condition&)>(RAILSD_ABSL "5Mutex8LockWhenERKNS0_9ConditionE");
  const Locking locking(this, kWriter);
  real(this, condition);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real<bool(Mutex*, const Condition&, Time)>(
      RAILSD_ABSL "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const Locking locking(this, kWriter);  // false: the condition is, the mutex is held all the same
  return real(this, condition, deadline);
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  static const auto real = Real<void(Mutex*, const Condition&)>(RAILSD_ABSL "5Mutex14ReaderLockWhenERKNS0_9ConditionE");
  const Locking locking(this, kReader);
  real(this, condition);
}

bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real<bool(Mutex*, const Condition&, Time)>(
      RAILSD_ABSL "5Mutex26ReaderLockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  const Locking locking(this, kReader);
  return real(this, condition, deadline);
}

// Every Await comes here when its condition is not true at once.
bool Mutex::AwaitCommon(const Condition& condition, synchronization_internal::KernelTimeout timeout) {
  static const auto real = Real<bool(Mutex*, const Condition&, synchronization_internal::KernelTimeout)>(
      RAILSD_ABSL "5Mutex11AwaitCommonERKNS0_9ConditionENS0_24synchronization_internal13KernelTimeoutE");
  const Waiting waiting(this, (mu_.load(std::memory_order_relaxed) & kWriterBit) != 0 ? kWriter : kReader);
  return real(this, condition, timeout);
}

// Every Wait of a CondVar comes here. Signal and SignalAll need no annotation: the waiter's condition is behind the
// mutex.
bool CondVar::WaitCommon(Mutex* mutex, synchronization_internal::KernelTimeout timeout) {
  static const auto real = Real<bool(CondVar*, Mutex*, synchronization_internal::KernelTimeout)>(
      RAILSD_ABSL "7CondVar10WaitCommonEPNS0_5MutexENS0_24synchronization_internal13KernelTimeoutE");
  const Waiting waiting(mutex, (mutex->mu_.load(std::memory_order_relaxed) & kWriterBit) != 0 ? kWriter : kReader);
  return real(this, mutex, timeout);
}

void Notification::Notify() {
  static const auto real = Real<void(Notification*)>(RAILSD_ABSL "12Notification6NotifyEv");
  __tsan_release(Flag(this));
  real(this);
}

void Notification::WaitForNotification() const {
  static const auto real = Real<void(const Notification*)>(RAILSD_ABSL_CONST "12Notification19WaitForNotificationEv");
  real(this);
  __tsan_acquire(Flag(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto real = Real<bool(const Notification*, Duration)>(
      RAILSD_ABSL_CONST "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE");
  const bool notified = real(this, timeout);
  if (notified) __tsan_acquire(Flag(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static const auto real = Real<bool(const Notification*, Time)>(
      RAILSD_ABSL_CONST "12Notification31WaitForNotificationWithDeadlineENS0_4TimeE");
  const bool notified = real(this, deadline);
  if (notified) __tsan_acquire(Flag(this));
  return notified;
}

// Copies of a status in several threads share its text, and the last one deletes it after all others have let go of it:
// their count, inside of the library, orders that. Deleting is therefore no write that could be in a race.
void Status::UnrefNonInlined(uintptr_t text) {
  static const auto real = Real<void(uintptr_t)>(RAILSD_ABSL "6Status15UnrefNonInlinedEm");
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  real(text);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

ABSL_NAMESPACE_END
}  // namespace absl
