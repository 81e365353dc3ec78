// Copies memory of this process by system calls, which report a bad page where a load or a store would raise SIGBUS.
#ifndef RAILSD_AGENT_MEMORY_GUARDED_COPY_H_
#define RAILSD_AGENT_MEMORY_GUARDED_COPY_H_

#include <sys/types.h>
#include <sys/uio.h>

#include "absl/types/span.h"
#include "agent/base/unique_fd.h"

namespace railsd {

// For one thread. Holds descriptors only once it had to go through a pipe.
class GuardedCopy {
 public:
  // Copies from the first of `from` on into `to`, up to the shorter side; returns how many bytes, which may be fewer,
  // or -1 with errno: EFAULT, the next page of either side cannot be touched; EINTR, try again.
  ssize_t Copy(absl::Span<const iovec> from, absl::Span<const iovec> to);

  // The same by writing into a pipe and reading from it, at most what a pipe holds: about half as fast, and allowed
  // everywhere. Copy() falls back on it where the filter of a container runtime forbids process_vm_writev(2)
  // or process_vm_readv(2).
  ssize_t CopyThroughPipe(absl::Span<const iovec> from, absl::Span<const iovec> to);

 private:
  UniqueFd read_, write_;  // between calls the pipe is empty
};

}  // namespace railsd

#endif  // RAILSD_AGENT_MEMORY_GUARDED_COPY_H_
