// One point of a scenario: a cluster, a workload and everything else that a simulation needs, but no policy. Plain
// values with the defaults of the keys; the table of keys (keys.h) says what each means.
#ifndef RAILSD_SIM_SCENARIO_SCENARIO_H_
#define RAILSD_SIM_SCENARIO_SCENARIO_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/workload/workload.h"
#include "sim/fabric.h"
#include "sim/models/iteration.h"
#include "sim/models/routing.h"
#include "sim/scenario/fixed_cost.h"
#include "sim/simulate.h"

namespace railsd::sim {

// Which exchanges of a step are simulated.
enum class Exchanges : uint8_t {
  kAuto,  // both for a model or trace, otherwise the matrix as it is
  kDispatch,
  kCombine,
  kBoth,
};

// Parameters of a model in place of those of its published shape.
struct ModelOverrides {
  std::optional<uint32_t> hidden, layers, experts, top_k, expert_hidden, shared_experts, node_limit;
  std::optional<double> dispatch_bytes, combine_bytes;
};

struct Scenario {
  size_t nodes = 0;  // 0: as many as the file has; 4 without a file
  size_t gpus = 8;
  size_t rails = 8;
  std::vector<double> speeds = {50e9};  // bytes per second, one for all or one for each rail
  double inner = 450e9;
  absl::Duration propagation = absl::Microseconds(1);
  size_t spines = 8;
  double spine_speed = 0;
  std::vector<RailChange> changes;

  std::string workload = "zipf";
  std::string file;             // as written
  uint64_t bytes_per_rank = 0;  // 0: 16 MiB for generated workloads; files are not scaled
  double zipf_exponent = 1.2;
  double sparse_fraction = 0.25;
  bool even_spread = false;
  size_t steps = 1;
  Exchanges exchanges = Exchanges::kAuto;
  std::string trace_model;
  uint32_t trace_ranks_per_node = 8;

  ModelOverrides model;
  uint64_t tokens = 4096;
  double skew = 0.6;
  size_t group_nodes = 0;
  uint32_t experts_per_gpu = 0;
  Copies copies = Copies::kExpert;
  ComputeOptions compute;

  NetworkMode mode = NetworkMode::kFluid;
  FluidOptions fluid;
  PacketOptions packet;
  uint64_t chunk_bytes = 1 << 20;
  uint64_t min_chunk_bytes = 8 << 10;
  uint64_t seed = 1;

  bool count_fixed_cost = true;
  FixedCost fixed_cost;
};

inline constexpr char kFileWorkload[] = "file";
inline constexpr char kCustomModel[] = "model";

bool IsModel(const Scenario& scenario);  // a published shape or parameters of one
// All workloads by name: generators, models, "model" and "file".
std::vector<std::string> WorkloadNames();

Fabric FabricOf(const Scenario& scenario, size_t nodes);
// The published shape with the parameters of the scenario. Only for a model.
ModelShape ShapeOf(const Scenario& scenario);
RoutingOptions RoutingOf(const Scenario& scenario);

// A rule that several keys break together.
struct Contradiction {
  std::vector<std::string> keys;  // a change of any of them can end it, the likeliest first
  std::string reason;
};
// Checks the rules for several keys together. Reads no files.
std::optional<Contradiction> FindContradiction(const Scenario& scenario);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SCENARIO_SCENARIO_H_
