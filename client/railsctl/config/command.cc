// config: makes parts of the daemons' configuration.
#include "client/railsctl/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/config/peers.h"
#include "client/railsctl/print.h"
#include "client/railsctl/read_input.h"

namespace rails::ctl {
namespace {

constexpr uint16_t kControlPort = 7471;
constexpr size_t kMaxBytes = 1 << 20;  // of the file

struct PeersOptions {
  std::string from;
  uint16_t port = kControlPort;
};

int PrintPeers(const Context& context, const PeersOptions& options) {
  const absl::StatusOr<std::string> text = ReadInput(options.from, kMaxBytes);
  if (!text.ok()) return Fail(context, kExitBadInputFile, text.status());
  const std::string source = options.from == "-" ? "standard input" : options.from;
  const absl::StatusOr<config::PeerList> list = config::ReadHosts(*text, source, options.port);
  if (!list.ok()) return Fail(context, kExitBadInputFile, list.status());
  if (!list->left_out.empty()) {
    std::fprintf(stderr, "railsctl: left out, because no other node reaches their addresses: %s\n",
                 absl::StrJoin(list->left_out, ", ").c_str());
  }
  nlohmann::ordered_json peers = nlohmann::ordered_json::array();
  for (const config::StaticPeer& peer : list->peers) peers.push_back({{"name", peer.name}, {"control", peer.control}});
  PrintAs(context, config::PeersYaml(list->peers), {{"peers", {{"static", peers}}}});
  return kExitOk;
}

}  // namespace

void AddConfigCommand(CLI::App& app, Context& context) {
  CLI::App* config = app.add_subcommand("config", "Makes parts of the daemons' configuration.");
  config->require_subcommand(1);
  CLI::App* peers = config->add_subcommand(
      "peers", "Makes `peers.static` from a list of all nodes. The same list fits every node: each leaves itself out.");
  const auto options = std::make_shared<PeersOptions>();
  peers
      ->add_option("--from", options->from,
                   "The file, or - for standard input. Each line names one node: NAME, NAME ADDRESS, or ADDRESS NAME "
                   "as in /etc/hosts.")
      ->required()
      ->type_name("FILE");
  peers->add_option("--port", options->port, "The port of their control.listen.")
      ->type_name("PORT")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  peers->callback([&context, options] { context.run = [&context, options] { return PrintPeers(context, *options); }; });
}

}  // namespace rails::ctl
