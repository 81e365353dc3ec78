// status, tenants, rails, peers, jobs: one call each, printed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/railsctl/command.h"
#include "client/railsctl/format.h"
#include "client/railsctl/inspect/render.h"
#include "client/railsctl/operator_client.h"
#include "client/railsctl/print.h"
#include "common/json/json.h"

namespace rails::ctl {
namespace {

// Finished jobs that `jobs` prints, because most jobs have ended when somebody looks.
constexpr uint32_t kFinishedShown = 10;

// Refreshes until interrupted or until the daemon exits. With --json, one object a line.
int WatchRails(const Context& context, absl::Duration interval) {
  OperatorClient client = Connect(context);
  absl::StatusOr<v1::ListRailsResponse> before = client.ListRails();
  absl::Time taken = absl::Now();
  while (before.ok()) {
    absl::SleepFor(interval);
    absl::StatusOr<v1::ListRailsResponse> after = client.ListRails();
    const absl::Time now = absl::Now();
    if (!after.ok()) return Fail(context, ExitCodeOfCall(after.status()), after.status());
    if (context.json) {
      std::printf("%s\n", DumpJson(MessageJson(*after)).c_str());
    } else {
      if (context.color) std::fputs("\033[H\033[2J", stdout);
      std::printf("%s%s\n", absl::FormatTime("%H:%M:%S", now, absl::LocalTimeZone()).c_str(), " (Ctrl-C ends)");
      std::fputs(RenderRailRates(*before, *after, absl::ToDoubleSeconds(now - taken), context.color).c_str(), stdout);
    }
    if (std::fflush(stdout) != 0) return kExitFailed;  // the reader has closed the pipe
    before = std::move(after);
    taken = now;
  }
  return Fail(context, ExitCodeOfCall(before.status()), before.status());
}

}  // namespace

void AddInspectCommands(CLI::App& app, Context& context) {
  CLI::App* status = app.add_subcommand("status", "Shows a daemon's state, sessions and groups.");
  status->callback(
      [&context] { context.run = [&context] { return Print(context, Connect(context).GetStatus(), RenderStatus); }; });

  CLI::App* tenants = app.add_subcommand(
      "tenants", "Shows who shares the node: what each tenant has, its quotas, and what they refused.");
  tenants->callback([&context] {
    context.run = [&context] {
      const absl::StatusOr<v1::GetStatusResponse> status = Connect(context).GetStatus();
      if (!status.ok()) return Fail(context, ExitCodeOfCall(status.status()), status.status());
      PrintAs(context, RenderTenants(*status, context.color), {{"tenants", MessageJson(*status)["tenants"]}});
      return int{kExitOk};
    };
  });

  CLI::App* rails = app.add_subcommand("rails", "Shows a daemon's rails: state, speed, queues and counters.");
  auto interval = std::make_shared<std::string>();
  rails->add_option("--watch", *interval, "Refreshes in this interval, 1s when none is given, and shows rates.")
      ->type_name("[INTERVAL]")
      ->expected(0, 1)
      ->default_str("1s")
      ->check([](const std::string& text) { return std::string(ParseTimeout(text).status().message()); });
  rails->callback([&context, rails, interval] {
    const bool watch = rails->count("--watch") > 0;
    context.run = [&context, interval, watch] {
      if (!watch) return Print(context, Connect(context).ListRails(), RenderRails);
      return WatchRails(context, ParseTimeout(*interval).value_or(absl::Seconds(1)));
    };
  });

  CLI::App* peers = app.add_subcommand("peers", "Shows the other nodes and which rails reach them.");
  peers->callback(
      [&context] { context.run = [&context] { return Print(context, Connect(context).ListPeers(), RenderPeers); }; });

  CLI::App* jobs = app.add_subcommand("jobs", "Shows the active jobs and the latest finished ones, one line a rank.");
  auto finished = std::make_shared<uint32_t>(kFinishedShown);
  jobs->add_option("--finished", *finished, "Shows at most this many lines of finished jobs; 0 shows active ones only.")
      ->type_name("N")
      ->capture_default_str();
  jobs->callback([&context, finished] {
    context.run = [&context, finished] { return Print(context, Connect(context).ListJobs(*finished), RenderJobs); };
  });
}

}  // namespace rails::ctl
