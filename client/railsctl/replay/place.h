// A rank's place in a run whose ranks are started apart: options of the command line, and the variables that launchers
// set. Pure, except for the file of the token.
#ifndef RAILS_RAILSCTL_REPLAY_PLACE_H_
#define RAILS_RAILSCTL_REPLAY_PLACE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/railsctl/replay/rendezvous.h"

namespace rails::ctl {

struct PlaceFlags {
  std::optional<uint32_t> rank, world_size;
  std::string rendezvous, token_file;
  std::string join_timeout = "2m";
};

struct Place {
  uint32_t rank = 0, world_size = 1;
  uint32_t nodes = 1;  // number of nodes that have ranks
  Endpoint rendezvous;
  std::string token;  // empty: none
  absl::Duration join_timeout;
};

// Value of a variable, or null.
using Environment = std::function<const char*(const char* name)>;

inline constexpr uint32_t kMaxWorldSize = 1 << 16;

// Returns nullopt if this command starts all ranks itself: no flag names a place, and `starts_all` is true (--nodes or
// --launch is given) or the environment does not give a whole place (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
// Otherwise variables give what the flags leave out, also Slurm's SLURM_PROCID and SLURM_NTASKS.
// INVALID_ARGUMENT: names the option or variable.
absl::StatusOr<std::optional<Place>> FindPlace(const PlaceFlags& flags, bool starts_all, uint32_t ranks_per_node,
                                               const Environment& environment);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_PLACE_H_
