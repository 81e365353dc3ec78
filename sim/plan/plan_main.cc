// railsctl-plan: plans a traffic matrix, a routing trace or a generated workload under each policy by the real
// planner and says how even the NICs are and how far from the bound. `railsctl plan` runs it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/format.h"
#include "client/workload/workload.h"
#include "sim/plan/report.h"
#include "sim/program.h"

namespace railsd::sim {
namespace {

namespace workload = rails::workload;

struct Options {
  std::string file;
  std::vector<std::string> policies;
  size_t rails = 8;
  std::vector<std::string> speeds = {"100gbit"};
  uint32_t ranks_per_node = 8;
  std::string chunk = "1MiB";
  std::string min_chunk = "8KiB";
  bool trace = false;
  std::string model;
  uint32_t trace_ranks_per_node = 8;
  size_t steps = 0;
  std::string workload;
  size_t nodes = 0;
  uint64_t seed = 1;
  std::string bytes_per_rank;
  double zipf_exponent = 1.2;
  double sparse_fraction = 0.25;
  std::string spread = "skewed";
  bool json = false;
};

// The quantities of the command line, parsed.
struct Settings {
  ClusterOptions cluster;
  std::vector<Policy> policies;
  workload::Spread spread = workload::Spread::kSkewed;
  uint64_t bytes_per_rank = 0;  // 0: volumes are not scaled
};

absl::Status Named(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::Status ParseSpeeds(const Options& options, Settings* settings) {
  if (options.rails == 0 || options.rails > 1024)
    return absl::InvalidArgumentError("--rails is not between 1 and 1024");
  if (options.speeds.size() != 1 && options.speeds.size() != options.rails) {
    return absl::InvalidArgumentError(absl::StrCat("--speed has ", options.speeds.size(), " values for ", options.rails,
                                                   " rails; give one for all or one for each"));
  }
  for (size_t i = 0; i < options.rails; ++i) {
    const std::string& text = options.speeds[options.speeds.size() == 1 ? 0 : i];
    const absl::StatusOr<uint64_t> speed = text == "0" ? 0 : rails::ctl::ParseRate(text);
    if (!speed.ok()) return Named("--speed", speed.status());
    settings->cluster.rail_speeds.push_back(static_cast<double>(*speed));
  }
  return absl::OkStatus();
}

absl::StatusOr<Settings> Parse(const Options& options) {
  Settings settings;
  settings.cluster.ranks_per_node = options.ranks_per_node;
  if (absl::Status status = ParseSpeeds(options, &settings); !status.ok()) return status;
  for (const std::string& name : options.policies) {
    const absl::StatusOr<Policy> policy = ParsePolicy(name);
    if (!policy.ok()) return Named("--policy", policy.status());
    settings.policies.push_back(*policy);
  }
  if (settings.policies.empty()) settings.policies.assign(std::begin(kAllPolicies), std::end(kAllPolicies));
  const absl::StatusOr<uint64_t> chunk = rails::ctl::ParseBytes(options.chunk);
  if (!chunk.ok()) return Named("--chunk", chunk.status());
  const absl::StatusOr<uint64_t> min_chunk = rails::ctl::ParseBytes(options.min_chunk);
  if (!min_chunk.ok()) return Named("--min-chunk", min_chunk.status());
  settings.cluster.plan.chunk_bytes = *chunk;
  settings.cluster.plan.min_chunk_bytes = *min_chunk;
  if (!options.bytes_per_rank.empty()) {
    const absl::StatusOr<uint64_t> bytes = rails::ctl::ParseBytes(options.bytes_per_rank);
    if (!bytes.ok()) return Named("--bytes-per-rank", bytes.status());
    if (*bytes == 0) return absl::InvalidArgumentError("--bytes-per-rank is 0");
    settings.bytes_per_rank = *bytes;
  }
  if (options.ranks_per_node == 0) return absl::InvalidArgumentError("--ranks-per-node is 0");
  if (options.file.empty() == options.workload.empty()) {
    return absl::InvalidArgumentError("give either a file or --workload");
  }
  settings.spread = options.spread == "even" ? workload::Spread::kEven : workload::Spread::kSkewed;
  return settings;
}

absl::StatusOr<std::vector<workload::Step>> Generated(const Options& options) {
  const absl::StatusOr<workload::Generator> generator = workload::ParseGenerator(options.workload);
  if (!generator.ok()) return Named("--workload", generator.status());
  workload::GeneratorOptions generate;
  generate.generator = *generator;
  generate.size = options.nodes == 0 ? 4 : options.nodes;
  generate.steps = options.steps == 0 ? 20 : options.steps;
  generate.seed = options.seed;
  generate.zipf_exponent = options.zipf_exponent;
  generate.sparse_fraction = options.sparse_fraction;
  if (!options.model.empty()) generate.mixtral_model = options.model;
  return workload::Generate(generate);
}

absl::StatusOr<std::vector<workload::Step>> FromFile(const Options& options) {
  workload::TraceOptions read;
  read.ranks_per_node = options.trace_ranks_per_node;
  read.model = options.model;
  read.max_steps = options.steps;
  absl::StatusOr<workload::Trace> trace =
      options.trace ? workload::ReadTrace(options.file, read) : workload::ReadTraceOrMatrix(options.file, read);
  if (!trace.ok()) return trace.status();
  if (options.nodes != 0 && options.nodes != trace->nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.file, ": is of ", trace->nodes, " nodes, --nodes says ", options.nodes));
  }
  return std::move(trace->steps);
}

absl::StatusOr<PlanReport> Plan(const Options& options, Settings settings) {
  absl::StatusOr<std::vector<workload::Step>> steps = options.file.empty() ? Generated(options) : FromFile(options);
  if (!steps.ok()) return steps.status();
  PlanReport report;
  report.nodes = settings.cluster.nodes = steps->front().dispatch.size();
  report.ranks_per_node = options.ranks_per_node;
  report.rail_speeds = settings.cluster.rail_speeds;
  report.chunk_bytes = settings.cluster.plan.chunk_bytes;
  report.min_chunk_bytes = settings.cluster.plan.min_chunk_bytes;
  report.steps = steps->size();
  if (settings.bytes_per_rank > 0) {
    const absl::StatusOr<double> scale =
        workload::ScaleToBytesPerRank(settings.bytes_per_rank, options.ranks_per_node, &*steps);
    if (!scale.ok()) return scale.status();
    report.scale = *scale;
  }
  std::vector<Cluster> clusters;
  for (const Policy policy : settings.policies) {
    settings.cluster.plan.policy = policy;
    clusters.emplace_back(settings.cluster);
  }
  std::vector<PolicyTally> tallies(clusters.size());
  NicBytes bytes;
  for (size_t i = 0; i < steps->size(); ++i) {
    const absl::StatusOr<workload::TrafficMatrix> dispatch =
        workload::SpreadToRanks((*steps)[i].dispatch, options.ranks_per_node, settings.spread, options.seed + i);
    if (!dispatch.ok()) return dispatch.status();
    for (const workload::TrafficMatrix& exchange : {*dispatch, dispatch->Transposed()}) {
      for (size_t p = 0; p < clusters.size(); ++p) {
        if (absl::Status status = clusters[p].Run(exchange, &bytes); !status.ok()) return status;
        tallies[p].Add(bytes, settings.cluster.rail_speeds);
      }
    }
  }
  for (size_t p = 0; p < clusters.size(); ++p) {
    report.policies.push_back(tallies[p].Finish(settings.policies[p], settings.cluster.rail_speeds));
  }
  report.exchanges = tallies[0].exchanges();
  report.bytes = tallies[0].bytes();
  return report;
}

int Fail(const Options& options, ExitCode code, const absl::Status& status) {
  return Fail("railsctl plan", options.json, code, status);
}

void Declare(CLI::App* app, Options* options) {
  std::vector<std::string> policies;
  for (const Policy policy : kAllPolicies) policies.emplace_back(PolicyName(policy));
  app->add_option("FILE", options->file,
                  "A routing trace (CSV with rank, model, layer, iter, tokens) or a traffic matrix between nodes in "
                  "bytes (CSV, blanks or JSON), plain or gzip. The header shows which.");
  app->add_option("--policy", options->policies,
                  absl::StrCat("A policy to plan under; may be repeated. One of ", absl::StrJoin(policies, ", "),
                               ". All of them when not given."));
  app->add_option("--rails", options->rails, "The number of rails of each node.")->capture_default_str();
  app->add_option("--speed", options->speeds,
                  "The speed of a rail, as 100gbit or 12.5GB/s: one for all rails, or one for each, separated by "
                  "commas; 0 is a dead rail.")
      ->delimiter(',')
      ->default_str("100gbit");
  app->add_option("--ranks-per-node", options->ranks_per_node,
                  "The number of ranks that the traffic of a node is spread over.")
      ->capture_default_str();
  app->add_option("--chunk", options->chunk, "No chunk is longer than this.")->capture_default_str();
  app->add_option("--min-chunk", options->min_chunk, "No chunk is shorter than this unless its flow is.")
      ->capture_default_str();
  app->add_flag("--trace", options->trace, "The file must be a routing trace.");
  app->add_option("--model", options->model,
                  "Only this model of the trace, or the model that --workload mixtral imitates (mixtral-8x7b-e8k2 or "
                  "mixtral-8x7b-e16k4).");
  app->add_option("--trace-ranks-per-node", options->trace_ranks_per_node, "The ranks of a node in the trace.")
      ->capture_default_str();
  app->add_option("--steps", options->steps,
                  "Only the first steps of a trace, or the number of generated steps (20 when not given).");
  app->add_option("--workload", options->workload,
                  "Plans a generated workload: mixtral, uniform, zipf, sparse, permutation or incast.");
  app->add_option("--nodes", options->nodes,
                  "The number of nodes of a generated workload (4 when not given); a file must agree with it.")
      ->check(CLI::Range(1, 2048));
  app->add_option("--seed", options->seed, "The seed of what is drawn.")
      ->check(rails::ctl::NotBelowZero)
      ->capture_default_str();
  app->add_option("--bytes-per-rank", options->bytes_per_rank,
                  "Scales all steps by one factor, so that a rank sends this much in the largest step.");
  app->add_option("--zipf-exponent", options->zipf_exponent, "The exponent of --workload zipf.")->capture_default_str();
  app->add_option("--sparse-fraction", options->sparse_fraction,
                  "The probability that a pair exchanges in --workload sparse.")
      ->capture_default_str();
  app->add_option("--spread", options->spread,
                  "How a node's traffic is spread over ranks: even, or skewed as experts are.")
      ->check(CLI::IsMember({"even", "skewed"}))
      ->capture_default_str();
  app->add_flag("--json", options->json, "Prints JSON.");
  app->footer("Exit codes: 0 done, 1 failed, 2 the command line is wrong, 5 the file is not what it should be.");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app{"Plans an exchange under each policy and compares it with the least possible time.", "railsctl plan"};
  app.set_help_flag("-h,--help", "Prints this help and exits.");
  Declare(&app, &options);
  if (const std::optional<int> code = ParseCommandLine(&app, argc, argv); code.has_value()) return *code;
  absl::StatusOr<Settings> settings = Parse(options);
  if (!settings.ok()) return Fail(options, kExitUsage, settings.status());
  const absl::StatusOr<PlanReport> report = Plan(options, *std::move(settings));
  if (!report.ok()) return Fail(options, options.file.empty() ? kExitUsage : kExitBadInput, report.status());
  std::cout << (options.json ? RenderJson(*report) : RenderTable(*report, isatty(STDOUT_FILENO) != 0));
  return std::cout.flush() ? kExitOk : kExitFailed;
}

}  // namespace
}  // namespace railsd::sim

int main(int argc, char** argv) { return railsd::sim::Main(argc, argv); }
