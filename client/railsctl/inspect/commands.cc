// status, rails, drain, undrain, peers, jobs, log-level: one call each, printed.
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
#include "proto/json/json.h"

namespace rails::ctl {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);
// Lines of `jobs`: most jobs are over before anybody looks.
constexpr uint32_t kFinishedShown = 10;

template <typename Response>
int Print(const Context& context, const absl::StatusOr<Response>& response,
          std::string (*render)(const Response&, bool), nlohmann::ordered_json (*json)(const Response&)) {
  if (!response.ok()) return Fail(context, ExitCodeOfCall(response.status()), response.status());
  const std::string text = context.json
                               ? json(*response).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                               : render(*response, context.color);
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

OperatorClient Connect(const Context& context) {
  return OperatorClient(context.socket_dir, context.TimeoutOr(kCallTimeout));
}

// Refreshes until interrupted or until the daemon is gone. With --json, one object a line.
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
      std::printf("%s\n", RailsJson(*after).dump().c_str());
    } else {
      if (context.color) std::fputs("\033[H\033[2J", stdout);
      std::printf("%s%s\n", absl::FormatTime("%H:%M:%S", now, absl::LocalTimeZone()).c_str(), " (Ctrl-C ends)");
      std::fputs(RenderRailRates(*before, *after, absl::ToDoubleSeconds(now - taken), context.color).c_str(), stdout);
    }
    if (std::fflush(stdout) != 0) return kExitFailed;  // the reader went away
    before = std::move(after);
    taken = now;
  }
  return Fail(context, ExitCodeOfCall(before.status()), before.status());
}

// Sets the level, or asks for it when `level` is empty.
int LogLevel(const Context& context, const std::string& level) {
  const absl::StatusOr<std::string> before = Connect(context).SetLogLevel(level);
  if (!before.ok()) return Fail(context, ExitCodeOfCall(before.status()), before.status());
  const std::string now = level.empty() ? *before : level == "warn" ? "warning" : level;
  if (context.json) {
    const nlohmann::ordered_json json = {{"level", now}, {"level_before", *before}};
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::printf("%s%s\n", now.c_str(), level.empty() ? "" : absl::StrCat(" (it was ", *before, ")").c_str());
  }
  return kExitOk;
}

}  // namespace

void AddInspectCommands(CLI::App& app, Context& context) {
  CLI::App* status = app.add_subcommand("status", "Shows a daemon's state, sessions and groups.");
  status->callback([&context] {
    context.run = [&context] { return Print(context, Connect(context).GetStatus(), RenderStatus, StatusJson); };
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
      if (!watch) return Print(context, Connect(context).ListRails(), RenderRails, RailsJson);
      return WatchRails(context, ParseTimeout(*interval).value_or(absl::Seconds(1)));
    };
  });

  const auto add_drain = [&app, &context](const char* name, const char* help, bool drained) {
    CLI::App* command = app.add_subcommand(name, help);
    auto rail = std::make_shared<std::string>();
    command->add_option("rail", *rail, "The rail's name or index, as `railsctl rails` shows them.")
        ->required()
        ->type_name("RAIL");
    command->callback([&context, rail, drained] {
      context.run = [&context, rail, drained] {
        OperatorClient client = Connect(context);
        return Print(context, drained ? client.DrainRail(*rail) : client.UndrainRail(*rail), RenderDrain, RailJson);
      };
    });
  };
  add_drain("drain", "Moves traffic off a rail, here and at the peers; what is under way ends, and no chunk is lost.",
            true);
  add_drain("undrain", "Lets traffic return to a rail that was drained.", false);

  CLI::App* log_level = app.add_subcommand("log-level", "Shows or sets the level from which on a daemon logs.");
  auto level = std::make_shared<std::string>();
  log_level
      ->add_option("level", *level,
                   "trace, debug, info, warning, error or off; until it is set again or the daemon ends.")
      ->type_name("LEVEL");
  log_level->callback([&context, level] { context.run = [&context, level] { return LogLevel(context, *level); }; });

  CLI::App* peers = app.add_subcommand("peers", "Shows the other nodes and which rails reach them.");
  peers->callback([&context] {
    context.run = [&context] { return Print(context, Connect(context).ListPeers(), RenderPeers, PeersJson); };
  });

  CLI::App* jobs = app.add_subcommand("jobs", "Shows the active jobs and the latest finished ones, one line a rank.");
  auto finished = std::make_shared<uint32_t>(kFinishedShown);
  jobs->add_option("--finished", *finished, "Shows at most this many lines of finished jobs; 0 shows active ones only.")
      ->type_name("N")
      ->capture_default_str();
  jobs->callback([&context, finished] {
    context.run = [&context, finished] {
      return Print(context, Connect(context).ListJobs(*finished), RenderJobs, JobsJson);
    };
  });
}

}  // namespace rails::ctl
