// The flows between GPUs of different nodes, in the order in which each node serves its destinations: its successor
// first.
#ifndef RAILSD_SIM_POLICIES_FLOWS_H_
#define RAILSD_SIM_POLICIES_FLOWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/policies/policy.h"

namespace railsd::sim {

struct GpuFlow {
  uint32_t source_gpu = 0, destination_gpu = 0;  // places in their nodes
  uint64_t bytes = 0;
};

// The flows with bytes from one node to another; replaces what `flows` has.
inline void CollectFlows(const PolicyInput& input, size_t source, size_t destination, std::vector<GpuFlow>* flows) {
  const size_t gpus = input.fabric.gpus_per_node;
  flows->clear();
  for (uint32_t s = 0; s < gpus; ++s) {
    for (uint32_t d = 0; d < gpus; ++d) {
      const uint64_t bytes = input.matrix.at(source * gpus + s, destination * gpus + d);
      if (bytes > 0) flows->push_back({s, d, bytes});
    }
  }
}

// Calls visit(source, destination, flows) for each pair of different nodes that exchanges something. `visit` returns a
// status; the first error ends it.
template <typename Visit>
absl::Status ForEachPair(const PolicyInput& input, Visit visit) {
  const size_t nodes = input.fabric.nodes;
  std::vector<GpuFlow> flows;
  for (size_t source = 0; source < nodes; ++source) {
    for (size_t step = 1; step < nodes; ++step) {
      const size_t destination = (source + step) % nodes;
      CollectFlows(input, source, destination, &flows);
      if (flows.empty()) continue;
      if (absl::Status status = visit(source, destination, flows); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace railsd::sim

#endif  // RAILSD_SIM_POLICIES_FLOWS_H_
