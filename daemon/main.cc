// The only wiring of the daemon.
#include <iostream>

#include "daemon/config/command_line.h"
#include "daemon/config/config.h"

int main(int argc, char** argv) {
  using namespace railsd;  // NOLINT: the composition root names everything
  const CommandLine line = ParseCommandLine(argc, argv);
  if (line.action == Action::kExit) return line.exit_code;
  const absl::StatusOr<Config> config = ConfigFor(line);
  if (!config.ok()) {
    std::cerr << config.status().message() << "\n";
    return kExitConfig;
  }
  if (line.action == Action::kPrintConfig) std::cout << PrintConfig(*config);
  if (line.action == Action::kCheckConfig) std::cout << line.config_path << ": ok\n";
  return kExitOk;
}
