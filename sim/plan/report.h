// The report of railsctl-plan: how a workload is planned under each policy.
#ifndef RAILSD_SIM_PLAN_REPORT_H_
#define RAILSD_SIM_PLAN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/cluster.h"

namespace railsd::sim {

// Worst and mean over exchanges.
struct Figure {
  double worst = 1;
  double mean = 1;
};

struct PolicyReport {
  Policy policy = Policy::kLpt;
  Figure send;        // max/mean over rails of a node, at the worst node of each exchange
  Figure receive;     // the same
  Figure completion;  // over the bound
  Balance in_all;     // bytes of all exchanges together; time and bound are sums over exchanges
};

struct PlanReport {
  size_t nodes = 0;
  uint32_t ranks_per_node = 0;
  std::vector<double> rail_speeds;
  uint64_t chunk_bytes = 0;
  uint64_t min_chunk_bytes = 0;
  size_t steps = 0;
  size_t exchanges = 0;
  uint64_t bytes = 0;  // between nodes, all exchanges
  double scale = 1;    // of the volumes of the file
  std::vector<PolicyReport> policies;
};

// Collects the exchanges of one policy.
class PolicyTally {
 public:
  void Add(const NicBytes& bytes, const std::vector<double>& rail_speeds);
  PolicyReport Finish(Policy policy, const std::vector<double>& rail_speeds) const;
  size_t exchanges() const { return exchanges_; }
  uint64_t bytes() const { return bytes_; }

 private:
  NicBytes total_;
  Figure send_{1, 0};
  Figure receive_{1, 0};
  Figure completion_{1, 0};
  double seconds_ = 0;
  double bound_seconds_ = 0;
  size_t exchanges_ = 0;
  uint64_t bytes_ = 0;
};

std::string RenderJson(const PlanReport& report);
std::string RenderTable(const PlanReport& report, bool color);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_PLAN_REPORT_H_
