// completion and man, made from the command tree.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "client/railsctl/command.h"
#include "common/cli/completion.h"
#include "common/cli/man_page.h"

namespace rails::ctl {

void AddCompletionCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("completion", "Prints a completion script for bash, zsh or fish.");
  auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "The shell to make the script for.")
      ->required()
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([&app, &context, shell] {
    context.run = [&app, &context, shell]() -> int {
      const absl::StatusOr<std::string> script = railsd::cli::CompletionScript(app, *shell);
      if (!script.ok()) return Fail(context, kExitUsage, script.status());
      std::fputs(script->c_str(), stdout);
      return kExitOk;
    };
  });
}

void AddManCommand(CLI::App& app, Context& context) {
  CLI::App* command = app.add_subcommand("man", "Prints the manual page, which packages install.");
  command->group("");
  command->callback([&app, &context] {
    context.run = [&app]() -> int {
      const std::string page = railsd::cli::ManPage(
          app, {.section = 1,
                .see_also = {"railsd(8)", "railsd.yaml(5)"},
                .files = {{"/run/railsd/operator.sock", "The daemon's socket for operators; group rails-operators."}}});
      std::fputs(page.c_str(), stdout);
      return kExitOk;
    };
  });
}

}  // namespace rails::ctl
