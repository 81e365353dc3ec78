// Results of a simulation: points of a scenario, and each policy at each point. All times in seconds.
#ifndef RAILSD_SIM_REPORT_RESULTS_H_
#define RAILSD_SIM_REPORT_RESULTS_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/fabric.h"
#include "sim/models/iteration.h"
#include "sim/network/outcome.h"
#include "sim/scenario/fixed_cost.h"

namespace railsd::sim {

// The policy that is a floor rather than a way to send; it never counts as the best.
inline constexpr std::string_view kFloorPolicy = "optimum";

inline constexpr double kTie = 1e-3;

// The data of plots, from the first exchange of a point.
struct Details {
  std::vector<double> pair_ends;     // of pairs of nodes that exchange, ascending; infinite: some bytes never arrive
  std::vector<double> send_busy;     // by NIC: node * rails + rail
  std::vector<double> receive_busy;  // the same
  double seconds = 0;                // without fixed cost
  double bound_seconds = 0;
  Timeline timeline;

  bool Ends() const { return std::isfinite(seconds); }
};

// Sums over the exchanges of a point, unless said otherwise.
struct PolicyResult {
  std::string policy;
  std::string error;  // why the policy cannot run at this point; the rest is empty then
  size_t exchanges = 0;
  double network_seconds = 0;  // infinite: some bytes never arrive
  FixedSeconds fixed;
  double bound_seconds = 0;
  double bus_bytes_per_second = 0;  // of a GPU: bytes that leave its node, over the time
  // The busiest NIC over the mean of the NICs of the busiest node; the worst exchange.
  double send_imbalance = 1;
  double receive_imbalance = 1;
  double queue_peak_bytes = 0;  // packet mode
  uint64_t moves = 0;           // how often the policy moved bytes to another path
  uint64_t dropped_packets = 0;
  uint64_t marked_packets = 0;
  double paused_seconds = 0;
  uint64_t unfinished_bytes = 0;
  std::optional<IterationTime> iteration;  // of a model
  std::optional<Details> details;

  // Whether all bytes arrive. Only for a policy that can run.
  bool Ends() const { return std::isfinite(network_seconds); }
  double seconds() const { return network_seconds + fixed.Sum(); }
  double OverBound() const { return bound_seconds > 0 ? seconds() / bound_seconds : 1; }
  // The time by which points are compared: that of an iteration if there is one, otherwise that of all exchanges.
  double PointSeconds() const { return iteration.has_value() ? iteration->seconds : seconds(); }
  double FixedShare() const { return seconds() > 0 ? fixed.Sum() / seconds() : 0; }
};

struct PointResult {
  std::vector<std::string> values;  // of the swept keys
  std::string workload;
  size_t nodes = 0;
  size_t gpus = 0;
  std::vector<double> rail_speeds;
  std::vector<RailChange> changes;  // by time
  bool packets = false;             // packet mode
  size_t exchanges = 0;
  uint64_t bytes_between_nodes = 0;
  double scale = 1;  // of the volumes of the file
  std::vector<PolicyResult> policies;

  // The first policy with the least time, without the floor; nullopt if no policy ends.
  std::optional<size_t> Best() const;
  double BoundSeconds() const;  // of all exchanges; 0 when no policy can run
  // True if a policy ends and no other one except the floor is faster. Differences below kTie do not count, because
  // they come from the model.
  bool IsBest(size_t index) const;
  // The time of the best policy, as people read it; "-" when none ends.
  std::string BestTime() const;
  // "planner", or of a tie "planner and reps"; "" when no policy ends.
  std::string BestNames() const;
};

struct Report {
  std::string title;               // the scenario's file name, or the workload
  std::vector<std::string> swept;  // keys
  std::vector<PointResult> points;
};

// "zipf exponent" of "workload.zipf_exponent".
std::string KeyLabel(const std::string& key);
// "nodes 16, skew 0.6", or the workload when nothing is swept.
std::string PointLabel(const Report& report, const PointResult& point);
// The value of a swept key at a point, as people read it; "none" when it is empty.
std::string ValueLabel(const std::string& value);
// The kind of BestTime(): "iteration time" where points have one, or "completion time".
std::string_view TimeName(const Report& report);
// "zipf: 16 nodes x 8 GPUs, 8 rails of 400 Gbit/s; 2 exchanges, 1.2 GiB between nodes".
std::string PointFacts(const PointResult& point);

// The facts that all points have in common: "8 GPUs a node, 8 rails of 400 Gbit/s".
std::string CommonFacts(const Report& report);
// "a", "a and b", "a, b and c", "a, b, c and 2 more".
std::string JoinNames(const std::vector<std::string>& names);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_RESULTS_H_
