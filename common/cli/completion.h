// Completion for shells, made from the command tree itself, so that it cannot fall behind it.
#ifndef RAILSD_COMMON_CLI_COMPLETION_H_
#define RAILSD_COMMON_CLI_COMPLETION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace railsd::cli {

// The script for `shell`: bash, zsh or fish; INVALID_ARGUMENT for others. Hidden options and commands stay out of it.
absl::StatusOr<std::string> CompletionScript(const CLI::App& app, absl::string_view shell);

}  // namespace railsd::cli

#endif  // RAILSD_COMMON_CLI_COMPLETION_H_
