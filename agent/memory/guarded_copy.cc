#include "agent/memory/guarded_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace railsd {
namespace {

// The largest size that the kernel allows without a privilege. Shorter pipes are slower.
constexpr int kPipeBytes = 1 << 20;

}  // namespace

ssize_t GuardedCopy::Copy(absl::Span<const iovec> from, absl::Span<const iovec> to) {
  // The kernel checks every page of both sides. It never refuses a copy within a process, but a seccomp filter may. The
  // kernel pins the pages of the remote side for each piece, which takes some 25 times as long as the copy of a short
  // piece. The side with more pieces is therefore the local one.
  const ssize_t copied = to.size() > from.size()
                             ? ::process_vm_readv(::getpid(), to.data(), to.size(), from.data(), from.size(), 0)
                             : ::process_vm_writev(::getpid(), from.data(), from.size(), to.data(), to.size(), 0);
  if (copied >= 0 || (errno != EPERM && errno != ENOSYS)) return copied;
  return CopyThroughPipe(from, to);
}

ssize_t GuardedCopy::CopyThroughPipe(absl::Span<const iovec> from, absl::Span<const iovec> to) {
  if (!write_.valid()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return -1;
    read_ = UniqueFd(ends[0]);
    write_ = UniqueFd(ends[1]);
    ::fcntl(write_.get(), F_SETPIPE_SZ, kPipeBytes);
  }
  const ssize_t written = ::writev(write_.get(), from.data(), static_cast<int>(from.size()));
  if (written <= 0) return written;
  const ssize_t copied = ::readv(read_.get(), to.data(), static_cast<int>(to.size()));
  if (copied < written) {  // what is left in the pipe must not reach the next copy
    const int why = errno;
    read_ = UniqueFd();
    write_ = UniqueFd();
    errno = why;
  }
  return copied;
}

}  // namespace railsd
