#include "client/railsctl/replay/fleet_options.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "absl/strings/str_split.h"
#include "client/railsctl/format.h"

namespace rails::ctl {
namespace {

// Adds an option whose text is parsed into base units.
template <typename Parse>
CLI::Option* AddQuantity(CLI::App* command, const char* name, uint64_t* value, Parse parse, const char* help) {
  return command->add_option_function<std::string>(
      name,
      [value, parse, name](const std::string& text) {
        const absl::StatusOr<uint64_t> parsed = parse(text);
        if (!parsed.ok()) throw CLI::ValidationError(name, std::string(parsed.status().message()));
        *value = *parsed;
      },
      help);
}

}  // namespace

void AddFleetFlags(CLI::App* command, FleetFlags* flags, const char* bytes_default, const char* bytes_help) {
  flags->bytes_per_rank = *ParseBytes(bytes_default);
  command
      ->add_option("--nodes,--daemon", flags->nodes,
                   "The socket folders of the daemons of node 0, 1 and so on; one daemon, that of --socket-dir, "
                   "without it.")
      ->type_name("DIR,...")
      ->take_all()
      ->allow_extra_args(false);  // the argument after DIR is the trace, not another DIR
  command->add_option("--ranks-per-node", flags->ranks_per_node, "How many ranks run on each node.")
      ->type_name("R")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  auto* launch =
      command
          ->add_option(
              "--launch", flags->launch,
              "Starts each rank by this command with `railsctl worker --stdio` behind it, so that ranks live in "
              "containers of this machine: 'docker exec -i trainer{node}'. {node} and {rank} are replaced by "
              "numbers; blanks separate words.")
          ->type_name("COMMAND");
  command
      ->add_option("--launch-socket-dir", flags->launch_socket_dir,
                   "The socket folder as ranks see it that --launch starts; as in --nodes without it.")
      ->type_name("DIR")
      ->needs(launch);
  AddQuantity(command, "--bytes-per-rank", &flags->bytes_per_rank, ParseBytes, bytes_help)
      ->type_name("SIZE")
      ->default_str(bytes_default);
  command->add_option("--seed", flags->seed, "The seed of the traffic and of the payload.")
      ->type_name("S")
      ->check(NotBelowZero)
      ->capture_default_str();
  command->add_flag("--huge-pages", flags->huge_pages, "Puts the buffers on huge pages.");
  AddQuantity(command, "--rail-speed", &flags->rail_speed_bytes_per_second, ParseRate,
              "Counts the lower bound with this speed for every rail, as 200mbit, instead of the daemons' own.")
      ->type_name("RATE");
  command->add_option("--rails", flags->rails, "Counts the lower bound with this many rails for every node.")
      ->type_name("N")
      ->needs("--rail-speed");
  command
      ->add_option("--goodput", flags->goodput,
                   "Counts the lower bound with this part of the rails' speed, as 0.993 for what headers leave.")
      ->type_name("PART")
      ->check(CLI::Range(0.01, 1.0));
}

FleetOptions MakeFleetOptions(const Context& context, const FleetFlags& flags, int interrupt_fd) {
  FleetOptions options;
  options.socket_dirs = flags.nodes;
  options.launch = absl::StrSplit(flags.launch, ' ', absl::SkipEmpty());
  options.launch_socket_dir = flags.launch_socket_dir;
  options.ranks_per_node = flags.ranks_per_node;
  options.huge_pages = flags.huge_pages;
  options.seed = flags.seed;
  options.call_timeout = context.TimeoutOr(options.call_timeout);
  options.job_timeout = context.TimeoutOr(options.job_timeout);
  options.interrupt_fd = interrupt_fd;
  return options;
}

std::vector<double> NodeSpeeds(const FleetFlags& flags, const std::vector<NodeRails>& rails) {
  std::vector<double> speeds;
  for (const NodeRails& node : rails) {
    double speed = node.SpeedSum();
    if (flags.rail_speed_bytes_per_second > 0) {
      const auto count = flags.rails > 0 ? size_t{flags.rails} : node.rails.size();
      speed = static_cast<double>(flags.rail_speed_bytes_per_second) * static_cast<double>(count);
    }
    speeds.push_back(speed * flags.goodput);
  }
  return speeds;
}

}  // namespace rails::ctl
