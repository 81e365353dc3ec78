#include "agent/transport/verbs/zone_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace railsd::verbs {
namespace {

bool Precedes(const ZonePlan::Window& a, const ZonePlan::Window& b) {
  if (a.lane != b.lane) return a.lane < b.lane;
  if (a.registration != b.registration) return std::less<>()(a.registration, b.registration);
  return a.address < b.address;
}

}  // namespace

bool PlanWindows(const ReceiveSet& set, RailIndex rail, size_t lanes, ZonePlan* plan) {
  std::vector<ZonePlan::Window> single;  // one for each range
  for (uint32_t z = 0; z < set.zones.size(); ++z) {
    const uint32_t lane = LaneOf({set.slot, set.generation, z}, lanes);
    for (const MemoryRanges::Piece& piece : set.zones[z].pieces()) {
      const Registration* registration = piece.segment->registration(rail.value());
      if (registration == nullptr) return false;
      single.push_back({lane, registration, reinterpret_cast<uint64_t>(piece.address), piece.length_bytes});
    }
  }
  std::vector<uint32_t> order(single.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return Precedes(single[a], single[b]); });

  plan->windows.clear();
  plan->ranges.assign(single.size(), {});
  for (const uint32_t i : order) {
    const ZonePlan::Window& range = single[i];
    ZonePlan::Window* last = plan->windows.empty() ? nullptr : &plan->windows.back();
    if (last != nullptr && last->lane == range.lane && last->registration == range.registration &&
        last->address + last->length_bytes == range.address) {
      last->length_bytes += range.length_bytes;
    } else {
      plan->windows.push_back(range);
    }
    plan->ranges[i] = {range.registration, static_cast<uint32_t>(plan->windows.size() - 1)};
  }
  return true;
}

}  // namespace railsd::verbs
