#include "sim/scenario/scenario.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace railsd::sim {
namespace {

constexpr size_t kDefaultNodes = 4;
constexpr size_t kMostRanks = 8192;

template <typename T>
void Replace(const std::optional<T>& value, T* field) {
  if (value.has_value()) *field = *value;
}

std::optional<Contradiction> CheckFabric(const Scenario& s) {
  if (s.speeds.size() != 1 && s.speeds.size() != s.rails) {
    return Contradiction{
        {"fabric.speed", "fabric.rails"},
        absl::StrCat(s.speeds.size(), " speeds for ", s.rails, " rails; give one for all or one for each")};
  }
  if (std::all_of(s.speeds.begin(), s.speeds.end(), [](double speed) { return speed == 0; })) {
    return Contradiction{{"fabric.speed"}, "every rail is dead from the start"};
  }
  const bool file = s.workload == kFileWorkload;  // the file then decides the number of nodes
  const size_t nodes = s.nodes != 0 || file ? s.nodes : kDefaultNodes;
  if (nodes * s.gpus > kMostRanks) {
    return Contradiction{{"fabric.nodes", "fabric.gpus"},
                         absl::StrCat(nodes, " nodes of ", s.gpus, " GPUs are more than ", kMostRanks, " GPUs")};
  }
  for (const RailChange& change : s.changes) {
    if (change.rail >= s.rails) {
      return Contradiction{{"fabric.changes", "fabric.rails"},
                           absl::StrCat("rail ", change.rail, " of ", s.rails, " rails; they count from 0")};
    }
    if (nodes != 0 && change.node.value_or(0) >= nodes) {
      return Contradiction{{"fabric.changes", "fabric.nodes"},
                           absl::StrCat("node ", *change.node, " of ", nodes, " nodes; they count from 0")};
    }
  }
  return std::nullopt;
}

std::optional<Contradiction> CheckWorkload(const Scenario& s) {
  const bool file = s.workload == kFileWorkload;
  if (file && s.file.empty()) return Contradiction{{"workload.kind"}, "needs workload.file, a trace or a matrix"};
  if (!file && !s.file.empty()) {
    return Contradiction{{"workload.kind", "workload.file"},
                         absl::StrCat("a file is given, but the workload is ", s.workload, ", not file")};
  }
  if (s.workload == kCustomModel &&
      !(s.model.hidden && s.model.layers && s.model.experts && s.model.top_k && s.model.expert_hidden)) {
    return Contradiction{{"workload.kind"},
                         "needs model.hidden, model.layers, model.experts, model.top_k and model.expert_hidden"};
  }
  if (!IsModel(s)) return std::nullopt;
  if (const absl::Status status = CheckLayer(ShapeOf(s), RoutingOf(s)); !status.ok()) {
    return Contradiction{{"model.experts", "model.top_k", "model.node_limit", "model.experts_per_gpu",
                          "model.group_nodes", "fabric.nodes", "fabric.gpus", "workload.kind"},
                         std::string(status.message())};
  }
  return std::nullopt;
}

std::optional<Contradiction> CheckNetwork(const Scenario& s) {
  if (s.spines == 0 && s.spine_speed > 0) {
    return Contradiction{{"fabric.spine_speed", "fabric.spines"}, "there are no spines"};
  }
  if (s.min_chunk_bytes > s.chunk_bytes) {
    return Contradiction{
        {"min_chunk", "chunk"},
        absl::StrCat("chunks of ", s.min_chunk_bytes, " bytes at least and ", s.chunk_bytes, " bytes at most")};
  }
  if (s.packet.queue_mode == QueueMode::kEcn && s.packet.mark_bytes > s.packet.queue_bytes) {
    return Contradiction{{"network.mark", "network.queue"},
                         absl::StrCat("packets are marked from ", s.packet.mark_bytes, " bytes on, a queue holds ",
                                      s.packet.queue_bytes)};
  }
  if (2 * uint64_t{s.packet.packet_bytes} > s.packet.queue_bytes) {
    return Contradiction{{"network.packet", "network.queue"},
                         absl::StrCat("two packets of ", s.packet.packet_bytes, " bytes do not fit into a queue of ",
                                      s.packet.queue_bytes)};
  }
  return std::nullopt;
}

}  // namespace

bool IsModel(const Scenario& scenario) {
  return scenario.workload == kCustomModel || FindModel(scenario.workload).ok();
}

std::vector<std::string> WorkloadNames() {
  std::vector<std::string> names;
  for (const rails::workload::Generator generator : rails::workload::kAllGenerators) {
    names.emplace_back(rails::workload::GeneratorName(generator));
  }
  for (const std::string_view model : ModelNames()) names.emplace_back(model);
  names.emplace_back(kCustomModel);
  names.emplace_back(kFileWorkload);
  return names;
}

Fabric FabricOf(const Scenario& scenario, size_t nodes) {
  Fabric fabric;
  fabric.nodes = nodes;
  fabric.gpus_per_node = scenario.gpus;
  fabric.rail_bytes_per_second = scenario.speeds;
  if (scenario.speeds.size() == 1) fabric.rail_bytes_per_second.assign(scenario.rails, scenario.speeds[0]);
  fabric.inner_bytes_per_second = scenario.inner;
  fabric.propagation = scenario.propagation;
  fabric.spines = scenario.spines;
  fabric.spine_bytes_per_second = scenario.spine_speed;
  fabric.changes = scenario.changes;
  return fabric;
}

ModelShape ShapeOf(const Scenario& scenario) {
  ModelShape shape;
  if (const absl::StatusOr<ModelShape> published = FindModel(scenario.workload); published.ok()) shape = *published;
  const ModelOverrides& model = scenario.model;
  const uint32_t published_hidden = shape.hidden;
  Replace(model.hidden, &shape.hidden);
  Replace(model.layers, &shape.layers);
  Replace(model.experts, &shape.experts);
  Replace(model.top_k, &shape.top_k);
  Replace(model.expert_hidden, &shape.expert_hidden);
  Replace(model.shared_experts, &shape.shared_experts);
  Replace(model.node_limit, &shape.node_limit);
  Replace(model.dispatch_bytes, &shape.dispatch_bytes);
  Replace(model.combine_bytes, &shape.combine_bytes);
  if (shape.name.empty() || (model.hidden && *model.hidden != published_hidden)) {
    // Queries, keys, values and the output of full size, and heads that cover the hidden size.
    shape.attention_parameters = 4.0 * shape.hidden * shape.hidden;
    shape.attention_head_elements = 2.0 * shape.hidden;
  }
  return shape;
}

RoutingOptions RoutingOf(const Scenario& scenario) {
  return {.nodes = scenario.nodes == 0 ? kDefaultNodes : scenario.nodes,
          .gpus_per_node = static_cast<uint32_t>(scenario.gpus),
          .tokens_per_rank = scenario.tokens,
          .skew = scenario.skew,
          .group_nodes = scenario.group_nodes,
          .experts_per_gpu = scenario.experts_per_gpu,
          .copies = scenario.copies,
          .seed = scenario.seed};
}

std::optional<Contradiction> FindContradiction(const Scenario& scenario) {
  for (const auto& check : {CheckFabric, CheckWorkload, CheckNetwork}) {
    if (std::optional<Contradiction> found = check(scenario); found.has_value()) return found;
  }
  return std::nullopt;
}

}  // namespace railsd::sim
