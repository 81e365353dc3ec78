#include "agent/transport/verbs/zone_plan.h"

#include <algorithm>
#include <numeric>

namespace railsd::verbs {

bool PlanWindows(const MemoryRanges& memory, RailIndex rail, ZonePlan* plan) {
  const absl::Span<const MemoryRanges::Piece> pieces = memory.pieces();
  std::vector<uint32_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return pieces[a].address < pieces[b].address; });

  std::vector<ZonePlan::Window>& windows = plan->windows;
  windows.clear();
  plan->flushes.clear();
  plan->window_of.resize(pieces.size());
  for (const uint32_t i : order) {
    const Registration* const registration = pieces[i].segment->registration(rail.value());
    if (registration == nullptr) return false;
    const auto address = reinterpret_cast<uint64_t>(pieces[i].address);
    if (windows.empty() || windows.back().registration != registration ||
        windows.back().address + windows.back().length_bytes != address) {
      windows.push_back({registration, address, 0});
    }
    windows.back().length_bytes += pieces[i].length_bytes;
    plan->window_of[i] = static_cast<uint32_t>(windows.size() - 1);
  }
  // The windows of a registration follow each other, since segments do not share addresses.
  for (const ZonePlan::Window& window : windows) {
    if (!window.registration->needs_flush()) continue;
    std::vector<ZonePlan::Flush>& flushes = plan->flushes;
    if (flushes.empty() || flushes.back().registration != window.registration) flushes.emplace_back();
    flushes.back() = {window.registration, window.address + window.length_bytes - 1};
  }
  return true;
}

}  // namespace railsd::verbs
