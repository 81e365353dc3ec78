// The cluster that is simulated: nodes with GPUs and NICs, one switch for each rail, spines between the switches.
//
// NIC r of every node hangs on the switch of rail r, which joins all nodes and never blocks inside. A transfer between
// two NICs of one rail crosses that switch only. A transfer between NICs of different rails crosses a spine: from the
// switch of the source's rail over one link to the spine, and over one link to the switch of the destination's rail.
// Every link carries both directions at once.
#ifndef RAILSD_SIM_FABRIC_H_
#define RAILSD_SIM_FABRIC_H_

#include <cstddef>
#include <limits>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace railsd::sim {

// From `at` on the NICs of a rail have another speed.
struct RailChange {
  absl::Duration at = {};  // since the start of the transfers; 0 or more
  size_t rail = 0;
  std::optional<size_t> node = {};  // only this node's NIC; none: the rail's NICs of every node
  double bytes_per_second = 0;      // the new speed; 0: the rail is dead
  friend bool operator==(const RailChange&, const RailChange&) = default;
};

struct Fabric {
  size_t nodes = 0;
  // GPU g of node n is rank n * gpus_per_node + g. Its own NIC is g modulo the number of rails.
  size_t gpus_per_node = 8;
  std::vector<double> rail_bytes_per_second =
      {};  // R2, one for each rail, the same on every node; 0: dead from the start
  // R1: what a GPU sends to, and receives from, the other GPUs of its node.
  double inner_bytes_per_second = std::numeric_limits<double>::infinity();
  absl::Duration propagation = absl::ZeroDuration();  // of each link, one way
  size_t spines = 0;                                  // 0: transfers between rails are not possible
  // Speed of the link between one rail's switch and one spine, each way. 0: the fabric does not block. All links of a
  // switch together carry what its NICs can send, and each alone carries one NIC at full speed, so a link has
  // max(1, nodes / spines) * (speed of the fastest NIC ever). Flows that a hash lays on one link still share it.
  double spine_bytes_per_second = 0;
  std::vector<RailChange> changes = {};  // in any order; if two are at the same time, the later in the list counts

  size_t rails() const { return rail_bytes_per_second.size(); }
  size_t ranks() const { return nodes * gpus_per_node; }
  size_t nics() const { return nodes * rails(); }
  size_t Nic(size_t node, size_t rail) const { return node * rails() + rail; }
  size_t OwnRail(size_t gpu) const { return gpu % rails(); }
  double SpineLinkSpeed() const;
};

// INVALID_ARGUMENT names the field and its value: no node, no GPU or no rail, a speed that is negative or not a number
// (inner_bytes_per_second alone may be infinite, and must be above 0), a propagation below 0 or above 1 s, a change at
// a negative time or of a rail or node that does not exist. Counts have upper limits, too.
absl::Status Validate(const Fabric& fabric);

// Changes of a fabric by time; changes at the same time keep their order.
std::vector<RailChange> ChangesByTime(const Fabric& fabric);

// Speeds of all NICs (index Fabric::Nic) from `since` until the next element's `since`.
struct SpeedPeriod {
  double since = 0;            // seconds
  std::vector<double> speeds;  // bytes per second
};
// The first period starts at 0. `fabric` must be valid.
std::vector<SpeedPeriod> SpeedPeriods(const Fabric& fabric);
// The nominal speed of each NIC, which a daemon knows even while the NIC is dead: its first speed above 0. 0: never
// alive.
std::vector<double> NominalSpeeds(const std::vector<SpeedPeriod>& periods);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_FABRIC_H_
