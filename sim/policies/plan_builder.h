// Builds a TransferPlan, one pair of nodes after the other: merges flows of one path, and counts bytes inside nodes.
#ifndef RAILSD_SIM_POLICIES_PLAN_BUILDER_H_
#define RAILSD_SIM_POLICIES_PLAN_BUILDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/policies/policy.h"

namespace railsd::sim {

// Bytes of a GPU that leave or arrive over the NIC of another GPU of its node cross the node at R1: once at the sender,
// from the GPU to the one whose NIC it is, and once at the receiver.
class PlanBuilder {
 public:
  // Counts the bytes that stay inside nodes.
  PlanBuilder(const PolicyInput& input, Sharing sharing);

  // Begins the pair that Add() adds to. Makes the transfers of the pair before.
  void Begin(size_t source_node, size_t destination_node);
  // Adds a piece of the flow between two GPUs, given by their places in their nodes.
  void Add(size_t source_gpu, size_t destination_gpu, uint16_t source_rail, uint16_t destination_rail, uint32_t spine,
           double bytes);
  // Adds a piece that stays on one rail.
  void Add(size_t source_gpu, size_t destination_gpu, uint16_t rail, double bytes) {
    Add(source_gpu, destination_gpu, rail, rail, Path::kNoSpine, bytes);
  }
  TransferPlan Take();

 private:
  struct Piece {
    uint16_t source_rail = 0, destination_rail = 0;
    uint32_t spine = Path::kNoSpine;
    double bytes = 0, largest = 0;
    uint32_t next = UINT32_MAX;  // the next piece of the same rails, over another spine
  };
  static constexpr uint32_t kItself = UINT32_MAX;  // the NIC reads and writes the flow's GPU
  void End();
  void CountInner(size_t node, size_t gpu, size_t rail, bool sends, double bytes);

  const PolicyInput& input_;
  TransferPlan plan_;
  size_t source_ = 0, destination_ = 0;
  std::vector<Piece> pieces_;
  std::vector<uint32_t> first_;  // by pair of rails: the first piece
  std::vector<uint32_t> over_;   // by GPU and rail: the GPU that owns the rail's NIC, or kItself
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_POLICIES_PLAN_BUILDER_H_
