// explain: the history of one job on one node, or on several.
#include "client/railsctl/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/railsctl/explain/nodes.h"
#include "client/railsctl/explain/read.h"
#include "client/railsctl/explain/render.h"
#include "client/railsctl/operator_client.h"
#include "client/railsctl/print.h"
#include "client/railsctl/read_input.h"
#include "common/json/json.h"

namespace rails::ctl {
namespace {

constexpr absl::Duration kExplainTimeout = absl::Seconds(5);

// Longer files cannot be the output of `explain --json`.
constexpr size_t kMaxFileBytes = 64 << 20;

struct WantedJob {
  std::string job = "latest", tenant, group, trace;
  std::vector<std::string> nodes;  // folders of sockets, and files of --json
  bool nodes_given = false;
};

// The answer of one node. `file`: read from a file, not from a daemon.
struct Answer {
  absl::StatusOr<v1::ExplainJobResponse> job;
  bool file = false;
};

absl::Status IsWanted(const WantedJob& wanted, uint64_t seq, const v1::ExplainJobResponse& job) {
  const v1::JobReport& report = job.report();
  if ((seq == 0 || seq == report.job().seq()) && (wanted.group.empty() || wanted.group == report.group()) &&
      (wanted.tenant.empty() || wanted.tenant == report.tenant())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("it is about job ", report.job().seq(), " of ", report.group(),
                                                 " (tenant ", report.tenant(),
                                                 "), not about the job that was asked for"));
}

Answer Ask(const Context& context, const WantedJob& wanted, const std::string& node,
           const v1::ExplainJobRequest& request) {
  std::error_code error;
  if (!wanted.nodes_given || std::filesystem::is_directory(node, error)) {
    return {OperatorClient(node, context.TimeoutOr(kExplainTimeout)).ExplainJob(request), false};
  }
  const absl::StatusOr<std::string> text = ReadInput(node, kMaxFileBytes);
  if (!text.ok()) return {text.status(), true};
  absl::StatusOr<v1::ExplainJobResponse> job = ReadExplanation(*text);
  absl::Status status = job.status();
  if (status.ok()) status = IsWanted(wanted, request.seq(), *job);
  if (status.ok()) return {std::move(job), true};
  return {absl::InvalidArgumentError(absl::StrCat(node, ": ", status.message())), true};
}

// Asks all nodes. The first answer decides which job is the latest. A daemon that does not answer is reported and left
// out, unless it is the only node; a file that is not usable is an error. `code` becomes the exit code.
absl::StatusOr<std::vector<v1::ExplainJobResponse>> AskAll(const Context& context, const WantedJob& wanted,
                                                           v1::ExplainJobRequest request, ExitCode* code) {
  std::vector<v1::ExplainJobResponse> jobs;
  absl::Status failure;
  for (const std::string& node : wanted.nodes) {
    Answer answer = Ask(context, wanted, node, request);
    if (!answer.job.ok()) {
      *code = answer.file ? kExitBadInputFile : ExitCodeOfCall(answer.job.status());
      if (answer.file || wanted.nodes.size() == 1) return answer.job.status();
      failure = answer.job.status();
      std::fprintf(stderr, "railsctl: left out %s: %s\n", node.c_str(), std::string(failure.message()).c_str());
      continue;
    }
    jobs.push_back(*std::move(answer.job));
    request.set_seq(jobs[0].report().job().seq());
    request.set_group(jobs[0].report().group());
    request.set_tenant(jobs[0].report().tenant());
  }
  if (jobs.empty()) return failure;
  if (absl::Status status = CheckOneJob(jobs); !status.ok()) {
    *code = kExitBadInputFile;
    return status;
  }
  return jobs;
}

nlohmann::ordered_json NodesJson(JobParts jobs, absl::Span<const NodeClock> clocks, absl::Span<const double> begun) {
  nlohmann::ordered_json nodes = nlohmann::ordered_json::array();
  for (size_t n = 0; n < jobs.size(); ++n) {
    nodes.push_back({{"clock_known", clocks[n].known},
                     {"clock_ahead_seconds", clocks[n].ahead_seconds},
                     {"clock_within_seconds", clocks[n].within_seconds},
                     {"timeline_seconds", begun[n]},
                     {"job", MessageJson(jobs[n])}});
  }
  return {{"nodes", std::move(nodes)}};
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("--trace: cannot write ", path));
}

int Explain(const Context& context, const WantedJob& wanted) {
  uint64_t seq = 0;
  if (wanted.job != "latest" && (!absl::SimpleAtoi(wanted.job, &seq) || seq == 0)) {
    return Fail(context, kExitUsage,
                absl::InvalidArgumentError(
                    absl::StrCat("JOB: '", wanted.job, "': give its number as `railsctl jobs` shows it, or latest")));
  }
  v1::ExplainJobRequest request;
  request.set_seq(seq);
  request.set_group(wanted.group);
  request.set_tenant(wanted.tenant);
  ExitCode code = kExitOk;
  const absl::StatusOr<std::vector<v1::ExplainJobResponse>> jobs = AskAll(context, wanted, request, &code);
  if (!jobs.ok()) return Fail(context, code, jobs.status());
  const std::vector<NodeClock> clocks = AlignClocks(*jobs);
  const std::vector<double> begun = Beginnings(*jobs, clocks);
  if (!wanted.trace.empty()) {
    if (absl::Status status = WriteFile(wanted.trace, TraceJson(*jobs, begun)); !status.ok()) {
      return Fail(context, kExitFailed, status);
    }
  }
  const bool one = wanted.nodes.size() == 1;
  PrintAs(context, one ? RenderExplanation((*jobs)[0], context.color) : RenderNodes(*jobs, clocks, context.color),
          one ? MessageJson((*jobs)[0]) : NodesJson(*jobs, clocks, begun));
  if (!wanted.trace.empty() && !context.json) {
    std::printf("\ntrace written to %s; open it in https://ui.perfetto.dev or chrome://tracing\n",
                wanted.trace.c_str());
  }
  return code;
}

}  // namespace

void AddExplainCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("explain",
                                         "Shows the course of a job on this node, or on several: which rank waited for "
                                         "which peer, planned and carried bytes by rail, and the causes.");
  auto wanted = std::make_shared<WantedJob>();
  command
      ->add_option("job", wanted->job, "The job's number, as `railsctl jobs` shows it; the latest one when left out.")
      ->type_name("JOB");
  command->add_option("--group", wanted->group, "The job's group, needed if several groups have a job of that number.")
      ->type_name("NAME");
  command
      ->add_option("--tenant", wanted->tenant,
                   "The tenant of that group, needed if several tenants have a group of that name.")
      ->type_name("TENANT");
  command
      ->add_option("--trace", wanted->trace, "Also writes a trace for Perfetto or Chrome into this file, replacing it.")
      ->type_name("FILE");
  command
      ->add_option("--nodes", wanted->nodes,
                   "Shows several nodes on one timeline: folders of sockets, and files that `explain --json` wrote on "
                   "other nodes. May be repeated, or list several with commas.")
      ->type_name("NODE");
  command->callback([&context, wanted] {
    wanted->nodes_given = !wanted->nodes.empty();
    ResolveNodes(context, &wanted->nodes);
    context.run = [&context, wanted] { return Explain(context, *wanted); };
  });
}

}  // namespace rails::ctl
