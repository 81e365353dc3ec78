// The interface of railsctl's commands. Each command adds itself to the CLI11 tree and sets Context::run.
#ifndef RAILS_RAILSCTL_COMMAND_H_
#define RAILS_RAILSCTL_COMMAND_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/railsctl/exit_code.h"

namespace CLI {
class App;
}

namespace rails::ctl {

// Options that all commands share. The parser fills them before a command runs.
struct Context {
  std::string socket_dir = "/run/railsd";
  bool json = false;
  absl::Duration timeout = absl::ZeroDuration();  // zero: not given, the command's default
  bool terminal = false;                          // standard output is a terminal with control sequences
  bool color = false;                             // print colours: a terminal, and no --no-color

  std::vector<std::string> arguments;  // as given, without the program's name

  // Set by a command's options; run after parsing. Returns the exit code.
  std::function<int()> run;

  absl::Duration TimeoutOr(absl::Duration fallback) const {
    return timeout > absl::ZeroDuration() ? timeout : fallback;
  }
};

// Prints "railsctl: MESSAGE" to standard error; with --json, also {"error": {code, message}} to standard output.
// Returns `code`.
int Fail(const Context& context, ExitCode code, const absl::Status& status);

// Splits the values of --nodes, each of which may list several folders with commas, into one folder an entry. Without
// --nodes the only entry is --socket-dir. Call after parsing. Throws CLI::ValidationError, as CLI11 requires, if a name
// is empty.
void ResolveNodes(const Context& context, std::vector<std::string>* nodes);

void AddInspectCommands(CLI::App& app, Context& context);    // status, tenants, rails, peers, jobs
void AddOperateCommands(CLI::App& app, Context& context);    // drain, undrain, reload, redial, log-level, health
void AddExplainCommand(CLI::App& app, Context& context);     // explain
void AddTopCommand(CLI::App& app, Context& context);         // top
void AddDoctorCommand(CLI::App& app, Context& context);      // doctor
void AddExternalCommands(CLI::App& app, Context& context);   // plan, sim
void AddConfigCommand(CLI::App& app, Context& context);      // config
void AddPkiCommand(CLI::App& app, Context& context);         // pki
void AddReplayCommand(CLI::App& app, Context& context);      // replay
void AddBenchCommand(CLI::App& app, Context& context);       // bench
void AddWorkerCommand(CLI::App& app, Context& context);      // hidden: one rank of replay and bench
void AddCompletionCommand(CLI::App& app, Context& context);  // completion
void AddManCommand(CLI::App& app, Context& context);         // hidden: man

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_COMMAND_H_
