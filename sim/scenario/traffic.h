// The exchanges of one point as matrices between GPUs.
#ifndef RAILSD_SIM_SCENARIO_TRAFFIC_H_
#define RAILSD_SIM_SCENARIO_TRAFFIC_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "client/workload/workload.h"
#include "sim/scenario/scenario.h"

namespace railsd::sim {

struct Exchange {
  size_t step = 0;
  bool combine = false;  // or dispatch
  rails::workload::TrafficMatrix ranks;
};

struct Traffic {
  size_t nodes = 0;
  double scale = 1;  // of the volumes of a file
  std::vector<Exchange> exchanges = {};
  uint64_t bytes_between_nodes = 0;
};

// Reads the file of the scenario, or draws the traffic. Returns errors of reading and drawing; INVALID_ARGUMENT: the
// file's size is not that of the cluster, or the exchanges need too much memory.
absl::StatusOr<Traffic> MakeTraffic(const Scenario& scenario);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SCENARIO_TRAFFIC_H_
