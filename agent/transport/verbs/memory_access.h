// The uses that a rail's device may make of a segment's memory.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_MEMORY_ACCESS_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_MEMORY_ACCESS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/memory/segment.h"

namespace railsd::verbs {

struct MemoryAccess {
  bool relaxed_ordering = false;
  bool bind_windows = false;
  friend bool operator==(const MemoryAccess&, const MemoryAccess&) = default;
};

// UNIMPLEMENTED for memory that a completion says nothing of. A fence's completion lies in the host's memory: PCIe
// orders it after the writes before it in the host's memory only, with relaxed ordering as without (docs/verbs.md).
inline absl::StatusOr<MemoryAccess> AccessTo(MemoryKind kind, bool device_has_windows) {
  if (kind == MemoryKind::kDmaBuf) {
    return absl::UnimplementedError(
        "it is a dma-buf, memory of another device: a job could end before its last bytes are there, because nothing "
        "orders them before the completion in the host's memory; give memory of the host (a memfd)");
  }
  return MemoryAccess{.relaxed_ordering = true, .bind_windows = device_has_windows};
}

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_MEMORY_ACCESS_H_
