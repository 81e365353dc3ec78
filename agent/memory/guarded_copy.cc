#include "agent/memory/guarded_copy.h"

#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>

namespace railsd {
namespace {

// No page is smaller, and huge pages are multiples of it.
constexpr uintptr_t kPageBytes = 4096;

// A copy of this thread is under way; where it goes on after a fault.
constinit thread_local volatile sig_atomic_t guarded = 0;
thread_local sigjmp_buf after_fault;

struct sigaction before_bus, before_segv;

void OnFault(int signal, siginfo_t* info, void* context) {
  // Or else a process has sent it, or it tells of a broken page that nobody has touched.
  const bool by_access = info->si_code > 0 && (signal != SIGBUS || info->si_code != BUS_MCEERR_AO);
  if (guarded != 0 && by_access) {
    // The jump leaves the handler for good, which must not leave signals blocked.
    pthread_sigmask(SIG_SETMASK, &static_cast<ucontext_t*>(context)->uc_sigmask, nullptr);
    siglongjmp(after_fault, 1);
  }
  sigaction(signal, signal == SIGBUS ? &before_bus : &before_segv, nullptr);
  if (!by_access) raise(signal);  // an access is repeated when this returns
}

bool Install() {
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;  // an earlier handler may need the stack that its thread has for it
  sigaction(SIGBUS, &action, &before_bus);
  sigaction(SIGSEGV, &action, &before_segv);  // addresses that only devices can use
  return true;
}

// False: a page of either side cannot be touched. Has nothing to destroy, because a fault jumps out of memcpy().
bool Try(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  if (sigsetjmp(after_fault, 0) != 0) {
    guarded = 0;
    return false;
  }
  guarded = 1;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(to, from, bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  guarded = 0;
  return true;
}

size_t LeftOfPage(const std::byte* address) { return kPageBytes - reinterpret_cast<uintptr_t>(address) % kPageBytes; }

// Returns how many bytes come before the first page that cannot be touched.
size_t CopyPages(std::byte* to, const std::byte* from, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const size_t step = std::min({bytes - done, LeftOfPage(to + done), LeftOfPage(from + done)});
    if (!Try(to + done, from + done, step)) break;
    done += step;
  }
  return done;
}

}  // namespace

uint64_t GuardedCopy(absl::Span<const iovec> from, absl::Span<const iovec> to) {
  [[maybe_unused]] static const bool installed = Install();
  uint64_t copied = 0;
  size_t source = 0, target = 0, source_at = 0, target_at = 0;  // entry, and byte in it
  while (source < from.size() && target < to.size()) {
    const size_t bytes = std::min(from[source].iov_len - source_at, to[target].iov_len - target_at);
    const std::byte* const begin = static_cast<const std::byte*>(from[source].iov_base) + source_at;
    std::byte* const place = static_cast<std::byte*>(to[target].iov_base) + target_at;
    // The page may be there again.
    const size_t there = Try(place, begin, bytes) ? bytes : CopyPages(place, begin, bytes);
    copied += there;
    if (there < bytes) return copied;
    source_at += bytes;
    target_at += bytes;
    if (source_at == from[source].iov_len) ++source, source_at = 0;
    if (target_at == to[target].iov_len) ++target, target_at = 0;
  }
  return copied;
}

}  // namespace railsd
