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
#include "client/railsctl/replay/rank.h"
#include "client/railsctl/replay/run.h"
#include "client/workload/workload.h"
#include "common/json/json.h"

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
  PlaceFlags place_flags;
  std::optional<Place> place;       // empty: this process starts all ranks
  std::vector<std::string> shared;  // options that all ranks must have
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

RunOptions MakeRunOptions(const ReplayOptions& options, const std::vector<NodeRails>& rails, Fleet* fleet) {
  RunOptions run{.warmup = options.warmup,
                 .ranges_per_flow = options.ranges_per_flow,
                 .verify = options.verify,
                 .barrier = options.barrier,
                 .prepared = options.prepared,
                 .node_speeds = NodeSpeeds(options.fleet, rails),
                 .read_rails = [fleet] { return fleet->ReadRails(); },
                 .progress = nullptr};
  const bool to_terminal = isatty(STDERR_FILENO) == 1;
  if (options.progress || to_terminal) {
    run.progress = [to_terminal](const std::string& text) {
      std::fprintf(stderr, to_terminal ? "\r\033[K%s" : "%s\n", text.c_str());
    };
  }
  return run;
}

// A replay as rank 0 sees it, or as the process that starts all ranks.
class Replay {
 public:
  Replay(const Context& context, const ReplayOptions& options)
      : context_(context), options_(options), fleet_(MakeFleetOptions(context, options.fleet, signals_.fd())) {}

  int Run();

 private:
  // Makes all ranks ready. Returns kExitOk, or reports the error and returns its exit code.
  int Start(const Exchange& exchange);
  int Finish();
  int FailAll(ExitCode code, const absl::Status& status) {
    fleet_.Abandon(code, std::string(status.message()));
    return Fail(context_, code, status);
  }

  const Context& context_;
  const ReplayOptions& options_;
  SignalGuard signals_;
  Fleet fleet_;
  std::vector<NodeRails> rails_;
  ReplayReport report_;
};

int Replay::Start(const Exchange& exchange) {
  absl::StatusOr<std::vector<NodeRails>> rails;
  if (options_.place.has_value()) {
    absl::StatusOr<std::vector<internal::UniqueFd>> ranks =
        GatherRanks(*options_.place, options_.shared, signals_.fd());
    if (!ranks.ok()) return Fail(context_, kExitFailed, ranks.status());
    fleet_.Adopt(*std::move(ranks));
  } else {
    rails = fleet_.ReadRails();
    if (!rails.ok()) return Fail(context_, ExitCodeOfCall(rails.status()), rails.status());
  }
  const absl::Status status = fleet_.Start(exchange.send_segment_bytes, exchange.receive_segment_bytes);
  if (!status.ok()) return FailAll(absl::IsUnavailable(status) ? kExitUnreachable : kExitFailed, status);
  if (options_.place.has_value()) {
    rails = fleet_.ReadRails();
    if (!rails.ok()) return FailAll(ExitCodeOfCall(rails.status()), rails.status());
  }
  rails_ = *std::move(rails);
  return kExitOk;
}

int Replay::Finish() {
  const std::string wrong = report_.wrong_bytes > 0 ? DescribeWrongBytes(report_) : "";
  const int code = report_.wrong_bytes > 0 ? kExitWrongBytes : kExitOk;
  const absl::Status stopped = fleet_.Stop(code, wrong);
  const std::string text =
      context_.json ? DumpJson(ReplayJson(report_), 2) + "\n" : RenderReplay(report_, context_.color);
  std::fputs(text.c_str(), stdout);
  if (!wrong.empty()) std::fprintf(stderr, "railsctl: %s\n", wrong.c_str());
  if (!stopped.ok()) std::fprintf(stderr, "railsctl: %s\n", std::string(stopped.message()).c_str());
  return code == kExitOk && !stopped.ok() ? static_cast<int>(kExitFailed) : code;
}

int Replay::Run() {
  const absl::StatusOr<Exchange> exchange = Plan(options_, &report_);
  if (!exchange.ok()) {
    return Fail(context_, options_.file.empty() ? kExitUsage : kExitBadInputFile, exchange.status());
  }
  if (const int code = Start(*exchange); code != kExitOk) return code;
  const absl::Status status =
      RunExchange(*exchange, MakeRunOptions(options_, rails_, &fleet_), &fleet_.coordinator(), &report_);
  if (isatty(STDERR_FILENO) == 1) std::fputs("\r\033[K", stderr);
  return status.ok() ? Finish() : FailAll(kExitFailed, status);
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
                "Scales the volumes by one factor, so that a rank sends this much in the largest step; 0 leaves the "
                "volumes of a file as they are.");
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
  replay->add_flag("--verify,!--no-verify", options->verify,
                   "Checks every byte (the default), or only measures times.");
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
  AddPlaceFlags(replay, &options->place_flags);
  replay->callback([&context, options, file, workload, replay] {
    if (file->count() + workload->count() == 0) throw CLI::RequiredError("FILE or --workload");
    if (workload->count() > 0 && options->steps == 0) throw CLI::ValidationError("--steps", "0 needs a FILE");
    if (workload->count() > 0 && options->fleet.bytes_per_rank == 0) {
      throw CLI::ValidationError("--bytes-per-rank", "0 needs a FILE");
    }
    FleetFlags& fleet = options->fleet;
    options->place = ResolvePlace(options->place_flags, fleet);
    if (options->place.has_value()) {
      options->shared = SharedOptions(*replay);
      fleet.nodes.assign(options->place->world_size / fleet.ranks_per_node, context.socket_dir);
    }
    ResolveNodes(context, &fleet.nodes);
    context.run = [&context, options] {
      const bool alone = options->place.has_value() && options->place->rank > 0;
      return alone ? RunRank(context, *options->place, options->shared) : Replay(context, *options).Run();
    };
  });
}

void AddWorkerCommand(CLI::App& app, Context& context) {
  CLI::App* worker = app.add_subcommand("worker", "Runs one rank of replay or bench. railsctl starts it by itself.");
  worker->group("");
  auto standard = std::make_shared<bool>(false);
  worker->add_flag("--stdio", *standard, "Commands come on standard input, events go to standard output.");
  worker->callback([&context, standard] {
    context.run = [&context, standard = *standard] {
      const WorkerOptions options = LocalWorker(context, standard ? STDIN_FILENO : WorkerProcesses::kCommandsFd,
                                                standard ? STDOUT_FILENO : WorkerProcesses::kEventsFd);
      return RunWorker(options).exit_code;  // the coordinator reports what went wrong
    };
  });
}

}  // namespace rails::ctl
