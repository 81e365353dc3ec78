// Policies: each turns a matrix between GPUs into transfers. Each family has a file, which cites its source.
#ifndef RAILSD_SIM_POLICIES_POLICY_H_
#define RAILSD_SIM_POLICIES_POLICY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "client/workload/workload.h"
#include "sim/fabric.h"
#include "sim/network/transfer.h"
#include "sim/simulate.h"

namespace railsd::sim {

struct PolicyInput {
  const Fabric& fabric;
  const rails::workload::TrafficMatrix& matrix;
  const std::vector<double>& speeds;  // of NICs at the start; changes at time 0 included
  double bound_seconds = 0;           // BoundSeconds()
  uint64_t seed = 1;
  uint64_t chunk_bytes = 1 << 20;
  uint64_t min_chunk_bytes = 8 << 10;

  // Speed of the pair's rail: 0 when it is dead at either end.
  double SpeedOf(size_t source, size_t destination, size_t rail) const {
    return std::min(speeds[fabric.Nic(source, rail)], speeds[fabric.Nic(destination, rail)]);
  }
  bool IsAlive(size_t node, size_t rail) const { return speeds[fabric.Nic(node, rail)] > 0; }
};

// Functions of one policy. They are pure; errors are those of Simulate().
struct PolicyEntry {
  PolicyInfo info;
  absl::StatusOr<TransferPlan> (*plan)(const PolicyInput& input) = nullptr;   // null: the floor, which needs no network
  std::unique_ptr<Reaction> (*reaction)(const PolicyInput& input) = nullptr;  // null: does not react
  bool rail_scheduler = false;  // packet mode: RailScheduler chooses what NICs send; else connections in turn
};

// In the order of Policies().
const std::vector<PolicyEntry>& PolicyTable();

// Mixes numbers into a hash that is the same everywhere.
inline uint64_t MixHash(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}
inline uint64_t FlowHash(uint64_t source_rank, uint64_t destination_rank, uint64_t seed) {
  return MixHash(MixHash(MixHash(seed) + source_rank) + destination_rank);
}

// The rails that are alive at both nodes; UNAVAILABLE when there is none.
absl::StatusOr<std::vector<uint16_t>> UsableRails(const PolicyInput& input, size_t source, size_t destination);

// pinned.cc
absl::StatusOr<TransferPlan> PlanPinned(const PolicyInput& input);
absl::StatusOr<TransferPlan> PlanAligned(const PolicyInput& input);
// ecmp.cc
absl::StatusOr<TransferPlan> PlanEcmp(const PolicyInput& input);
std::unique_ptr<Reaction> ReactAsPlb(const PolicyInput& input);
// spray.cc
absl::StatusOr<TransferPlan> PlanRoundRobin(const PolicyInput& input);
absl::StatusOr<TransferPlan> PlanReps(const PolicyInput& input);
std::unique_ptr<Reaction> ReactAsReps(const PolicyInput& input);
// sender_lpt.cc
absl::StatusOr<TransferPlan> PlanLptFlows(const PolicyInput& input);
absl::StatusOr<TransferPlan> PlanRailsPaper(const PolicyInput& input);
// planner.cc
absl::StatusOr<TransferPlan> PlanByPlanner(const PolicyInput& input);
std::unique_ptr<Reaction> ReactByLateBinding(const PolicyInput& input);
absl::StatusOr<TransferPlan> PlanOwnRail(const PolicyInput& input);
// fast.cc
absl::StatusOr<TransferPlan> PlanFast(const PolicyInput& input);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_POLICIES_POLICY_H_
