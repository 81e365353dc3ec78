// replay: runs a workload through daemons, one process per rank, and checks every byte.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/railsctl/command.h"
#include "client/railsctl/format.h"
#include "client/railsctl/replay/fleet.h"
#include "client/railsctl/replay/fleet_options.h"
#include "client/railsctl/replay/run.h"
#include "client/railsctl/replay/worker.h"
#include "client/workload/workload.h"

namespace rails::ctl {
namespace {

struct ReplayOptions {
  FleetFlags fleet;
  std::string file, generator, model, spread = "even";
  uint32_t steps = 10, trace_ranks_per_node = 8;
  uint64_t bytes_per_token = 8192;
  bool combine = true, verify = true, barrier = true, prepared = false, progress = false;
  uint32_t warmup = 1, ranges_per_flow = 1;
  double zipf_exponent = 1.2, sparse_fraction = 0.25;
};

absl::StatusOr<std::vector<workload::Step>> ReadSteps(const ReplayOptions& options) {
  workload::TraceOptions trace_options;
  trace_options.ranks_per_node = options.trace_ranks_per_node;
  trace_options.bytes_per_token = options.bytes_per_token;
  trace_options.model = options.model;
  absl::StatusOr<workload::Trace> trace = workload::ReadTraceOrMatrix(options.file, trace_options);
  if (!trace.ok()) return trace.status();
  return std::move(trace->steps);
}

absl::StatusOr<std::vector<workload::Step>> GenerateSteps(const ReplayOptions& options) {
  absl::StatusOr<workload::Generator> generator = workload::ParseGenerator(options.generator);
  if (!generator.ok()) return generator.status();
  workload::GeneratorOptions generate{.generator = *generator,
                                      .size = options.fleet.nodes.size(),
                                      .steps = options.steps,
                                      .seed = options.fleet.seed,
                                      .zipf_exponent = options.zipf_exponent,
                                      .sparse_fraction = options.sparse_fraction};
  if (!options.model.empty()) generate.mixtral_model = options.model;
  return workload::Generate(generate);
}

// Plans the run. Fills in the parts of the report that are known before it.
absl::StatusOr<Exchange> Plan(const ReplayOptions& options, ReplayReport* report) {
  absl::StatusOr<std::vector<workload::Step>> steps =
      options.file.empty() ? GenerateSteps(options) : ReadSteps(options);
  if (!steps.ok()) return steps.status();
  report->steps_available = steps->size();
  if (options.steps > 0 && steps->size() > options.steps) steps->resize(options.steps);
  absl::StatusOr<Exchange> exchange = PlanExchange(
      *std::move(steps), {.nodes = static_cast<uint32_t>(options.fleet.nodes.size()),
                          .ranks_per_node = options.fleet.ranks_per_node,
                          .bytes_per_rank = options.fleet.bytes_per_rank,
                          .ranges_per_flow = options.ranges_per_flow,
                          .combine = options.combine,
                          .spread = options.spread == "skewed" ? workload::Spread::kSkewed : workload::Spread::kEven,
                          .seed = options.fleet.seed});
  if (!exchange.ok()) return exchange.status();
  report->workload = options.file.empty() ? options.generator : std::filesystem::path(options.file).filename().string();
  report->seed = options.fleet.seed;
  report->scale_factor = exchange->scale_factor;
  report->bytes_per_rank = options.fleet.bytes_per_rank;
  report->nodes = exchange->nodes;
  report->ranks_per_node = exchange->ranks_per_node;
  report->warmup = options.warmup;
  report->checked = options.verify;
  return exchange;
}

int Print(const Context& context, const ReplayReport& report) {
  const std::string text = context.json ? ReplayJson(report).dump(2) + "\n" : RenderReplay(report, context.color);
  std::fputs(text.c_str(), stdout);
  if (report.wrong_bytes == 0) return kExitOk;
  std::fprintf(stderr, "railsctl: %s\n", DescribeWrongBytes(report).c_str());
  return kExitWrongBytes;
}

int RunReplay(const Context& context, const ReplayOptions& options) {
  SignalGuard signals;
  ReplayReport report;
  const absl::StatusOr<Exchange> exchange = Plan(options, &report);
  if (!exchange.ok()) return Fail(context, options.file.empty() ? kExitUsage : kExitBadInputFile, exchange.status());

  Fleet fleet(MakeFleetOptions(context, options.fleet, signals.fd()));
  absl::StatusOr<std::vector<NodeRails>> rails = fleet.ReadRails();
  if (!rails.ok()) return Fail(context, ExitCodeOfCall(rails.status()), rails.status());
  if (absl::Status status = fleet.Start(exchange->send_segment_bytes, exchange->receive_segment_bytes); !status.ok()) {
    return Fail(context, absl::IsUnavailable(status) ? kExitUnreachable : kExitFailed, status);
  }
  const bool to_terminal = isatty(STDERR_FILENO) == 1;
  RunOptions run{.warmup = options.warmup,
                 .ranges_per_flow = options.ranges_per_flow,
                 .verify = options.verify,
                 .barrier = options.barrier,
                 .prepared = options.prepared,
                 .node_speeds = NodeSpeeds(options.fleet, *rails),
                 .read_rails = [&fleet] { return fleet.ReadRails(); },
                 .progress = nullptr};
  if (options.progress || to_terminal) {
    run.progress = [to_terminal](const std::string& text) {
      std::fprintf(stderr, to_terminal ? "\r\033[K%s" : "%s\n", text.c_str());
    };
  }
  const absl::Status status = RunExchange(*exchange, run, &fleet.coordinator(), &report);
  if (to_terminal) std::fputs("\r\033[K", stderr);
  if (!status.ok()) return Fail(context, kExitFailed, status);
  if (!fleet.Stop()) std::fputs("railsctl: some workers did not leave in time and were killed\n", stderr);
  return Print(context, report);
}

}  // namespace

void AddReplayCommand(CLI::App& app, Context& context) {
  CLI::App* replay = app.add_subcommand(
      "replay", "Runs a workload through daemons, one process per rank, checks every byte and reports the balance.");
  auto options = std::make_shared<ReplayOptions>();
  auto* file = replay
                   ->add_option("file", options->file,
                                "A routing trace (CSV with rank, model, layer, iter, tokens) or a traffic matrix in "
                                "bytes (CSV, blanks or JSON), plain or gzip.")
                   ->type_name("FILE");
  std::vector<std::string> names;
  for (workload::Generator generator : workload::kAllGenerators) names.emplace_back(workload::GeneratorName(generator));
  auto* workload = replay->add_option("--workload", options->generator, "Generates the traffic instead of reading it.")
                       ->type_name("NAME")
                       ->check(CLI::IsMember(names))
                       ->excludes(file);
  AddFleetFlags(replay, &options->fleet, "16MiB",
                "Scales the volumes by one factor, such that a rank sends this much in the largest step; 0 leaves "
                "those of a file as they are.");
  replay->add_option("--steps", options->steps, "Runs the first K steps; 0 runs all of a file.")
      ->type_name("K")
      ->capture_default_str();
  replay->add_option("--model", options->model, "Takes only this model of the trace, or generates after it.")
      ->type_name("NAME");
  replay->add_option("--warmup", options->warmup, "Runs this many steps before those that count.")
      ->type_name("K")
      ->capture_default_str();
  replay->add_flag("--combine,!--no-combine", options->combine, "Runs the combine after each dispatch (the default).");
  replay->add_option("--ranges-per-flow", options->ranges_per_flow, "Cuts each flow into this many ranges.")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  replay->add_flag("--verify,!--no-verify", options->verify, "Checks every byte (the default); or times only.");
  replay->add_flag("--barrier,!--no-barrier", options->barrier,
                   "Lets no rank submit before all are ready (the default).");
  replay->add_flag("--prepared", options->prepared,
                   "Prepares each exchange with some bytes to spare, then submits it.");
  replay->add_flag("--progress", options->progress, "Shows progress even when standard error is no terminal.");
  replay->add_option("--spread", options->spread, "How a node's traffic is spread over its ranks.")
      ->type_name("HOW")
      ->check(CLI::IsMember({"even", "skewed"}))
      ->capture_default_str();
  replay->add_option("--zipf-exponent", options->zipf_exponent, "The exponent of the zipf workload.")
      ->capture_default_str();
  replay->add_option("--sparse-fraction", options->sparse_fraction, "The part of pairs that exchange, when sparse.")
      ->capture_default_str();
  replay->add_option("--trace-ranks-per-node", options->trace_ranks_per_node, "Ranks per node in the trace.")
      ->capture_default_str();
  replay->add_option("--bytes-per-token", options->bytes_per_token, "Bytes of a token of the trace.")
      ->check(NotBelowZero)
      ->capture_default_str();
  replay->callback([&context, options, file, workload] {
    if (file->count() + workload->count() == 0) throw CLI::RequiredError("FILE or --workload");
    if (workload->count() > 0 && options->steps == 0) throw CLI::ValidationError("--steps", "0 needs a FILE");
    if (workload->count() > 0 && options->fleet.bytes_per_rank == 0) {
      throw CLI::ValidationError("--bytes-per-rank", "0 needs a FILE");
    }
    ResolveNodes(context, &options->fleet.nodes);
    context.run = [&context, options] { return RunReplay(context, *options); };
  });
}

void AddWorkerCommand(CLI::App& app, Context& context) {
  CLI::App* worker = app.add_subcommand("worker", "One rank of replay and bench; not for people.");
  worker->group("");
  auto standard = std::make_shared<bool>(false);
  worker->add_flag("--stdio", *standard, "Commands come on standard input, events go to standard output.");
  worker->callback([&context, standard] {
    context.run = [standard = *standard] {
      return RunWorker(standard ? STDIN_FILENO : WorkerProcesses::kCommandsFd,
                       standard ? STDOUT_FILENO : WorkerProcesses::kEventsFd, &Client::Connect);
    };
  });
}

}  // namespace rails::ctl
