// The command-line options that replay and bench share.
#ifndef RAILS_RAILSCTL_REPLAY_FLEET_OPTIONS_H_
#define RAILS_RAILSCTL_REPLAY_FLEET_OPTIONS_H_

#include <string>
#include <vector>

#include "client/railsctl/command.h"
#include "client/railsctl/replay/accounting.h"
#include "client/railsctl/replay/fleet.h"

namespace rails::ctl {

struct FleetFlags {
  std::vector<std::string> nodes;  // socket folders
  std::string launch, launch_socket_dir;
  uint32_t ranks_per_node = 1;
  uint64_t bytes_per_rank = 0;
  uint64_t seed = 1;
  bool huge_pages = false;
  uint64_t rail_speed_bytes_per_second = 0;  // 0: the daemons' value
  uint32_t rails = 0;                        // 0: the daemons' number
  double goodput = 1;
};

// `flags` must outlive the parsing. `bytes_default`: such as "16MiB".
void AddFleetFlags(CLI::App* command, FleetFlags* flags, const char* bytes_default, const char* bytes_help);
FleetOptions MakeFleetOptions(const Context& context, const FleetFlags& flags, int interrupt_fd);

// Sum of each node's rails in bytes per second, for the lower bound.
std::vector<double> NodeSpeeds(const FleetFlags& flags, const std::vector<NodeRails>& rails);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_FLEET_OPTIONS_H_
