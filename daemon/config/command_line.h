// The command line.
#ifndef RAILSD_DAEMON_CONFIG_COMMAND_LINE_H_
#define RAILSD_DAEMON_CONFIG_COMMAND_LINE_H_

#include <string>

#include "absl/status/statusor.h"
#include "daemon/config/config.h"

namespace railsd {

// Exit codes of `railsd`.
enum ExitCode { kExitOk = 0, kExitRuntime = 1, kExitUsage = 2, kExitConfig = 3 };

enum class Action { kRun, kPrintConfig, kCheckConfig, kListDevices, kMetricsTable, kConfigTable, kExit };

struct CommandLine {
  Action action = Action::kRun;
  int exit_code = kExitOk;  // kExit: help, the version or a complaint has been printed
  std::string config_path;
  bool json = false;     // kListDevices
  bool resolve = false;  // kPrintConfig: with the rails and addresses of this machine
  // Override the file; empty: the file's value.
  std::string node, listen, socket_dir, log_level, log_format;
};

CommandLine ParseCommandLine(int argc, char** argv);

// Loads the file, then overrides it with the flags.
absl::StatusOr<Config> ConfigFor(const CommandLine& line);

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_COMMAND_LINE_H_
