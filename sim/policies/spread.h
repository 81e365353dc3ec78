// How reacting policies leave rails that have died.
#ifndef RAILSD_SIM_POLICIES_SPREAD_H_
#define RAILSD_SIM_POLICIES_SPREAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/fabric.h"
#include "sim/network/transfer.h"

namespace railsd::sim {

// The speed of a rail between two nodes now; 0: dead at either end.
inline double PairSpeed(const Fabric& fabric, const NetworkView& view, size_t source, size_t destination, size_t rail) {
  return std::min(view.SpeedOf(fabric.Nic(source, rail)), view.SpeedOf(fabric.Nic(destination, rail)));
}

// Moves the node's bytes left on dead rails to live rails, by their speeds. A transfer between nodes that no live rail
// joins stays.
inline void LeaveDeadRails(const Fabric& fabric, size_t node, NetworkView& view) {
  const absl::Span<const uint32_t> active = view.ActiveFrom(node);
  for (const uint32_t transfer : std::vector<uint32_t>(active.begin(), active.end())) {
    const Path path = view.PathOf(transfer);
    const auto speed = [&](size_t rail) {
      return PairSpeed(fabric, view, path.source_node, path.destination_node, rail);
    };
    if (speed(path.source_rail) > 0) continue;
    double sum = 0;
    for (size_t rail = 0; rail < fabric.rails(); ++rail) sum += speed(rail);
    const double bytes = view.BytesLeft(transfer);
    double rest = sum;
    for (size_t rail = 0; rail < fabric.rails() && rest > 0; ++rail) {
      if (speed(rail) <= 0) continue;
      Path to = path;
      to.source_rail = to.destination_rail = static_cast<uint16_t>(rail);
      rest -= speed(rail);
      // The last rail also takes the remainder of the rounding.
      view.Move(transfer, rest > 0 ? bytes * speed(rail) / sum : view.BytesLeft(transfer), to);
    }
  }
}

}  // namespace railsd::sim

#endif  // RAILSD_SIM_POLICIES_SPREAD_H_
