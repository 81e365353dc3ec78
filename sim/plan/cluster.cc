#include "sim/plan/cluster.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace railsd::sim {
namespace {

using rails::workload::TrafficMatrix;

// Busiest rail over the mean, by speed, of one direction of one node.
double MaxOverMean(absl::Span<const uint64_t> bytes, const std::vector<double>& speeds, double* busiest_seconds) {
  double sum = 0;
  double sum_of_speeds = 0;
  double most = 0;
  for (size_t i = 0; i < speeds.size(); ++i) {
    sum += static_cast<double>(bytes[i]);
    sum_of_speeds += speeds[i];
    if (bytes[i] == 0) continue;
    most = std::max(
        most, speeds[i] > 0 ? static_cast<double>(bytes[i]) / speeds[i] : std::numeric_limits<double>::infinity());
  }
  *busiest_seconds = std::max(*busiest_seconds, most);
  return sum > 0 ? most * sum_of_speeds / sum : 1;
}

}  // namespace

void NicBytes::Add(const NicBytes& other) {
  rails = other.rails;
  sent.resize(other.sent.size(), 0);
  received.resize(other.received.size(), 0);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] += other.sent[i];
  for (size_t i = 0; i < received.size(); ++i) received[i] += other.received[i];
}

Balance Measure(const NicBytes& bytes, const std::vector<double>& rail_speeds) {
  Balance balance;
  double sum_of_speeds = 0;
  for (const double speed : rail_speeds) sum_of_speeds += speed;
  for (size_t first = 0; first < bytes.sent.size(); first += bytes.rails) {
    const auto sent = absl::MakeConstSpan(bytes.sent).subspan(first, bytes.rails);
    const auto received = absl::MakeConstSpan(bytes.received).subspan(first, bytes.rails);
    balance.send_max_over_mean = std::max(balance.send_max_over_mean, MaxOverMean(sent, rail_speeds, &balance.seconds));
    balance.receive_max_over_mean =
        std::max(balance.receive_max_over_mean, MaxOverMean(received, rail_speeds, &balance.seconds));
    uint64_t out = 0;
    uint64_t in = 0;
    for (const uint64_t b : sent) out += b;
    for (const uint64_t b : received) in += b;
    balance.bound_seconds = std::max(balance.bound_seconds, NodeBoundSeconds(out, in, sum_of_speeds));
  }
  return balance;
}

Cluster::Cluster(const ClusterOptions& options) : options_(options) {
  for (const double speed : options.rail_speeds) rails_.push_back({.speed_bytes_per_s = speed});
  ledgers_.assign(options.nodes, Ledger(rails_.size()));
}

absl::Status Cluster::Run(const TrafficMatrix& ranks, NicBytes* bytes) {
  if (ranks.size() != options_.nodes * options_.ranks_per_node) {
    return absl::InvalidArgumentError(absl::StrCat("a matrix of ", ranks.size(), " ends for ", options_.nodes,
                                                   " nodes of ", options_.ranks_per_node, " ranks"));
  }
  bytes->rails = rails_.size();
  bytes->sent.assign(options_.nodes * rails_.size(), 0);
  bytes->received.assign(options_.nodes * rails_.size(), 0);
  for (size_t source = 0; source < options_.nodes; ++source) {
    // Each node starts with its successor, as rails do.
    for (size_t step = 1; step < options_.nodes; ++step) {
      const absl::Status status = PlanPair(source, (source + step) % options_.nodes, ranks, bytes);
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Cluster::PlanPair(size_t source, size_t destination, const TrafficMatrix& ranks, NicBytes* bytes) {
  const uint32_t per_node = options_.ranks_per_node;
  flows_.clear();
  for (uint32_t s = 0; s < per_node; ++s) {
    for (uint32_t d = 0; d < per_node; ++d) {
      const size_t from = source * per_node + s;
      const size_t to = destination * per_node + d;
      flows_.push_back({.bytes = ranks.at(from, to),
                        .source_local_rank = s,
                        .destination_local_rank = d,
                        .hash = (uint64_t{from} << 32) + to + 1});
    }
  }
  const absl::Status status = BuildPlan(flows_, rails_, PeerIndex(static_cast<uint32_t>(destination)), options_.plan,
                                        &ledgers_[source], &workspace_);
  if (!status.ok()) return status;
  for (size_t rail = 0; rail < rails_.size(); ++rail) {
    bytes->sent[source * rails_.size() + rail] += workspace_.rail_bytes[rail];
    bytes->received[destination * rails_.size() + rail] += workspace_.rail_bytes[rail];
  }
  return absl::OkStatus();
}

}  // namespace railsd::sim
