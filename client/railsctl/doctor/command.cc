// doctor: finds what is wrong with this node, and says what to do.
#include "client/railsctl/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/cluster_command.h"
#include "client/railsctl/doctor/collect.h"
#include "client/railsctl/doctor/render.h"
#include "client/railsctl/health_client.h"
#include "client/railsctl/operator_client.h"
#include "common/json/json.h"
#include "common/version/version.h"

namespace rails::ctl {
namespace {

constexpr absl::Duration kDoctorTimeout = absl::Seconds(5);
constexpr absl::Duration kConnectLimit = absl::Seconds(2);
// After this uptime a daemon should reach its peers.
constexpr absl::Duration kSettleTime = absl::Seconds(10);
constexpr absl::Duration kSettleStep = absl::Milliseconds(200);
constexpr const char* kConfigPath = "/etc/railsd/railsd.yaml";

struct WantedChecks {
  std::string config;
  bool socket_dir_given = false;
};

// Reads the file of --config, else that of the running daemon, else the installed one.
doctor::Configuration Configure(const WantedChecks& wanted, const doctor::DaemonProcess& process) {
  const std::string path = !wanted.config.empty()         ? wanted.config
                           : !process.config_path.empty() ? process.config_path
                                                          : kConfigPath;
  const bool same = path == process.config_path;
  doctor::Configuration config = doctor::ReadConfiguration(path, same ? process.options : std::vector<std::string>());
  if (!same) config.hash.clear();
  config.given = !wanted.config.empty();
  return config;
}

doctor::DaemonProcess DaemonOf(const std::string& socket_dir) {
  return doctor::ReadProcess("", doctor::ListenerOf(absl::StrCat(socket_dir, "/operator.sock")));
}

// Asks the health service whether the daemon works and whether it takes new work.
void AskHealth(const Context& context, doctor::Facts* facts) {
  for (const auto& [service, answer] : {std::pair{"live", &facts->live}, std::pair{"", &facts->serving}}) {
    const absl::StatusOr<ServingStatus> status =
        CheckHealth(facts->socket_dir, service, context.TimeoutOr(kDoctorTimeout));
    if (absl::IsNotFound(status.status())) continue;  // an older daemon
    if (!status.ok()) facts->health = status.status();
    *answer = status.ok() && *status == ServingStatus::kServing;
  }
}

bool ReachesItsPeers(const v1::GetOverviewResponse& overview) {
  return std::all_of(overview.peers().begin(), overview.peers().end(), [](const v1::PeerStatus& peer) {
    return peer.up() && std::all_of(peer.rails_up().begin(), peer.rails_up().end(), [](bool up) { return up; });
  });
}

// Asks the daemon for its overview. Repeats for a young daemon until it reaches its peers or is kSettleTime old.
absl::StatusOr<v1::GetOverviewResponse> AskOverview(OperatorClient* client) {
  absl::StatusOr<v1::GetOverviewResponse> overview = client->GetOverview(0);
  while (overview.ok() && !ReachesItsPeers(*overview) &&
         absl::Seconds(overview->status().uptime_seconds()) < kSettleTime) {
    absl::SleepFor(kSettleStep);
    overview = client->GetOverview(0);
  }
  return overview;
}

doctor::Facts Collect(const Context& context, const WantedChecks& wanted) {
  doctor::Facts facts;
  facts.version = std::string(railsd::Version());
  facts.socket_dir = context.socket_dir;
  facts.process = DaemonOf(facts.socket_dir);
  facts.config = Configure(wanted, facts.process);
  if (!wanted.socket_dir_given && !facts.config.socket_dir.empty() && facts.config.socket_dir != facts.socket_dir) {
    facts.socket_dir = facts.config.socket_dir;
    facts.process = DaemonOf(facts.socket_dir);
  }
  doctor::LookUpPeers(&facts.config);
  facts.machine = doctor::ReadMachine("", doctor::OwnAddresses());
  facts.clock = doctor::ReadClock();
  facts.user = doctor::ReadUser();
  facts.own_memlock_bytes = doctor::OwnMemlockLimit();
  facts.sockets = doctor::ReadSockets(facts.socket_dir);
  OperatorClient client(facts.socket_dir, context.TimeoutOr(kDoctorTimeout));
  absl::StatusOr<v1::GetOverviewResponse> overview = AskOverview(&client);
  facts.answered = overview.status();
  if (overview.ok()) {
    facts.overview = *std::move(overview);
    AskHealth(context, &facts);
  } else {
    doctor::TryPeers(kConnectLimit, &facts.config.peers);
  }
  return facts;
}

int Examine(const Context& context, const WantedChecks& wanted) {
  const doctor::Facts facts = Collect(context, wanted);
  const doctor::Findings findings = doctor::CheckAll(facts);
  const std::string text =
      context.json ? DumpJson(doctor::ToJson(facts, findings), 2) + "\n" : doctor::Render(findings, context.color);
  std::fputs(text.c_str(), stdout);
  return doctor::Count(findings, doctor::Level::kError) == 0 ? kExitOk : kExitFailed;
}

}  // namespace

void AddDoctorCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Checks this node, with or without a running daemon, and says what to do about each finding. A daemon that "
      "began less than ten seconds ago is given that time to reach its peers. The exit code is 1 when there are "
      "errors. With --cluster it checks that the nodes of a cluster fit together, from any machine.");
  auto wanted = std::make_shared<WantedChecks>();
  command
      ->add_option("--config", wanted->config,
                   "The configuration; that of the running daemon or /etc/railsd/railsd.yaml when left out. Without "
                   "--socket-dir it also says where the sockets are.")
      ->type_name("FILE");
  auto where = std::make_shared<std::vector<std::string>>();
  command
      ->add_option("--cluster", *where,
                   "Compares all nodes of a cluster instead. Each node is HOST:PORT, its metrics.listen; @FILE has one "
                   "a line; dns:NAME:PORT is every address of a name. May be repeated.")
      ->type_name("WHERE,...")
      ->take_all()
      ->allow_extra_args(false)
      ->excludes("--config");
  command->callback([&app, &context, wanted, where] {
    if (!where->empty()) {
      context.run = [&context, where] { return ExamineCluster(context, *where); };
      return;
    }
    wanted->socket_dir_given = app.count("--socket-dir") > 0;
    context.run = [&context, wanted] { return Examine(context, *wanted); };
  });
}

}  // namespace rails::ctl
