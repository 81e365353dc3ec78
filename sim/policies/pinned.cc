// NCCL's all-to-all of sends and receives, one connection for each pair of GPUs.
//
// pinned: without PXN. A GPU sends over its own NIC to the NIC of the destination GPU; when their rails differ the
// connection crosses a spine, which ECMP chooses by a hash of the connection (RFC 2992).
// aligned: with PXN (NCCL 2.12; NVIDIA's blog "Doubling all2all Performance with NVIDIA Collective Communication
// Library 2.12", 2022). A GPU moves the bytes inside its node to the GPU whose NIC is on the destination's rail, which
// joins the messages of the node's GPUs to that destination into one connection.
//
// A GPU whose NIC is dead at the start uses the next NIC of its node that is alive.
#include "absl/strings/str_cat.h"
#include "sim/policies/flows.h"
#include "sim/policies/plan_builder.h"

namespace railsd::sim {
namespace {

absl::StatusOr<uint16_t> NearestNic(const PolicyInput& input, size_t node, size_t gpu) {
  const size_t rails = input.fabric.rails();
  for (size_t step = 0; step < rails; ++step) {
    const size_t rail = (input.fabric.OwnRail(gpu) + step) % rails;
    if (input.IsAlive(node, rail)) return static_cast<uint16_t>(rail);
  }
  return absl::UnavailableError(absl::StrCat("node ", node, " exchanges bytes, and none of its rails is alive"));
}

// The destination's rail, or the next one that is alive at both nodes.
uint16_t NearestSharedRail(const std::vector<uint16_t>& usable, size_t rail) {
  for (const uint16_t other : usable) {
    if (other >= rail) return other;
  }
  return usable.front();
}

}  // namespace

absl::StatusOr<TransferPlan> PlanPinned(const PolicyInput& input) {
  const Fabric& fabric = input.fabric;
  PlanBuilder builder(input, Sharing::kByWeight);
  const absl::Status status = ForEachPair(input, [&](size_t source, size_t destination, const auto& flows) {
    builder.Begin(source, destination);
    for (const GpuFlow& flow : flows) {
      const absl::StatusOr<uint16_t> out = NearestNic(input, source, flow.source_gpu);
      if (!out.ok()) return out.status();
      const absl::StatusOr<uint16_t> in = NearestNic(input, destination, flow.destination_gpu);
      if (!in.ok()) return in.status();
      uint32_t spine = Path::kNoSpine;
      if (*out != *in) {
        if (fabric.spines == 0) {
          return absl::FailedPreconditionError(absl::StrCat("policy pinned sends from rail ", *out, " to rail ", *in,
                                                            ", and the fabric has no spines; give it some"));
        }
        const uint64_t hash = FlowHash(source * fabric.gpus_per_node + flow.source_gpu,
                                       destination * fabric.gpus_per_node + flow.destination_gpu, input.seed);
        spine = static_cast<uint32_t>(hash % fabric.spines);
      }
      builder.Add(flow.source_gpu, flow.destination_gpu, *out, *in, spine, static_cast<double>(flow.bytes));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return builder.Take();
}

absl::StatusOr<TransferPlan> PlanAligned(const PolicyInput& input) {
  PlanBuilder builder(input, Sharing::kByWeight);
  const absl::Status status = ForEachPair(input, [&](size_t source, size_t destination, const auto& flows) {
    const absl::StatusOr<std::vector<uint16_t>> usable = UsableRails(input, source, destination);
    if (!usable.ok()) return usable.status();
    builder.Begin(source, destination);
    for (const GpuFlow& flow : flows) {
      const uint16_t rail = NearestSharedRail(*usable, input.fabric.OwnRail(flow.destination_gpu));
      builder.Add(flow.source_gpu, flow.destination_gpu, rail, static_cast<double>(flow.bytes));
    }
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  TransferPlan plan = builder.Take();
  for (Transfer& transfer : plan.transfers) transfer.weight = 1;  // the node's messages share one connection
  return plan;
}

}  // namespace railsd::sim
