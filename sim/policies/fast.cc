// fast: stages in which every node sends to one node and receives from one.
//
// After FAST (arXiv 2505.09764): traffic is evened out over the NICs inside each node, and the matrix between nodes is
// decomposed into permutations (Birkhoff), which run one after another. No NIC ever receives from two senders, and the
// stages together take no longer than the busiest node. A stage begins when the stage before has ended everywhere.
#include <algorithm>
#include <vector>

#include "sim/policies/birkhoff.h"
#include "sim/policies/flows.h"
#include "sim/policies/plan_builder.h"

namespace railsd::sim {
namespace {

// The part of a pair's bytes that each rail gets, by the speeds of the pair.
absl::StatusOr<std::vector<double>> RailParts(const PolicyInput& input, size_t source, size_t destination) {
  if (absl::Status status = UsableRails(input, source, destination).status(); !status.ok()) return status;
  std::vector<double> parts(input.fabric.rails());
  double sum = 0;
  for (size_t rail = 0; rail < parts.size(); ++rail) sum += input.SpeedOf(source, destination, rail);
  for (size_t rail = 0; rail < parts.size(); ++rail) parts[rail] = input.SpeedOf(source, destination, rail) / sum;
  return parts;
}

// Bytes between nodes. Adds the bytes that move inside nodes to `builder`.
absl::StatusOr<std::vector<uint64_t>> SumByNode(const PolicyInput& input, PlanBuilder* builder) {
  std::vector<uint64_t> cells(input.fabric.nodes * input.fabric.nodes, 0);
  const absl::Status status = ForEachPair(input, [&](size_t source, size_t destination, const auto& flows) {
    const absl::StatusOr<std::vector<double>> parts = RailParts(input, source, destination);
    if (!parts.ok()) return parts.status();
    builder->Begin(source, destination);
    for (const GpuFlow& flow : flows) {
      cells[source * input.fabric.nodes + destination] += flow.bytes;
      for (size_t rail = 0; rail < parts->size(); ++rail) {
        builder->Add(flow.source_gpu, flow.destination_gpu, static_cast<uint16_t>(rail),
                     static_cast<double>(flow.bytes) * (*parts)[rail]);
      }
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return cells;
}

}  // namespace

absl::StatusOr<TransferPlan> PlanFast(const PolicyInput& input) {
  const size_t nodes = input.fabric.nodes;
  PlanBuilder builder(input, Sharing::kByWeight);
  absl::StatusOr<std::vector<uint64_t>> cells = SumByNode(input, &builder);
  if (!cells.ok()) return cells.status();
  TransferPlan plan = builder.Take();
  plan.transfers.clear();
  for (const Stage& stage : Decompose(*cells, nodes)) {
    bool used = false;
    for (size_t source = 0; source < nodes; ++source) {
      const size_t destination = stage.destinations[source];
      uint64_t& left = (*cells)[source * nodes + destination];
      const uint64_t bytes = std::min(left, stage.bytes);
      if (bytes == 0) continue;
      left -= bytes;
      used = true;
      const absl::StatusOr<std::vector<double>> parts = RailParts(input, source, destination);
      for (size_t rail = 0; rail < parts->size(); ++rail) {
        if ((*parts)[rail] <= 0) continue;
        const auto on = static_cast<uint16_t>(rail);
        plan.transfers.push_back({.path = {.source_node = static_cast<uint32_t>(source),
                                           .destination_node = static_cast<uint32_t>(destination),
                                           .source_rail = on,
                                           .destination_rail = on},
                                  .stage = plan.stages - 1,
                                  .bytes = static_cast<double>(bytes) * (*parts)[rail]});
      }
    }
    plan.stages += used;
  }
  return plan;
}

}  // namespace railsd::sim
