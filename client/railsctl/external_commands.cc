// plan, sim: execute the programs railsctl-plan and railsctl-sim, as git does with external subcommands. They are
// programs of their own because they need the data plane's code, which railsctl does not link.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/command.h"

namespace rails::ctl {
namespace {

std::vector<std::string> Candidates(const std::string& program) {
  std::vector<std::string> candidates;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path folder = self.parent_path();
    candidates.push_back((folder / program).string());
    candidates.push_back((folder / "../libexec/railsd" / program).lexically_normal().string());
    candidates.push_back((folder / "../../sim" / program).lexically_normal().string());  // a build tree
  }
  const char* path = std::getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty())) {
    candidates.push_back(absl::StrCat(folder, "/", program));
  }
  return candidates;
}

int RunProgram(const Context& context, const std::string& program, std::vector<std::string> arguments) {
  if (context.json && std::find(arguments.begin(), arguments.end(), "--json") == arguments.end()) {
    arguments.push_back("--json");
  }
  const std::vector<std::string> candidates = Candidates(program);
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), X_OK) != 0) continue;
    std::vector<char*> argv;
    std::string name = candidate;
    argv.push_back(name.data());
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(candidate.c_str(), argv.data());
    return Fail(context, kExitFailed, absl::InternalError(absl::StrCat(candidate, ": ", std::strerror(errno))));
  }
  return Fail(context, kExitFailed,
              absl::NotFoundError(absl::StrCat("the program ", program, " is not installed; looked for ",
                                               absl::StrJoin(candidates, ", "))));
}

void AddExternalCommand(const std::string& name, const std::string& description, CLI::App& app, Context& context) {
  const std::string program = absl::StrCat("railsctl-", name);
  CLI::App* command = app.add_subcommand(name, absl::StrCat(description, "; runs ", program, " with all arguments."));
  command->prefix_command();
  command->fallthrough(false);
  command->set_help_flag();  // the program itself prints --help
  command->callback([&context, command, program] {
    std::vector<std::string> arguments = command->remaining();
    context.run = [&context, program, arguments = std::move(arguments)] {
      return RunProgram(context, program, arguments);
    };
  });
}

}  // namespace

void AddExternalCommands(CLI::App& app, Context& context) {
  AddExternalCommand("plan", "Plans a traffic matrix or trace under each policy", app, context);
  AddExternalCommand("sim", "Simulates exchanges on a cluster under each policy", app, context);
}

}  // namespace rails::ctl
