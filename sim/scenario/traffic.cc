#include "sim/scenario/traffic.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd::sim {
namespace {

namespace workload = rails::workload;
using workload::TrafficMatrix;

constexpr uint64_t kDefaultBytesPerRank = 16 << 20;
constexpr uint64_t kMostCells = uint64_t{1} << 28;  // of all exchanges of a point: 2 GiB

absl::StatusOr<std::vector<workload::Step>> Generated(const Scenario& s, size_t nodes) {
  workload::GeneratorOptions options;
  options.generator = *workload::ParseGenerator(s.workload);
  options.size = nodes;
  options.steps = s.steps;
  options.seed = s.seed;
  options.zipf_exponent = s.zipf_exponent;
  options.sparse_fraction = s.sparse_fraction;
  if (!s.trace_model.empty()) options.mixtral_model = s.trace_model;
  return workload::Generate(options);
}

absl::StatusOr<std::vector<workload::Step>> FromFile(const Scenario& s) {
  workload::TraceOptions options;
  options.ranks_per_node = s.trace_ranks_per_node;
  options.model = s.trace_model;
  options.max_steps = s.steps;
  absl::StatusOr<workload::Trace> trace = workload::ReadTraceOrMatrix(s.file, options);
  if (!trace.ok()) return trace.status();
  if (trace->steps.front().model == "matrix" && (!s.trace_model.empty() || s.steps > 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        s.file, ": is a matrix; ", s.steps > 1 ? "workload.steps" : "workload.trace_model", " needs a trace"));
  }
  return std::move(trace->steps);
}

// Number of nodes of the cluster. `ends`: size of a matrix, between nodes or between GPUs.
absl::StatusOr<size_t> NodesOf(const Scenario& s, size_t ends) {
  if (s.nodes == 0) return ends;
  if (ends == s.nodes || ends == s.nodes * s.gpus) return s.nodes;
  return absl::InvalidArgumentError(absl::StrCat(s.file, ": has ", ends, " ends; ", s.nodes, " nodes of ", s.gpus,
                                                 " GPUs need ", s.nodes, " (nodes) or ", s.nodes * s.gpus,
                                                 " (GPUs); leave fabric.nodes out, and the ends are the nodes"));
}

absl::Status CheckMemory(const Scenario& s, size_t nodes, size_t exchanges) {
  const uint64_t ranks = nodes * s.gpus;
  if (exchanges * ranks * ranks <= kMostCells) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(exchanges, " exchanges between ", ranks, " GPUs need too much memory; take fewer steps"));
}

bool Wants(const Scenario& s, bool both_by_default, bool combine) {
  if (s.exchanges == Exchanges::kBoth || (s.exchanges == Exchanges::kAuto && both_by_default)) return true;
  return combine == (s.exchanges == Exchanges::kCombine);
}

absl::StatusOr<Traffic> OfModel(const Scenario& s) {
  RoutingOptions routing = RoutingOf(s);
  Traffic traffic = {.nodes = routing.nodes};
  routing.dispatch = Wants(s, true, false);
  routing.combine = Wants(s, true, true);
  const bool both = routing.dispatch && routing.combine;
  if (absl::Status status = CheckMemory(s, traffic.nodes, (both ? 2 : 1) * s.steps); !status.ok()) return status;
  const ModelShape shape = ShapeOf(s);
  for (size_t step = 0; step < s.steps; ++step) {
    routing.seed = s.seed + step;
    absl::StatusOr<LayerExchange> layer = DrawLayer(shape, routing);
    if (!layer.ok()) return layer.status();
    if (routing.dispatch) traffic.exchanges.push_back({step, false, std::move(layer->dispatch)});
    if (routing.combine) traffic.exchanges.push_back({step, true, std::move(layer->combine)});
  }
  return traffic;
}

absl::StatusOr<Traffic> OfSteps(const Scenario& s) {
  const bool file = s.workload == kFileWorkload;
  absl::StatusOr<std::vector<workload::Step>> steps = file ? FromFile(s) : Generated(s, RoutingOf(s).nodes);
  if (!steps.ok()) return steps.status();
  const size_t ends = steps->front().dispatch.size();
  const absl::StatusOr<size_t> nodes = file ? NodesOf(s, ends) : ends;
  if (!nodes.ok()) return nodes.status();
  Traffic traffic = {.nodes = *nodes};
  if (absl::Status status = CheckMemory(s, traffic.nodes, 2 * steps->size()); !status.ok()) return status;
  if (!file || s.bytes_per_rank != 0) {
    const absl::StatusOr<double> scale =
        workload::ScaleToBytesPerRank(s.bytes_per_rank == 0 ? kDefaultBytesPerRank : s.bytes_per_rank,
                                      static_cast<uint32_t>(traffic.nodes * s.gpus / ends), &*steps);
    if (!scale.ok()) return scale.status();
    if (file) traffic.scale = *scale;
  }
  const bool trace = s.workload == "mixtral" || (file && steps->front().model != "matrix");
  for (size_t i = 0; i < steps->size(); ++i) {
    absl::StatusOr<TrafficMatrix> ranks = std::move((*steps)[i].dispatch);
    if (ends == traffic.nodes) {
      ranks = workload::SpreadToRanks(*ranks, static_cast<uint32_t>(s.gpus),
                                      s.even_spread ? workload::Spread::kEven : workload::Spread::kSkewed, s.seed + i);
      if (!ranks.ok()) return ranks.status();
    }
    TrafficMatrix combine;  // made before the move of `ranks` below, and only if wanted, because matrices are large
    if (Wants(s, trace, true)) combine = ranks->Transposed();
    if (Wants(s, trace, false)) traffic.exchanges.push_back({i, false, *std::move(ranks)});
    if (Wants(s, trace, true)) traffic.exchanges.push_back({i, true, std::move(combine)});
  }
  return traffic;
}

}  // namespace

absl::StatusOr<Traffic> MakeTraffic(const Scenario& scenario) {
  absl::StatusOr<Traffic> traffic = IsModel(scenario) ? OfModel(scenario) : OfSteps(scenario);
  if (!traffic.ok()) return traffic;
  for (const Exchange& exchange : traffic->exchanges) {
    for (size_t s = 0; s < exchange.ranks.size(); ++s) {
      const absl::Span<const uint64_t> row = exchange.ranks.Row(s);
      const absl::Span<const uint64_t> inside = row.subspan(s / scenario.gpus * scenario.gpus, scenario.gpus);
      traffic->bytes_between_nodes += std::accumulate(row.begin(), row.end(), uint64_t{0}) -
                                      std::accumulate(inside.begin(), inside.end(), uint64_t{0});
    }
  }
  return traffic;
}

}  // namespace railsd::sim
