// railsctl: inspects railsd daemons, plans, simulates, replays workloads through them and measures them.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/railsctl/command.h"
#include "client/railsctl/format.h"
#include "common/version/version.h"

namespace {

constexpr const char* kExitCodes =
    "\nExit codes:\n  0  All went well.\n  1  The command failed.\n  2  The command line is wrong.\n  3  A daemon is "
    "not reachable.\n  4  Bytes arrived wrong.\n  5  An input file is missing or bad.\n";
constexpr const char* kSharedOptions =
    "\nOptions of every command: --socket-dir, --json, --no-color, --timeout; see railsctl --help.\n";

// Describes the error in the command line.
std::string Describe(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining();
  if (!app.get_subcommands().empty() || unknown.empty()) {
    return std::string(absl::StripAsciiWhitespace(error.what()));
  }
  // CLI11 itself only says that a command is missing.
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return absl::StrCat("no command '", unknown.front(), "'; the commands are ", absl::StrJoin(names, ", "));
}

// True if the environment names a terminal without control sequences, or none.
bool IsDumbTerminal() {
  const char* term = std::getenv("TERM");
  return term == nullptr || *term == '\0' || absl::string_view(term) == "dumb";
}

// Reports the error, or prints --help or --version, which CLI11 treats as errors with code 0.
int EndOfParsing(const CLI::App& app, rails::ctl::Context& context, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  // --json may follow the error, where the parser has not read it.
  context.json = std::count(context.arguments.begin(), context.arguments.end(), "--json") > 0;
  const int code = Fail(context, rails::ctl::kExitUsage, absl::InvalidArgumentError(Describe(app, error)));
  std::fputs("Run with --help for more information.\n", stderr);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  // Switches off the lock order checks of Debian's Abseil, which put every mutex of gRPC into one global graph.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  rails::ctl::Context context;
  context.arguments.assign(argv + 1, argv + argc);

  CLI::App app{"Looks at railsd daemons, plans and simulates exchanges, replays workloads and measures.", "railsctl"};
  app.require_subcommand(1);
  app.fallthrough();
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // so scripts can override
  app.footer(absl::StrCat(kSharedOptions, kExitCodes));                          // commands copy the footer
  app.set_help_flag("-h,--help", "Prints this help and exits.");
  app.set_help_all_flag("--help-all", "Prints the help of all commands and exits.");
  app.get_formatter()->column_width(34);
  app.set_version_flag("--version", absl::StrCat("railsctl ", railsd::Version()), "Prints the version and exits.");
  app.add_option("--socket-dir", context.socket_dir, "The folder of the daemon's sockets.")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_flag("--json", context.json, "Prints JSON in base units: bytes and seconds.");
  bool no_color = false;
  app.add_flag("--no-color", no_color, "Prints no colours. Output that does not go to a terminal has none.");
  std::string timeout;
  app.add_option("--timeout", timeout,
                 "Gives up after this long: a call of a daemon (5s), or an exchange of replay and bench (60s).")
      ->type_name("TIME")
      ->check([](const std::string& text) { return std::string(rails::ctl::ParseTimeout(text).status().message()); });

  rails::ctl::AddInspectCommands(app, context);
  rails::ctl::AddOperateCommands(app, context);
  rails::ctl::AddExplainCommand(app, context);
  rails::ctl::AddTopCommand(app, context);
  rails::ctl::AddDoctorCommand(app, context);
  rails::ctl::AddExternalCommands(app, context);
  rails::ctl::AddConfigCommand(app, context);
  rails::ctl::AddPkiCommand(app, context);
  rails::ctl::AddReplayCommand(app, context);
  rails::ctl::AddBenchCommand(app, context);
  rails::ctl::AddWorkerCommand(app, context);
  rails::ctl::AddCompletionCommand(app, context);
  rails::ctl::AddManCommand(app, context);
  app.footer(kExitCodes);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return EndOfParsing(app, context, error);
  }
  if (!timeout.empty()) context.timeout = *rails::ctl::ParseTimeout(timeout);
  context.terminal = isatty(STDOUT_FILENO) == 1 && !IsDumbTerminal();
  context.color = !context.json && !no_color && context.terminal;
  const int code = context.run ? context.run() : static_cast<int>(rails::ctl::kExitUsage);
  return std::fflush(stdout) == 0 || code != 0 ? code : static_cast<int>(rails::ctl::kExitFailed);
}
