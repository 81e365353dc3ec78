// bench: throughput, latency of small jobs and cost of submissions through real daemons.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "client/railsctl/bench/measure.h"
#include "client/railsctl/command.h"
#include "client/railsctl/format.h"
#include "client/railsctl/replay/fleet.h"
#include "client/railsctl/replay/fleet_options.h"
#include "client/railsctl/replay/layout.h"
#include "common/json/json.h"

namespace rails::ctl {
namespace {

struct BenchOptions {
  FleetFlags fleet;
  std::string mode = "all";
  uint32_t iterations = 10, small_iterations = 200, warmup = 2;
  uint32_t ranges = 0;  // of one submission; 0: one per flow, or 15,000 in mode submit
  uint64_t small_bytes = 4096, range_bytes = 64;
  bool explain = false, prepared = false;
};

constexpr uint32_t kSubmitRanges = 15'000;

// Ranges for each of rank 0's flows, so that its submission has about `ranges`.
uint32_t RangesPerFlow(const workload::TrafficMatrix& ranks, uint32_t ranges) {
  uint32_t flows = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) flows += ranks.at(0, rank) > 0 ? 1 : 0;
  return ranges == 0 || flows == 0 ? 1 : (ranges + flows - 1) / flows;
}

class Bench {
 public:
  Bench(const Context& context, const BenchOptions& options) : context_(context), options_(options) {}

  int Run() {
    PlanRequests();
    SignalGuard signals;
    Fleet fleet(MakeFleetOptions(context_, options_.fleet, signals.fd()));
    absl::StatusOr<std::vector<NodeRails>> rails = fleet.ReadRails();
    if (!rails.ok()) return Fail(context_, ExitCodeOfCall(rails.status()), rails.status());
    uint64_t send_bytes = 0, receive_bytes = 0;
    if (absl::Status status = SizeSegments(&send_bytes, &receive_bytes); !status.ok()) {
      return Fail(context_, kExitUsage, status);
    }
    if (absl::Status status = fleet.Start(send_bytes, receive_bytes); !status.ok()) {
      return Fail(context_, absl::IsUnavailable(status) ? kExitUnreachable : kExitFailed, status);
    }
    for (auto& [request, result] : requests_) {
      request.node_speeds = NodeSpeeds(options_.fleet, *rails);
      absl::StatusOr<Measurement> measured = Measure(request, &fleet.coordinator(), &job_);
      if (!measured.ok()) return Fail(context_, kExitFailed, measured.status());
      *result = *std::move(measured);
    }
    if (absl::Status status = fleet.Stop(kExitOk, ""); !status.ok()) {
      std::fprintf(stderr, "railsctl: %s\n", std::string(status.message()).c_str());
    }
    const std::string text =
        context_.json ? DumpJson(BenchJson(report_), 2) + "\n" : RenderBench(report_, options_.explain, context_.color);
    std::fputs(text.c_str(), stdout);
    return report_.wrong_bytes() == 0 ? kExitOk : kExitWrongBytes;
  }

 private:
  void Add(workload::TrafficMatrix ranks, uint32_t ranges, uint32_t iterations, bool rank0_last,
           std::optional<Measurement>* result) {
    MeasureRequest request;
    request.ranges_per_flow = RangesPerFlow(ranks, ranges);
    request.ranks = std::move(ranks);
    request.ranks_per_node = options_.fleet.ranks_per_node;
    request.iterations = iterations;
    request.warmup = options_.warmup;
    request.rank0_last = rank0_last;
    request.prepared = options_.prepared;
    requests_.emplace_back(std::move(request), result);
  }

  void PlanRequests() {
    report_.nodes = static_cast<uint32_t>(options_.fleet.nodes.size());
    report_.ranks_per_node = options_.fleet.ranks_per_node;
    const size_t ranks = size_t{report_.nodes} * report_.ranks_per_node;
    const bool all = options_.mode == "all";
    if (all || options_.mode == "throughput") {
      Add(UniformMatrix(ranks, options_.fleet.bytes_per_rank), options_.ranges, options_.iterations, false,
          &report_.throughput);
    }
    if (all || options_.mode == "latency") {
      Add(UniformMatrix(ranks, options_.small_bytes), 0, options_.small_iterations, false, &report_.small_jobs);
    }
    if (options_.mode == "submit") {
      const uint32_t ranges = options_.ranges > 0 ? options_.ranges : kSubmitRanges;
      Add(FromRankZero(ranks, report_.ranks_per_node, ranges * options_.range_bytes), ranges, options_.iterations, true,
          &report_.submit);
    }
  }

  absl::Status SizeSegments(uint64_t* send_bytes, uint64_t* receive_bytes) const {
    for (const auto& [request, result] : requests_) {
      for (size_t rank = 0; rank < request.ranks.size(); ++rank) {
        absl::StatusOr<RankLayout> layout =
            LayOut(RowOf(request.ranks, rank), ColumnOf(request.ranks, rank), request.ranges_per_flow);
        if (!layout.ok()) return layout.status();
        *send_bytes = std::max(*send_bytes, layout->send_bytes);
        *receive_bytes = std::max(*receive_bytes, layout->receive_bytes);
      }
    }
    return absl::OkStatus();
  }

  const Context& context_;
  const BenchOptions& options_;
  BenchReport report_;
  std::vector<std::pair<MeasureRequest, std::optional<Measurement>*>> requests_;
  uint64_t job_ = 0;
};

}  // namespace

void AddBenchCommand(CLI::App& app, Context& context) {
  CLI::App* bench = app.add_subcommand(
      "bench", "Measures throughput, small jobs and submissions through daemons, one process per rank.");
  auto options = std::make_shared<BenchOptions>();
  bench
      ->add_option("--mode", options->mode,
                   "Measures throughput and latency (all), one of them, or the cost of one large submission "
                   "(submit).")
      ->type_name("MODE")
      ->check(CLI::IsMember({"all", "throughput", "latency", "submit"}))
      ->capture_default_str();
  AddFleetFlags(bench, &options->fleet, "64MiB", "Bytes that each rank sends in one exchange.");
  bench->add_option("--iterations", options->iterations, "How often the exchange is measured.")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  bench->add_option("--small-iterations", options->small_iterations, "How often the small exchange is measured.")
      ->type_name("N")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  bench->add_flag("--explain", options->explain, "Shows where the time of small jobs goes.");
  bench->add_flag("--prepared", options->prepared, "Submits exchanges that are prepared once.");
  bench->add_option("--warmup", options->warmup, "Exchanges before those that are measured.")
      ->type_name("N")
      ->capture_default_str();
  bench
      ->add_option("--ranges", options->ranges,
                   "Cuts what a rank sends into about this many ranges: one per flow without it, 15000 in mode submit.")
      ->type_name("N")
      ->check(CLI::Range(1, 10'000'000));
  const auto quantity = [bench](const char* name, uint64_t* value, const char* help, const char* default_text) {
    bench
        ->add_option_function<std::string>(
            name,
            [value, name](const std::string& text) {
              const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
              if (!bytes.ok()) throw CLI::ValidationError(name, std::string(bytes.status().message()));
              *value = *bytes;
            },
            help)
        ->type_name("SIZE")
        ->default_str(default_text);
  };
  quantity("--small-bytes", &options->small_bytes, "Bytes that each rank sends in a small exchange.", "4KiB");
  quantity("--range-bytes", &options->range_bytes, "The length of a range in mode submit.", "64");
  bench->callback([&context, options] {
    ResolveNodes(context, &options->fleet.nodes);
    if (options->mode == "submit" && options->fleet.nodes.size() * options->fleet.ranks_per_node < 2) {
      throw CLI::ValidationError("--mode", "submit needs two ranks at least");
    }
    if (options->range_bytes == 0 || options->range_bytes > (1 << 20)) {
      throw CLI::ValidationError("--range-bytes", "must be from 1 to 1MiB");
    }
    context.run = [&context, options] { return Bench(context, *options).Run(); };
  });
}

}  // namespace rails::ctl
