// Copies memory of this process by system calls, which report a bad page where a load or a store would raise SIGBUS.
#ifndef RAILSD_AGENT_MEMORY_GUARDED_COPY_H_
#define RAILSD_AGENT_MEMORY_GUARDED_COPY_H_

#include <sys/types.h>
#include <sys/uio.h>

#include "absl/types/span.h"
#include "agent/base/unique_fd.h"

namespace railsd {

// Used by one thread. Holds descriptors only after it has used a pipe.
class GuardedCopy {
 public:
  // Copies `from` into `to` until the shorter side ends. Returns how many bytes it has copied, possibly fewer, or -1
  // with errno: EFAULT if the next page of either side cannot be touched; EINTR to try again.
  ssize_t Copy(absl::Span<const iovec> from, absl::Span<const iovec> to);

  // The same through a pipe, at most as much as the pipe holds: about half as fast, and allowed everywhere. Copy()
  // falls back on it where the seccomp filter of a container forbids process_vm_writev(2) or process_vm_readv(2).
  ssize_t CopyThroughPipe(absl::Span<const iovec> from, absl::Span<const iovec> to);

 private:
  UniqueFd read_, write_;  // between calls the pipe is empty
};

}  // namespace railsd

#endif  // RAILSD_AGENT_MEMORY_GUARDED_COPY_H_
