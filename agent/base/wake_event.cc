#include "agent/base/wake_event.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>

#include "absl/status/status.h"

namespace railsd {

absl::StatusOr<WakeEvent> WakeEvent::Create() {
  UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  return WakeEvent(std::move(fd));
}

void WakeEvent::EndSleep() {
  // A waker that found `sleeping_` true and cleared it has written (or is about to write) to the descriptor.
  if (sleeping_.exchange(false, std::memory_order_acq_rel)) return;
  uint64_t count = 0;
  // Each clearing is followed by exactly one write. A write that stayed in the descriptor would end every later sleep
  // at once. The loop therefore waits for a waker that has not written yet.
  while (::read(fd_.get(), &count, sizeof(count)) < 0 && (errno == EAGAIN || errno == EINTR)) ::sched_yield();
}

void WakeEvent::Wake() {
  // Either this exchange comes after the sleeper's, and finds it asleep, or before it, and then the sleeper's exchange
  // has acquired what was pushed before this call.
  if (!sleeping_.exchange(false, std::memory_order_acq_rel)) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(fd_.get(), &one, sizeof(one));
}

}  // namespace railsd
