#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "sim/run/run.h"
#include "sim/simulate.h"

namespace railsd::sim {
namespace {

constexpr size_t kTimelineBins = 80;

// The busiest NIC over the mean of the NICs of the busiest node; NICs without speed at the start do not count.
// `speeds`: at the start, by NIC, as `busy`.
double Imbalance(const std::vector<double>& busy, const std::vector<double>& speeds, size_t rails) {
  double most = 0;
  double mean = 0;
  for (size_t first = 0; first + rails <= busy.size(); first += rails) {
    double sum = 0;
    size_t live = 0;
    for (size_t nic = first; nic < first + rails; ++nic) {
      most = std::max(most, busy[nic]);
      sum += busy[nic];
      live += speeds[nic] > 0 ? 1 : 0;
    }
    if (live > 0) mean = std::max(mean, sum / static_cast<double>(live));
  }
  return mean > 0 ? most / mean : 1;
}

double Largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

Details DetailsOf(Outcome outcome) {
  Details details;
  for (const double end : outcome.pair_finish_seconds) {
    if (end > 0) details.pair_ends.push_back(end);
  }
  std::sort(details.pair_ends.begin(), details.pair_ends.end());
  details.send_busy = std::move(outcome.send_busy_seconds);
  details.receive_busy = std::move(outcome.receive_busy_seconds);
  details.seconds = outcome.seconds;
  details.bound_seconds = outcome.bound_seconds;
  details.timeline = std::move(outcome.timeline);
  return details;
}

void AddOutcome(const Outcome& outcome, const std::vector<double>& speeds, size_t rails, PolicyResult* result) {
  ++result->exchanges;
  result->network_seconds += outcome.seconds;
  result->bound_seconds += outcome.bound_seconds;
  result->send_imbalance = std::max(result->send_imbalance, Imbalance(outcome.send_busy_seconds, speeds, rails));
  result->receive_imbalance =
      std::max(result->receive_imbalance, Imbalance(outcome.receive_busy_seconds, speeds, rails));
  result->queue_peak_bytes =
      std::max({result->queue_peak_bytes, Largest(outcome.queue_peak_bytes), Largest(outcome.spine_queue_peak_bytes)});
  result->moves += outcome.moves;
  result->dropped_packets += outcome.dropped_packets;
  result->marked_packets += outcome.marked_packets;
  result->paused_seconds += outcome.paused_seconds;
  result->unfinished_bytes += outcome.unfinished_bytes;
}

// Sums over the steps, by direction: dispatch, combine.
using DirectionSums = std::array<double, 2>;

void AddIteration(const Scenario& scenario, const DirectionSums& seconds, const DirectionSums& counts,
                  PolicyResult* result) {
  if (!IsModel(scenario) || counts[0] == 0 || counts[1] == 0) return;
  result->iteration =
      Iteration(ShapeOf(scenario), scenario.tokens, seconds[0] / counts[0], seconds[1] / counts[1], scenario.compute);
}

// True for an error that becomes a result: this fabric does not allow the policy.
bool CannotRun(const absl::Status& status) { return absl::IsFailedPrecondition(status) || absl::IsUnavailable(status); }

}  // namespace

absl::StatusOr<PolicyResult> RunPolicy(const Scenario& scenario, const Traffic& traffic, const std::string& policy,
                                       bool detailed) {
  const Fabric fabric = FabricOf(scenario, traffic.nodes);
  std::vector<double> speeds;  // at the start
  PolicyResult result;
  result.policy = policy;
  DirectionSums seconds = {};
  DirectionSums counts = {};
  for (size_t i = 0; i < traffic.exchanges.size(); ++i) {
    const Exchange& exchange = traffic.exchanges[i];
    const bool keep = detailed && i == 0;
    absl::StatusOr<Outcome> outcome = Simulate({.fabric = fabric,
                                                .matrix = exchange.ranks,
                                                .policy = policy,
                                                .mode = scenario.mode,
                                                .fluid = scenario.fluid,
                                                .packet = scenario.packet,
                                                .seed = scenario.seed + i,
                                                .chunk_bytes = scenario.chunk_bytes,
                                                .min_chunk_bytes = scenario.min_chunk_bytes,
                                                .timeline_bins = keep ? kTimelineBins : 0});
    if (!outcome.ok() && CannotRun(outcome.status())) {
      PolicyResult refused;
      refused.policy = policy;
      refused.error = std::string(outcome.status().message());
      return refused;
    }
    if (!outcome.ok()) return outcome.status();
    FixedSeconds fixed;
    if (scenario.count_fixed_cost) {
      fixed = FixedSecondsOf(scenario.fixed_cost, exchange.ranks, scenario.gpus, outcome->shares);
    }
    if (speeds.empty()) speeds = SpeedPeriods(fabric).front().speeds;
    AddOutcome(*outcome, speeds, fabric.rails(), &result);
    result.fixed.Add(fixed);
    seconds[exchange.combine ? 1 : 0] += outcome->seconds + fixed.Sum();
    counts[exchange.combine ? 1 : 0] += 1;
    if (keep) result.details = DetailsOf(*std::move(outcome));
  }
  const double gpus = static_cast<double>(traffic.nodes * scenario.gpus);
  if (result.seconds() > 0 && std::isfinite(result.seconds())) {
    result.bus_bytes_per_second = static_cast<double>(traffic.bytes_between_nodes) / (gpus * result.seconds());
  }
  AddIteration(scenario, seconds, counts, &result);
  return result;
}

}  // namespace railsd::sim
