// One rank of a replay whose ranks are started apart, by ssh, Slurm, Kubernetes or anything else.
#ifndef RAILS_RAILSCTL_REPLAY_RANK_H_
#define RAILS_RAILSCTL_REPLAY_RANK_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/railsctl/command.h"
#include "client/railsctl/replay/fleet_options.h"
#include "client/railsctl/replay/place.h"
#include "client/railsctl/replay/worker.h"

namespace rails::ctl {

// `flags` must outlive the parsing.
void AddPlaceFlags(CLI::App* replay, PlaceFlags* flags);
// FindPlace() with the process's environment. Throws CLI::ValidationError, as CLI11 requires.
std::optional<Place> ResolvePlace(const PlaceFlags& flags, const FleetFlags& fleet);

// The options of the parsed command line that all ranks must have in common, in the order of the help, each as
// "--seed 7". Options that are not given have their defaults.
std::vector<std::string> SharedOptions(const CLI::App& replay);

// Rank 0: waits for the others and returns their connections. Errors of Rendezvous.
absl::StatusOr<std::vector<internal::UniqueFd>> GatherRanks(const Place& place, const std::vector<std::string>& shared,
                                                            int interrupt_fd);
// Any other rank: joins rank 0, does what it asks, and returns an exit code.
int RunRank(const Context& context, const Place& place, const std::vector<std::string>& shared);

// Options of a worker that gets commands and writes events through these descriptors.
WorkerOptions LocalWorker(const Context& context, int commands_fd, int events_fd);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_RANK_H_
