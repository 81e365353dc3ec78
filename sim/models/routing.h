// Draws the experts of the tokens of one layer, and makes the matrices of the layer's two exchanges.
#ifndef RAILSD_SIM_MODELS_ROUTING_H_
#define RAILSD_SIM_MODELS_ROUTING_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/workload/workload.h"
#include "sim/models/model_shape.h"

namespace railsd::sim {

// How often a token crosses when several of its experts are at one place.
enum class Copies : uint8_t {
  kExpert,  // once for each expert
  kRank,    // once for each GPU
  kNode,    // once for each node, to the GPU with the sender's index there; it is then forwarded inside the node
};

struct RoutingOptions {
  size_t nodes = 4;
  uint32_t gpus_per_node = 8;
  uint64_t tokens_per_rank = 4096;
  double skew = 0.6;             // popularity of experts falls as 1 / place^skew; 0: all alike
  size_t group_nodes = 0;        // nodes that hold all experts once; 0: as many as possible
  uint32_t experts_per_gpu = 0;  // most that a GPU holds; 0: any number
  Copies copies = Copies::kExpert;
  uint64_t seed = 1;
  bool dispatch = true, combine = true;  // make these matrices; the others stay empty
};

struct LayerExchange {
  rails::workload::TrafficMatrix dispatch;  // bytes between GPUs
  rails::workload::TrafficMatrix combine;   // the way back
};

// Each group of nodes holds all experts once, with the same number on each node. A token stays in the group of its
// sender. Unless `group_nodes` is set, a group has as many nodes as possible: at most all nodes, at most one node for
// each expert, and at most so many that `node_limit` nodes still have top_k experts. The experts of a node are spread
// over its GPUs. If a node has fewer experts than GPUs, several of its GPUs hold the same expert, and a sender's index
// in its node decides which of them it uses.
//
// INVALID_ARGUMENT: experts cannot lie evenly, more experts than fit into the GPUs, top_k above the experts or above
// what `node_limit` nodes hold, or a size that is 0 or too large.
absl::StatusOr<LayerExchange> DrawLayer(const ModelShape& shape, const RoutingOptions& options);

// Returns the error of DrawLayer() without drawing.
absl::Status CheckLayer(const ModelShape& shape, const RoutingOptions& options);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_MODELS_ROUTING_H_
