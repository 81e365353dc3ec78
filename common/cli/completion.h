// Completion for shells, made from the command tree, so that it follows every change of the commands.
#ifndef RAILSD_COMMON_CLI_COMPLETION_H_
#define RAILSD_COMMON_CLI_COMPLETION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace railsd::cli {

// The script for `shell`: bash, zsh or fish; INVALID_ARGUMENT for another shell. Leaves out hidden options and
// commands.
absl::StatusOr<std::string> CompletionScript(const CLI::App& app, absl::string_view shell);

}  // namespace railsd::cli

#endif  // RAILSD_COMMON_CLI_COMPLETION_H_
