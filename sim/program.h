// Exit codes, errors and the command line of railsctl-plan and railsctl-sim, as railsctl has them.
#ifndef RAILSD_SIM_PROGRAM_H_
#define RAILSD_SIM_PROGRAM_H_

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace railsd::sim {

enum ExitCode : int { kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitBadInput = 5 };

// Prints an error of a command, such as "railsctl sim", to standard error and, with `json`, as an object to standard
// output. Returns `code`.
int Fail(const std::string& command, bool json, ExitCode code, const absl::Status& status);

// Parses the command line. Returns an exit code if the program must end, because it has printed help or a mistake.
std::optional<int> ParseCommandLine(CLI::App* app, int argc, char** argv);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_PROGRAM_H_
