#include "client/railsctl/replay/rank.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/railsctl/format.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/replay/fleet.h"
#include "common/version/version.h"

namespace rails::ctl {
namespace {

// Options that need not be the same for all ranks of a run.
constexpr absl::string_view kOwnOptions[] = {
    "--help",   "--help-all",          "--rank",         "--world",   "--rendezvous", "--token", "--nodes",
    "--launch", "--launch-socket-dir", "--join-timeout", "--progress"};
// Time for rank 0 to send its first command after it has waited for the other ranks. It waits at most --join-timeout
// after this rank has connected.
constexpr absl::Duration kStartGrace = absl::Seconds(30);
constexpr size_t kMostMessageColumns = 1000;

void Say(const std::string& text) { std::fprintf(stderr, "railsctl: %s\n", Printable(text).c_str()); }

HelloEvent HelloOf(const Place& place, const std::vector<std::string>& shared) {
  HelloEvent hello;
  hello.set_token(place.token);
  hello.set_version(std::string(railsd::Version()));
  hello.set_rank(place.rank);
  hello.set_world_size(place.world_size);
  for (const std::string& option : shared) hello.add_options(option);
  return hello;
}

}  // namespace

void AddPlaceFlags(CLI::App* replay, PlaceFlags* flags) {
  replay
      ->add_option("--rank", flags->rank,
                   "Runs this one rank here, and every other rank is started in the same way, on its node; rank 0 "
                   "prints the report. Without it: RANK or SLURM_PROCID of the environment.")
      ->type_name("R")
      ->check(NotBelowZero);
  replay
      ->add_option("--world", flags->world_size,
                   "How many ranks there are in all. Without it: WORLD_SIZE or SLURM_NTASKS of the environment.")
      ->type_name("N")
      ->check(NotBelowZero);
  replay
      ->add_option("--rendezvous", flags->rendezvous,
                   "Where rank 0 listens and the other ranks connect. Without it: MASTER_ADDR and MASTER_PORT of the "
                   "environment.")
      ->type_name("HOST:PORT");
  replay
      ->add_option("--token", flags->token_file,
                   "A file with a secret that ranks must share to take part. Without it: RAILSCTL_TOKEN of the "
                   "environment, or none.")
      ->type_name("FILE");
  replay->add_option("--join-timeout", flags->join_timeout, "How long ranks wait until all have been started.")
      ->type_name("TIME")
      ->check([](const std::string& text) { return std::string(ParseTimeout(text).status().message()); })
      ->capture_default_str();
}

std::optional<Place> ResolvePlace(const PlaceFlags& flags, const FleetFlags& fleet) {
  const bool starts_all = !fleet.nodes.empty() || !fleet.launch.empty();
  absl::StatusOr<std::optional<Place>> place =
      FindPlace(flags, starts_all, fleet.ranks_per_node, [](const char* name) { return std::getenv(name); });
  if (!place.ok()) throw CLI::ValidationError(std::string(place.status().message()));
  return *std::move(place);
}

std::vector<std::string> SharedOptions(const CLI::App& replay) {
  std::vector<std::string> shared;
  for (const CLI::Option* option : replay.get_options()) {
    const std::string name = option->get_name();
    if (std::find(std::begin(kOwnOptions), std::end(kOwnOptions), name) != std::end(kOwnOptions)) continue;
    const std::string value =
        option->count() > 0 ? absl::StrJoin(option->reduced_results(), " ") : option->get_default_str();
    shared.push_back(absl::StrCat(name, " ", value.empty() ? "(default)" : value));
  }
  return shared;
}

absl::StatusOr<std::vector<internal::UniqueFd>> GatherRanks(const Place& place, const std::vector<std::string>& shared,
                                                            int interrupt_fd) {
  const Patience patience{.deadline = absl::Now() + place.join_timeout, .interrupt_fd = interrupt_fd};
  const absl::StatusOr<Rendezvous> rendezvous = Rendezvous::Listen(place.rendezvous, patience);
  if (!rendezvous.ok()) return rendezvous.status();
  const std::string given = FormatEndpoint(place.rendezvous);
  Say(absl::StrCat("rank 0 waits at ", given,
                   rendezvous->address() == given ? "" : absl::StrCat(" (", rendezvous->address(), ")"), " for ",
                   FormatCount(place.world_size - 1, "other rank"),
                   place.token.empty() ? "; without --token any process that connects can be one" : ""));
  if (place.nodes == 1) Say("all ranks are on one node: no rail carries a byte");
  return rendezvous->Gather(HelloOf(place, shared), patience, Say);
}

int RunRank(const Context& context, const Place& place, const std::vector<std::string>& shared) {
  const absl::StatusOr<internal::UniqueFd> connection =
      ConnectToRankZero(place.rendezvous, HelloOf(place, shared), absl::Now() + place.join_timeout);
  if (!connection.ok()) return Fail(context, kExitFailed, connection.status());
  WorkerOptions worker = LocalWorker(context, connection->get(), connection->get());
  worker.socket_dir = context.socket_dir;
  worker.patience = place.join_timeout + kStartGrace;
  worker.rank = place.rank;
  worker.world_size = place.world_size;
  const WorkerEnd end = RunWorker(worker);
  if (end.exit_code == kExitOk) return kExitOk;
  // The message may hold text from another machine.
  return Fail(context, static_cast<ExitCode>(end.exit_code),
              absl::AbortedError(Clip(Printable(end.message), kMostMessageColumns)));
}

WorkerOptions LocalWorker(const Context& context, int commands_fd, int events_fd) {
  WorkerOptions options;
  options.commands_fd = commands_fd;
  options.events_fd = events_fd;
  options.connect = &Client::Connect;
  options.read_rails = [timeout = context.TimeoutOr(absl::Seconds(5)),
                        daemon = std::shared_ptr<OperatorClient>()](const std::string& socket_dir) mutable {
    if (daemon == nullptr) daemon = std::make_shared<OperatorClient>(socket_dir, timeout);
    return ReadNodeRails(daemon.get());
  };
  return options;
}

}  // namespace rails::ctl
