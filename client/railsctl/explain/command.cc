// explain: the history of one job on one node.
#include "client/railsctl/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/railsctl/explain/render.h"
#include "client/railsctl/operator_client.h"
#include "proto/json/json.h"

namespace rails::ctl {
namespace {

constexpr absl::Duration kExplainTimeout = absl::Seconds(5);

struct WantedJob {
  std::string job = "latest", tenant, group, trace;
};

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
  OperatorClient client(context.socket_dir, context.TimeoutOr(kExplainTimeout));
  const absl::StatusOr<v1::ExplainJobResponse> job = client.ExplainJob(request);
  if (!job.ok()) return Fail(context, ExitCodeOfCall(job.status()), job.status());
  if (!wanted.trace.empty()) {
    std::ofstream file(wanted.trace, std::ios::trunc);
    file << TraceJson(*job);
    file.close();
    if (!file) {
      return Fail(context, kExitFailed, absl::UnavailableError(absl::StrCat("--trace: cannot write ", wanted.trace)));
    }
  }
  const std::string text =
      context.json ? ExplanationJson(*job).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                   : RenderExplanation(*job, context.color);
  std::fputs(text.c_str(), stdout);
  if (!wanted.trace.empty() && !context.json) {
    std::printf("\ntrace written to %s; open it in https://ui.perfetto.dev or chrome://tracing\n",
                wanted.trace.c_str());
  }
  return kExitOk;
}

}  // namespace

void AddExplainCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "explain", "Shows what became of a job on this node: who waited for whom, plan and outcome by rail, and why.");
  auto wanted = std::make_shared<WantedJob>();
  command
      ->add_option("job", wanted->job, "The job's number, as `railsctl jobs` shows it; the latest one when left out.")
      ->type_name("JOB");
  command->add_option("--group", wanted->group, "Names the job's group, where several have a job of that number.")
      ->type_name("NAME");
  command
      ->add_option("--tenant", wanted->tenant, "Names the tenant of that group, where several have one of that name.")
      ->type_name("TENANT");
  command
      ->add_option("--trace", wanted->trace, "Also writes a trace for Perfetto or Chrome into this file, replacing it.")
      ->type_name("FILE");
  command->callback([&context, wanted] { context.run = [&context, wanted] { return Explain(context, *wanted); }; });
}

}  // namespace rails::ctl
