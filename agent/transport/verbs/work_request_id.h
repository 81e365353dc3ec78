// The id of a work request, which comes back in its completion.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_WORK_REQUEST_ID_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_WORK_REQUEST_ID_H_

#include <cstdint>

#include "agent/base/ids.h"

namespace railsd::verbs {

// Names a queue pair of this rail. Queue pairs that follow get other ids, so a completion of a destroyed queue pair
// finds no queue pair.
using QueuePairId = StrongId<class QueuePairIdTag, uint32_t>;

struct WorkRequestId {
  enum class Kind : uint8_t {
    kSend = 1,     // a write, a bind or an invalidate: all up to `sequence` on its queue pair are done
    kDrain = 2,    // the marker behind the work requests of a queue pair in error
    kReceive = 3,  // a fence's; no queue pair
    kFlush = 4,    // a read of the rail's FlushQueue; no queue pair
  };
  Kind kind = Kind::kSend;
  QueuePairId queue_pair;  // 24 bits
  uint32_t sequence = 0;   // wraps
  friend bool operator==(const WorkRequestId&, const WorkRequestId&) = default;
};

constexpr uint64_t Encode(const WorkRequestId& id) {
  return uint64_t{static_cast<uint8_t>(id.kind)} << 56 | uint64_t{id.queue_pair.value() & 0xffffffu} << 32 |
         id.sequence;
}
constexpr WorkRequestId DecodeWorkRequestId(uint64_t wr_id) {
  return {static_cast<WorkRequestId::Kind>(wr_id >> 56), QueuePairId(static_cast<uint32_t>(wr_id >> 32) & 0xffffffu),
          static_cast<uint32_t>(wr_id)};
}

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_WORK_REQUEST_ID_H_
