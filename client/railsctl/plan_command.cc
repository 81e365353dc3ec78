// plan: executes the program railsctl-plan, as git does with external subcommands. The planner is a separate program
// because it needs the data plane's code, which railsctl does not link.
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

constexpr const char* kProgram = "railsctl-plan";

std::vector<std::string> Candidates() {
  std::vector<std::string> candidates;
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path folder = self.parent_path();
    candidates.push_back((folder / kProgram).string());
    candidates.push_back((folder / "../libexec/railsd" / kProgram).lexically_normal().string());
    candidates.push_back((folder / "../../sim" / kProgram).lexically_normal().string());  // a build tree
  }
  const char* path = std::getenv("PATH");
  for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty())) {
    candidates.push_back(absl::StrCat(folder, "/", kProgram));
  }
  return candidates;
}

int RunPlan(const Context& context, std::vector<std::string> arguments) {
  if (context.json && std::find(arguments.begin(), arguments.end(), "--json") == arguments.end()) {
    arguments.push_back("--json");
  }
  const std::vector<std::string> candidates = Candidates();
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
              absl::NotFoundError(absl::StrCat("the program ", kProgram, " is not installed; looked for ",
                                               absl::StrJoin(candidates, ", "))));
}

}  // namespace

void AddPlanCommand(CLI::App& app, Context& context) {
  CLI::App* plan = app.add_subcommand(
      "plan", "Plans a traffic matrix or trace under each policy; runs railsctl-plan with all arguments.");
  plan->prefix_command();
  plan->fallthrough(false);
  plan->set_help_flag();  // --help is railsctl-plan's
  plan->callback([&context, plan] {
    std::vector<std::string> arguments = plan->remaining();
    context.run = [&context, arguments = std::move(arguments)] { return RunPlan(context, arguments); };
  });
}

}  // namespace rails::ctl
