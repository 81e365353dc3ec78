// Simulates every policy at every point, on all processors. Results do not depend on how many there are.
#ifndef RAILSD_SIM_RUN_RUN_H_
#define RAILSD_SIM_RUN_RUN_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/report/results.h"
#include "sim/scenario/points.h"
#include "sim/scenario/traffic.h"

namespace railsd::sim {

// One policy on the exchanges of one point. A policy that the fabric does not allow gives a result with `error`; other
// errors are those of Simulate().
absl::StatusOr<PolicyResult> RunPolicy(const Scenario& scenario, const Traffic& traffic, const std::string& policy,
                                       bool detailed);

struct RunOptions {
  std::string title;
  size_t threads = 1;
  size_t detailed_points = 0;  // the first points that keep what plots need
  // Called after each policy of each point, by one thread at a time: the part of the work that is done, 0 to 1.
  std::function<void(double)> progress = nullptr;
};

struct RunOutcome {
  Report report;
  absl::Status status;
  size_t failed_point = 0;  // if not OK: the first point that failed
};

// Stops at the first failure.
RunOutcome RunPoints(const Points& points, const RunOptions& options);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_RUN_RUN_H_
