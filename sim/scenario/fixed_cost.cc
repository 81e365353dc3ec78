#include "sim/scenario/fixed_cost.h"

#include <vector>

namespace railsd::sim {
namespace {

// Counts of a node's exchanges and flows with other nodes, sent and received ones added.
struct Counts {
  size_t peers = 0;
  size_t flows = 0;
};

std::vector<Counts> CountsOfNodes(const rails::workload::TrafficMatrix& ranks, size_t gpus_per_node) {
  const size_t nodes = ranks.size() / gpus_per_node;
  std::vector<Counts> counts(nodes);
  std::vector<size_t> flows_to(nodes);
  for (size_t node = 0; node < nodes; ++node) {
    flows_to.assign(nodes, 0);
    for (size_t gpu = 0; gpu < gpus_per_node; ++gpu) {
      const uint64_t* cell = ranks.Row(node * gpus_per_node + gpu).data();
      for (size_t& flows : flows_to) {
        for (size_t to = 0; to < gpus_per_node; ++to) flows += *cell++ > 0 ? 1 : 0;
      }
    }
    for (size_t peer = 0; peer < nodes; ++peer) {
      if (peer == node || flows_to[peer] == 0) continue;
      for (const size_t end : {node, peer}) {
        ++counts[end].peers;
        counts[end].flows += flows_to[peer];
      }
    }
  }
  return counts;
}

}  // namespace

void FixedSeconds::Add(const FixedSeconds& other) {
  job += other.job;
  peers += other.peers;
  flows += other.flows;
  shares += other.shares;
  ready += other.ready;
}

FixedSeconds FixedSecondsOf(const FixedCost& cost, const rails::workload::TrafficMatrix& ranks, size_t gpus_per_node,
                            absl::Span<const uint32_t> shares) {
  FixedSeconds most;
  const std::vector<Counts> counts = CountsOfNodes(ranks, gpus_per_node);
  for (size_t n = 0; n < counts.size(); ++n) {
    const Counts& node = counts[n];
    if (node.peers == 0) continue;
    const size_t node_shares = shares.empty() ? node.peers : shares[n];
    const FixedSeconds seconds = {.job = cost.job,
                                  .peers = cost.peer * static_cast<double>(node.peers) / 2,
                                  .flows = cost.flow * static_cast<double>(node.flows) / 2,
                                  .shares = cost.share * static_cast<double>(node_shares) / 2,
                                  .ready = cost.ready};
    if (seconds.Sum() > most.Sum()) most = seconds;
  }
  return most;
}

}  // namespace railsd::sim
