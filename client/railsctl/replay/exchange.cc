#include "client/railsctl/replay/exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/railsctl/replay/layout.h"

namespace rails::ctl {
namespace {

using workload::TrafficMatrix;

absl::StatusOr<TrafficMatrix> RankMatrix(const TrafficMatrix& matrix, const ExchangeOptions& options, uint64_t seed) {
  if (matrix.size() == options.nodes) {
    return workload::SpreadToRanks(matrix, options.ranks_per_node, options.spread, seed);
  }
  return matrix;  // each end of the matrix is one rank; the caller has checked the sizes
}

absl::Status CheckSizes(const std::vector<workload::Step>& steps, const ExchangeOptions& options) {
  if (steps.empty()) return absl::InvalidArgumentError("there are no steps to run");
  if (options.nodes == 0 || options.ranks_per_node == 0) return absl::InvalidArgumentError("there are no ranks to run");
  for (const workload::Step& step : steps) {
    const size_t size = step.dispatch.size();
    if (size != steps[0].dispatch.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the steps differ in size: ", steps[0].dispatch.size(), " and ", size));
    }
    if (size != options.nodes && size != size_t{options.nodes} * options.ranks_per_node) {
      return absl::InvalidArgumentError(absl::StrCat("the traffic is between ", size, " ends; that is neither the ",
                                                     options.nodes, " nodes given with --nodes nor their ",
                                                     options.nodes * options.ranks_per_node,
                                                     " ranks; choose --nodes and --ranks-per-node so that one is"));
    }
  }
  return absl::OkStatus();
}

absl::Status GrowSegments(const TrafficMatrix& ranks, uint32_t ranges_per_flow, Exchange* exchange) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    absl::StatusOr<RankLayout> layout = LayOut(RowOf(ranks, rank), ColumnOf(ranks, rank), ranges_per_flow);
    if (!layout.ok()) return layout.status();
    exchange->send_segment_bytes = std::max(exchange->send_segment_bytes, layout->send_bytes);
    exchange->receive_segment_bytes = std::max(exchange->receive_segment_bytes, layout->receive_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Exchange> PlanExchange(std::vector<workload::Step> steps, const ExchangeOptions& options) {
  if (absl::Status status = CheckSizes(steps, options); !status.ok()) return status;
  Exchange exchange;
  exchange.nodes = options.nodes;
  exchange.ranks_per_node = options.ranks_per_node;
  if (options.bytes_per_rank > 0) {
    const auto ranks_per_end = static_cast<uint32_t>(exchange.ranks() / steps[0].dispatch.size());
    absl::StatusOr<double> factor = workload::ScaleToBytesPerRank(options.bytes_per_rank, ranks_per_end, &steps);
    if (!factor.ok()) return factor.status();
    exchange.scale_factor = *factor;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    absl::StatusOr<TrafficMatrix> dispatch = RankMatrix(steps[i].dispatch, options, options.seed + i);
    if (!dispatch.ok()) return dispatch.status();
    ExchangeStep step{steps[i].model, steps[i].layer, steps[i].iteration, {}};
    step.phases.push_back({"dispatch", *std::move(dispatch), {}});
    // Combine transposes the spread matrix: every byte returns to its source.
    if (options.combine) step.phases.push_back({"combine", step.phases[0].ranks.Transposed(), {}});
    for (Phase& phase : step.phases) {
      phase.bytes = CountBytes(phase.ranks, options.ranks_per_node);
      if (absl::Status status = GrowSegments(phase.ranks, options.ranges_per_flow, &exchange); !status.ok())
        return status;
    }
    exchange.steps.push_back(std::move(step));
  }
  return exchange;
}

std::vector<uint64_t> RowOf(const TrafficMatrix& matrix, size_t rank) {
  std::vector<uint64_t> row(matrix.size());
  for (size_t i = 0; i < row.size(); ++i) row[i] = matrix.at(rank, i);
  return row;
}

std::vector<uint64_t> ColumnOf(const TrafficMatrix& matrix, size_t rank) {
  std::vector<uint64_t> column(matrix.size());
  for (size_t i = 0; i < column.size(); ++i) column[i] = matrix.at(i, rank);
  return column;
}

ByteCounts CountBytes(const TrafficMatrix& ranks, uint32_t ranks_per_node) {
  ByteCounts counts;
  for (size_t source = 0; source < ranks.size(); ++source) {
    for (size_t destination = 0; destination < ranks.size(); ++destination) {
      const uint64_t bytes = ranks.at(source, destination);
      if (source == destination) {
        counts.self += bytes;
      } else if (source / ranks_per_node == destination / ranks_per_node) {
        counts.local += bytes;
      } else {
        counts.network += bytes;
      }
    }
  }
  return counts;
}

double BoundSeconds(const TrafficMatrix& ranks, uint32_t ranks_per_node, absl::Span<const double> node_speeds) {
  std::vector<uint64_t> out(node_speeds.size(), 0), in(node_speeds.size(), 0);
  for (size_t source = 0; source < ranks.size(); ++source) {
    for (size_t destination = 0; destination < ranks.size(); ++destination) {
      const size_t from = source / ranks_per_node, to = destination / ranks_per_node;
      if (from == to) continue;
      out[from] += ranks.at(source, destination);
      in[to] += ranks.at(source, destination);
    }
  }
  double bound = 0;
  for (size_t node = 0; node < node_speeds.size(); ++node) {
    const uint64_t bytes = std::max(out[node], in[node]);
    if (bytes == 0) continue;
    if (!(node_speeds[node] > 0)) return 0;
    bound = std::max(bound, static_cast<double>(bytes) / node_speeds[node]);
  }
  return bound;
}

}  // namespace rails::ctl
