// Copies memory of which pages may be missing.
//
// A trainer can take pages out of a segment that the daemon has mapped, and a page of memory can break: who touches it
// then gets SIGBUS. Here that ends the copy instead of the process. System calls such as process_vm_writev(2) report
// such pages, too, but pin each page first: they took twice the time for long copies, and five times for 1 KiB.
#ifndef RAILSD_AGENT_MEMORY_GUARDED_COPY_H_
#define RAILSD_AGENT_MEMORY_GUARDED_COPY_H_

#include <sys/uio.h>

#include <cstdint>

#include "absl/types/span.h"

namespace railsd {

// Copies `from` into `to` until the shorter side ends. Returns how many bytes it has copied, fewer if the next page of
// either side cannot be touched; bytes of `to` behind these may then be overwritten. Allocates nothing. Any thread.
//
// The first call installs handlers of SIGBUS and SIGSEGV for good. All faults but those of these copies go on to the
// handlers that were there before. Handlers installed later must do the same.
uint64_t GuardedCopy(absl::Span<const iovec> from, absl::Span<const iovec> to);

}  // namespace railsd

#endif  // RAILSD_AGENT_MEMORY_GUARDED_COPY_H_
