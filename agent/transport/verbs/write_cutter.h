// Cuts a chunk into work requests: each writes one stretch of remote memory from a few stretches of local memory. Pure.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_WRITE_CUTTER_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_WRITE_CUTTER_H_

#include <cstdint>

#include "absl/types/span.h"
#include "agent/transport/transport.h"

namespace railsd::verbs {

struct LocalPiece {
  uint64_t address = 0;
  uint32_t length_bytes = 0;
  uint32_t key = 0;
};

struct RemoteWrite {
  uint64_t address = 0;
  uint32_t key = 0;
  size_t pieces = 0;  // of `local` that were filled
  uint64_t length_bytes = 0;
  bool copyable = true;  // no local piece is memory of a device
};

enum class CutResult {
  kOk,
  kNotRegistered,  // a local segment is not known to this rail's device
  kNotReachable,   // the grant gives no memory or no key for these bytes
};

// The longest work request that begins at byte `offset_bytes` of the stream: at most `limit_bytes` (1 to 2^31), at most
// as many local pieces as `local` holds (at least 1). Never allocates.
CutResult CutWrite(const SendStream& stream, RailIndex rail, uint64_t offset_bytes, uint64_t limit_bytes,
                   absl::Span<LocalPiece> local, RemoteWrite* write);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_WRITE_CUTTER_H_
