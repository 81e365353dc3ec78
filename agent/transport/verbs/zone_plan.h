// Which memory windows open a zone on one rail, and which reads flush it. Pure.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_ZONE_PLAN_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_ZONE_PLAN_H_

#include <cstdint>
#include <vector>

#include "agent/base/ids.h"
#include "agent/memory/memory_ranges.h"
#include "agent/memory/registration.h"

namespace railsd::verbs {

// The queue pair, of those to one peer, that an exchange uses. Both ends choose the same one. All bytes of an exchange
// take one queue pair, so that a fence arrives after the bytes before it.
constexpr size_t QueuePairOf(const ZoneRef& zone, size_t queue_pairs) { return zone.slot % queue_pairs; }

struct ZonePlan {
  struct Window {
    const Registration* registration = nullptr;
    uint64_t address = 0;
    uint64_t length_bytes = 0;
  };
  std::vector<Window> windows;
  std::vector<uint32_t> window_of;  // index in `windows`, by piece of the zone's memory
  // Bytes to read before a fence is reported: one of each registration that needs it.
  struct Flush {
    const Registration* registration = nullptr;
    uint64_t address = 0;
  };
  std::vector<Flush> flushes;
};

// Pieces that touch each other and lie in one segment share a window. False when a segment is not registered on this
// rail.
bool PlanWindows(const MemoryRanges& memory, RailIndex rail, ZonePlan* plan);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_ZONE_PLAN_H_
