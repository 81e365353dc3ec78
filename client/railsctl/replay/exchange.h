// The plan of a replay: steps of one or two phases, each a matrix of bytes between ranks. Pure.
#ifndef RAILS_RAILSCTL_REPLAY_EXCHANGE_H_
#define RAILS_RAILSCTL_REPLAY_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/workload/workload.h"

namespace rails::ctl {

struct ByteCounts {
  uint64_t network = 0;  // between nodes
  uint64_t local = 0;    // between ranks of a node
  uint64_t self = 0;     // from a rank to itself
};

struct Phase {
  std::string name;  // "dispatch" or "combine"
  workload::TrafficMatrix ranks;
  ByteCounts bytes;
};

struct ExchangeStep {
  std::string model;
  uint32_t layer = 0, iteration = 0;
  std::vector<Phase> phases;
};

struct Exchange {
  uint32_t nodes = 0, ranks_per_node = 0;
  double scale_factor = 1;
  std::vector<ExchangeStep> steps;
  uint64_t send_segment_bytes = 0, receive_segment_bytes = 0;  // large enough for every rank and phase

  uint32_t ranks() const { return nodes * ranks_per_node; }
};

struct ExchangeOptions {
  uint32_t nodes = 1, ranks_per_node = 1;
  uint64_t bytes_per_rank = 16 << 20;  // 0: unscaled volumes
  uint32_t ranges_per_flow = 1;
  bool combine = true;
  workload::Spread spread = workload::Spread::kEven;
  uint64_t seed = 1;
};

// `steps`: matrices between nodes, or between all ranks if they have that size.
// INVALID_ARGUMENT: the sizes do not fit, or a volume is out of range.
absl::StatusOr<Exchange> PlanExchange(std::vector<workload::Step> steps, const ExchangeOptions& options);

// Row or column of one rank.
std::vector<uint64_t> RowOf(const workload::TrafficMatrix& matrix, size_t rank);
std::vector<uint64_t> ColumnOf(const workload::TrafficMatrix& matrix, size_t rank);

ByteCounts CountBytes(const workload::TrafficMatrix& ranks, uint32_t ranks_per_node);

// The lower bound: maximum over nodes of max(out, in) / speed, without bytes that stay on their node.
// `node_speeds`: sum of a node's rails in bytes per second. Returns 0 (unknown) if a node exchanges bytes and has no
// speed.
double BoundSeconds(const workload::TrafficMatrix& ranks, uint32_t ranks_per_node,
                    absl::Span<const double> node_speeds);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_EXCHANGE_H_
