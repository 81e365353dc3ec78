#include "agent/base/wake_event.h"

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
  // Whoever found `sleeping_` true and cleared it has written (or is about to write) to the descriptor.
  if (sleeping_.exchange(false, std::memory_order_seq_cst)) return;
  uint64_t count = 0;
  [[maybe_unused]] ssize_t n = ::read(fd_.get(), &count, sizeof(count));
}

void WakeEvent::Wake() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!sleeping_.load(std::memory_order_relaxed) || !sleeping_.exchange(false, std::memory_order_seq_cst)) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t n = ::write(fd_.get(), &one, sizeof(one));
}

}  // namespace railsd
