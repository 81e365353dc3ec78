// A cluster of equal nodes. Each node plans alone what it sends, by the real planner with a ledger of its own, as the
// daemons do. The result is the bytes that every NIC sends and receives.
//
// Time is that of the model that the planner is built on: an exchange takes as long as its busiest NIC, sending or
// receiving, needs at its speed. There is no latency, no protocol and no contention in the switches.
#ifndef RAILSD_SIM_PLAN_CLUSTER_H_
#define RAILSD_SIM_PLAN_CLUSTER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "agent/plan/plan.h"
#include "client/workload/workload.h"

namespace railsd::sim {

struct ClusterOptions {
  size_t nodes = 4;
  std::vector<double> rail_speeds;  // bytes per second, the same on every node; 0: the rail is dead everywhere
  uint32_t ranks_per_node = 1;      // ends of the matrices that belong to one node
  PlanOptions plan;
};

// Bytes per NIC; index node * rails + rail.
struct NicBytes {
  size_t rails = 0;
  std::vector<uint64_t> sent;
  std::vector<uint64_t> received;
  void Add(const NicBytes& other);
};

// How even and how fast. 1 is the best value of all three ratios; an exchange of no bytes has it.
struct Balance {
  // Busiest rail over the mean of the node's rails, each by its speed, at the worst node.
  double send_max_over_mean = 1;
  double receive_max_over_mean = 1;
  double seconds = 0;
  double bound_seconds = 0;  // max over nodes of max(out, in) / sum of speeds
  double CompletionOverBound() const { return bound_seconds > 0 ? seconds / bound_seconds : 1; }
};
Balance Measure(const NicBytes& bytes, const std::vector<double>& rail_speeds);

// Keeps the ledgers from exchange to exchange. Not for several threads at once.
class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);

  // Plans one exchange: bytes between ranks (rank r is on node r / ranks_per_node). Bytes that stay on a node use no
  // NIC. Errors: INVALID_ARGUMENT for a matrix of another size, and BuildPlan's.
  absl::Status Run(const rails::workload::TrafficMatrix& ranks, NicBytes* bytes);

 private:
  absl::Status PlanPair(size_t source, size_t destination, const rails::workload::TrafficMatrix& ranks,
                        NicBytes* bytes);

  const ClusterOptions options_;
  std::vector<PlanRail> rails_;
  std::vector<Ledger> ledgers_;  // per node
  std::vector<PlanFlow> flows_;
  PlanWorkspace workspace_;
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_PLAN_CLUSTER_H_
