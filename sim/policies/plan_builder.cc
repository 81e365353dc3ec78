#include "sim/policies/plan_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd::sim {

PlanBuilder::PlanBuilder(const PolicyInput& input, Sharing sharing)
    : input_(input), first_(input.fabric.rails() * input.fabric.rails(), UINT32_MAX) {
  const Fabric& fabric = input.fabric;
  const size_t rails = fabric.rails(), gpus = fabric.gpus_per_node;
  for (size_t gpu = 0; gpu < gpus; ++gpu) {
    for (size_t rail = 0; rail < rails; ++rail) {
      // A rail without a GPU of its own: the NIC reads and writes the flow's GPU directly, and no byte crosses the
      // node. If several GPUs own the NIC, takes the one in the same group of `rails` GPUs as the flow's.
      const bool itself = fabric.OwnRail(gpu) == rail || rail >= gpus;
      over_.push_back(itself ? kItself : static_cast<uint32_t>(std::min(gpu / rails * rails + rail, gpus - 1)));
    }
  }
  plan_.sharing = sharing;
  // Reserves for the most transfers, because reserved memory that stays unused costs nothing.
  plan_.transfers.reserve(std::min(fabric.nodes * fabric.nodes * rails, fabric.ranks() * fabric.ranks()));
  plan_.inner_sent.assign(fabric.ranks(), 0);
  plan_.inner_received.assign(fabric.ranks(), 0);
  for (size_t from = 0; from < fabric.ranks(); ++from) {
    const size_t first = from / fabric.gpus_per_node * fabric.gpus_per_node;
    for (size_t to = first; to < first + fabric.gpus_per_node; ++to) {
      if (from == to) continue;
      const auto bytes = static_cast<double>(input.matrix.at(from, to));
      plan_.inner_sent[from] += bytes;
      plan_.inner_received[to] += bytes;
    }
  }
}

void PlanBuilder::Begin(size_t source_node, size_t destination_node) {
  End();
  source_ = source_node;
  destination_ = destination_node;
}

void PlanBuilder::CountInner(size_t node, size_t gpu, size_t rail, bool sends, double bytes) {
  const uint32_t other = over_[gpu * input_.fabric.rails() + rail];
  if (other == kItself) return;
  const size_t first = node * input_.fabric.gpus_per_node;
  plan_.inner_sent[first + (sends ? gpu : other)] += bytes;
  plan_.inner_received[first + (sends ? other : gpu)] += bytes;
}

void PlanBuilder::Add(size_t source_gpu, size_t destination_gpu, uint16_t source_rail, uint16_t destination_rail,
                      uint32_t spine, double bytes) {
  if (bytes <= 0) return;
  CountInner(source_, source_gpu, source_rail, true, bytes);
  CountInner(destination_, destination_gpu, destination_rail, false, bytes);
  uint32_t& first = first_[source_rail * input_.fabric.rails() + destination_rail];
  uint32_t at = first;
  while (at != UINT32_MAX && pieces_[at].spine != spine) at = pieces_[at].next;
  if (at == UINT32_MAX) {
    at = static_cast<uint32_t>(pieces_.size());
    pieces_.push_back(
        {.source_rail = source_rail, .destination_rail = destination_rail, .spine = spine, .next = first});
    first = at;
  }
  pieces_[at].bytes += bytes;
  pieces_[at].largest = std::max(pieces_[at].largest, bytes);
}

void PlanBuilder::End() {
  for (const Piece& piece : pieces_) {
    first_[piece.source_rail * input_.fabric.rails() + piece.destination_rail] = UINT32_MAX;
    plan_.transfers.push_back({.path = {.source_node = static_cast<uint32_t>(source_),
                                        .destination_node = static_cast<uint32_t>(destination_),
                                        .source_rail = piece.source_rail,
                                        .destination_rail = piece.destination_rail,
                                        .spine = piece.spine},
                               .weight = static_cast<float>(piece.bytes / piece.largest),
                               .bytes = piece.bytes});
  }
  pieces_.clear();
}

TransferPlan PlanBuilder::Take() {
  End();
  return std::move(plan_);
}

absl::StatusOr<std::vector<uint16_t>> UsableRails(const PolicyInput& input, size_t source, size_t destination) {
  std::vector<uint16_t> rails;
  for (size_t rail = 0; rail < input.fabric.rails(); ++rail) {
    if (input.SpeedOf(source, destination, rail) > 0) rails.push_back(static_cast<uint16_t>(rail));
  }
  if (!rails.empty()) return rails;
  return absl::UnavailableError(
      absl::StrCat("node ", source, " sends to node ", destination, ", and no rail is alive at both"));
}

}  // namespace railsd::sim
