// drain, undrain, reload, redial, log-level, health: calls of operators and probes to a node.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/railsctl/command.h"
#include "client/railsctl/health_client.h"
#include "client/railsctl/inspect/render.h"
#include "client/railsctl/operator_client.h"
#include "client/railsctl/print.h"
#include "common/json/json.h"

namespace rails::ctl {
namespace {

// Drains or undrains the whole node.
int DrainNode(const Context& context, bool drained) {
  OperatorClient client = OperatorClient(context.socket_dir, absl::Seconds(5));
  const absl::Status status = drained ? client.DrainNode(context.timeout) : client.UndrainNode();
  if (absl::IsDeadlineExceeded(status)) return Fail(context, kExitFailed, status);  // answered, but jobs still run
  if (!status.ok()) return Fail(context, ExitCodeOfCall(status), status);
  PrintAs(context,
          drained
              ? "The node is drained: its jobs have ended, and it takes nothing new until `railsctl undrain --node` "
                "or a restart.\n"
              : "The node takes new work.\n",
          {{"drained", drained}});
  return kExitOk;
}

// INVALID_ARGUMENT means an error in the file, not in the command line.
int Reload(const Context& context) {
  const absl::StatusOr<v1::ReloadResponse> response = Connect(context).Reload();
  if (absl::IsInvalidArgument(response.status())) return Fail(context, kExitBadInputFile, response.status());
  return Print(context, response, RenderReload);
}

int Health(const Context& context, const std::string& address, const std::string& service) {
  const absl::Duration timeout = context.TimeoutOr(absl::Seconds(5));
  const absl::StatusOr<ServingStatus> status = address.empty() ? CheckHealth(context.socket_dir, service, timeout)
                                                               : CheckHealthOverHttp(address, service, timeout);
  if (!status.ok()) return Fail(context, ExitCodeOfCall(status.status()), status.status());
  PrintAs(context, absl::StrCat(ServingStatusName(*status), "\n"), {{"status", ServingStatusName(*status)}});
  return *status == ServingStatus::kServing ? kExitOk : kExitFailed;
}

// Sets the level, or asks for it if `level` is empty.
int LogLevel(const Context& context, const std::string& level) {
  const absl::StatusOr<std::string> before = Connect(context).SetLogLevel(level);
  if (!before.ok()) return Fail(context, ExitCodeOfCall(before.status()), before.status());
  const std::string now = level.empty() ? *before : level == "warn" ? "warning" : level;
  PrintAs(context, absl::StrCat(now, level.empty() ? "" : absl::StrCat(" (it was ", *before, ")"), "\n"),
          {{"level", now}, {"level_before", *before}});
  return kExitOk;
}

// Makes the daemon connect anew to `node`, and waits until the new connection carries the link.
absl::Status RedialPeer(OperatorClient& client, const v1::PeerStatus& before, absl::Duration limit) {
  if (absl::Status status = client.RedialPeer(before.node()); !status.ok()) return status;
  const absl::Time until = absl::Now() + limit;
  while (absl::Now() < until) {
    const absl::StatusOr<v1::ListPeersResponse> peers = client.ListPeers();
    if (!peers.ok()) return peers.status();
    for (const v1::PeerStatus& peer : peers->peers()) {
      if (peer.node() != before.node()) continue;
      if (peer.connections() > before.connections()) return absl::OkStatus();
      if (!peer.dial_failure().empty()) {
        return absl::FailedPreconditionError(
            absl::StrCat("no new connection; the link still uses the old one: ", peer.dial_failure()));
      }
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::DeadlineExceededError(absl::StrCat("no new connection within ", absl::FormatDuration(limit)));
}

// Redials one peer after the other, so that the node keeps all its other links.
int Redial(const Context& context, const std::vector<std::string>& nodes) {
  OperatorClient client(context.socket_dir, absl::Seconds(5));
  const absl::StatusOr<v1::ListPeersResponse> peers = client.ListPeers();
  if (!peers.ok()) return Fail(context, ExitCodeOfCall(peers.status()), peers.status());
  std::vector<v1::PeerStatus> wanted;
  for (const std::string& node : nodes) wanted.emplace_back().set_node(node);
  for (const v1::PeerStatus& peer : peers->peers()) {
    if (nodes.empty() && peer.up()) wanted.push_back(peer);
    for (v1::PeerStatus& named : wanted) {
      if (named.node() == peer.node()) named = peer;
    }
  }
  nlohmann::ordered_json done = nlohmann::ordered_json::array();
  bool all = true;
  for (const v1::PeerStatus& peer : wanted) {
    const absl::Time begun = absl::Now();
    const absl::Status status = RedialPeer(client, peer, context.TimeoutOr(absl::Seconds(30)));
    const double seconds = absl::ToDoubleSeconds(absl::Now() - begun);
    all = all && status.ok();
    done.push_back({{"node", peer.node()}, {"seconds", seconds}});
    if (!status.ok()) done.back()["error"] = std::string(status.message());
    if (context.json) continue;
    const std::string text =
        status.ok() ? absl::StrFormat("connected anew in %.2f s", seconds) : std::string(status.message());
    std::fprintf(status.ok() ? stdout : stderr, "[%zu/%zu] %s: %s\n", done.size(), wanted.size(), peer.node().c_str(),
                 text.c_str());
    std::fflush(stdout);
  }
  PrintAs(context, wanted.empty() ? "no peer is up\n" : "", {{"peers", done}});
  return all ? kExitOk : kExitFailed;
}

void AddDrain(CLI::App& app, Context& context, const char* name, const char* help, bool drained) {
  CLI::App* command = app.add_subcommand(name, help);
  auto rail = std::make_shared<std::string>();
  auto* name_option = command->add_option("rail", *rail, "The rail's name or index, as `railsctl rails` shows them.")
                          ->type_name("RAIL");
  const std::string node_help =
      drained
          ? "Drains the whole node: it takes no new sessions, groups and jobs, and the command returns when running "
            "jobs have ended, or fails after --timeout (timeouts.drain of the daemon without it)."
          : "Lets the node take new work again.";
  auto* node_flag = command->add_flag("--node", node_help);
  node_flag->excludes(name_option);
  command->callback([&context, rail, name_option, node_flag, drained] {
    if (name_option->count() + node_flag->count() == 0) throw CLI::RequiredError("RAIL or --node");
    if (node_flag->count() > 0) {
      context.run = [&context, drained] { return DrainNode(context, drained); };
      return;
    }
    context.run = [&context, rail, drained] {
      OperatorClient client = Connect(context);
      return Print(context, drained ? client.DrainRail(*rail) : client.UndrainRail(*rail), RenderDrain);
    };
  });
}

}  // namespace

void AddOperateCommands(CLI::App& app, Context& context) {
  AddDrain(app, context, "drain",
           "Moves traffic off a rail, here and at the peers, or new work off the whole node. Jobs under way end, "
           "and no chunk is lost.",
           true);
  AddDrain(app, context, "undrain", "Lets traffic return to a rail, or new work to a node, that was drained.", false);

  CLI::App* reload = app.add_subcommand(
      "reload", "Makes the daemon read its configuration file again; shows what it applied and what needs a restart.");
  reload->callback([&context] { context.run = [&context] { return Reload(context); }; });

  CLI::App* redial = app.add_subcommand(
      "redial",
      "Connects anew to peers, one after the other, with the certificates in force now; no message or job is lost.");
  auto nodes = std::make_shared<std::vector<std::string>>();
  redial->add_option("node", *nodes, "Names of peers, as `railsctl peers` shows them; all that are up without it.")
      ->type_name("NODE");
  redial->callback([&context, nodes] { context.run = [&context, nodes] { return Redial(context, *nodes); }; });

  CLI::App* log_level = app.add_subcommand("log-level", "Shows or sets the lowest level that a daemon logs.");
  auto level = std::make_shared<std::string>();
  log_level
      ->add_option("level", *level,
                   "trace, debug, info, warning, error or off. It holds until it is set again or the daemon ends.")
      ->type_name("LEVEL");
  log_level->callback([&context, level] { context.run = [&context, level] { return LogLevel(context, *level); }; });

  CLI::App* health = app.add_subcommand(
      "health", "Asks a daemon's standard gRPC health service; the exit code is 0 when it says SERVING, else 1 or 3.");
  auto address = std::make_shared<std::string>();
  health
      ->add_option("--address", *address,
                   "Asks over HTTP there, at a daemon's metrics.listen, instead of the socket folder.")
      ->type_name("HOST:PORT");
  auto service = std::make_shared<std::string>();
  health
      ->add_option("--service", *service,
                   "Asks for this service: `live` says whether the daemon works, even while it is drained or stops; "
                   "without it, whether it takes new work.")
      ->type_name("NAME");
  health->callback([&context, address, service] {
    context.run = [&context, address, service] { return Health(context, *address, *service); };
  });
}

}  // namespace rails::ctl
