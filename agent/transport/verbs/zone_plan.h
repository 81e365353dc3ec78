// Which memory windows open the zones of one READY on one rail. Pure.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_ZONE_PLAN_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_ZONE_PLAN_H_

#include <cstdint>
#include <vector>

#include "agent/transport/transport.h"

namespace railsd::verbs {

// The queue pair, of those to one peer, that a flow uses: equal at both ends, so that its fence is the last of it.
constexpr uint32_t LaneOf(const ZoneRef& zone, size_t lanes) { return zone.index % static_cast<uint32_t>(lanes); }

struct ZonePlan {
  struct Window {
    uint32_t lane = 0;
    const Registration* registration = nullptr;
    uint64_t address = 0;
    uint64_t length_bytes = 0;
  };
  struct Range {
    const Registration* registration = nullptr;
    uint32_t window = 0;
  };
  std::vector<Window> windows;
  std::vector<Range> ranges;  // one for each range of each zone, in order: as the keys
};

// Ranges that touch each other, lie in one segment and belong to flows of one queue pair share a window. False when a
// segment is not registered on this rail.
bool PlanWindows(const ReceiveSet& set, RailIndex rail, size_t lanes, ZonePlan* plan);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_ZONE_PLAN_H_
