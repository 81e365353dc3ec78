#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "common/cli/completion.h"
#include "common/cli/man_page.h"
#include "gmock/gmock.h"

namespace railsd::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Its syntax only.
bool BashTakes(const std::string& script) {
  FILE* const bash = popen("bash -n 2>/dev/null", "w");
  if (bash == nullptr) return false;
  fputs(script.c_str(), bash);
  return pclose(bash) == 0;
}

class CliTest : public ::testing::Test {
 protected:
  CliTest() : app_("Looks at things. Then at more.", "looker") {
    app_.add_option("--dir", dir_, "Where: it's .here\\there.")->type_name("DIR")->capture_default_str();
    app_.add_flag("--secret", secret_, "Nobody's business.")->group("");
    CLI::App* command = app_.add_subcommand("watch", "Watches one-by-one.");
    command->add_option("--how", how_, "In which way.")->check(CLI::IsMember({"slow", "fast"}))->type_name("HOW");
    command->add_option("what", what_, "What to watch.");
    app_.add_subcommand("hidden", "Not for people.")->group("");
    app_.footer("\nExit codes:\n  0  Seen.\n  1  Not seen.\n");
  }

  std::string dir_ = "/run", how_, what_;
  bool secret_ = false;
  CLI::App app_;
};

TEST_F(CliTest, ManPageHasWhatPeopleMayUse) {
  const std::string page =
      ManPage(app_, {.section = 1, .see_also = {"other(8)"}, .files = {{"/etc/looker", "Its own."}}});
  EXPECT_THAT(page, HasSubstr("\n.SH NAME\nlooker \\- looks at things\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fB\\-\\-dir\\fR \\fIDIR\\fR\nWhere: it's .here\\ethere.\nDefault: /run.\n"));
  EXPECT_THAT(page,
              HasSubstr(".SH COMMANDS\n.SS watch\nWatches one\\-by\\-one.\n.TP\n\\fB\\-\\-how\\fR \\fIHOW\\fR\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n\\fIWHAT\\fR\nWhat to watch.\n"));
  EXPECT_THAT(page, HasSubstr(".SH EXIT STATUS\n.TP\n\\fB0\\fR\nSeen.\n.TP\n\\fB1\\fR\nNot seen.\n"));
  EXPECT_THAT(page, HasSubstr(".SH SEE ALSO\n.BR other (8)\n"));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("secret")), Not(HasSubstr("hidden"))));
}

TEST_F(CliTest, LinesThatRoffWouldObeyAreText) {
  CLI::App app(".so /etc/passwd\n'nor this", "odd");
  EXPECT_THAT(ManPage(app, {}), HasSubstr(".SH DESCRIPTION\n\\&.so /etc/passwd\n.PP\n\\&'nor this\n"));
}

TEST_F(CliTest, CompletionHasCommandsOptionsAndChoices) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const absl::StatusOr<std::string> script = CompletionScript(app_, shell);
    ASSERT_TRUE(script.ok()) << script.status();
    EXPECT_THAT(*script, AllOf(HasSubstr("looker"), HasSubstr("watch"), HasSubstr("dir"), HasSubstr("fast")));
    EXPECT_THAT(*script, AllOf(Not(HasSubstr("secret")), Not(HasSubstr("hidden")))) << shell;
  }
  EXPECT_EQ(CompletionScript(app_, "tcsh").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CliTest, CompletionOfAProgramWithoutCommands) {
  CLI::App app("Only options.", "plain");
  app.add_flag("--loud", secret_, "Says more.");
  for (const char* shell : {"bash", "zsh", "fish"}) {
    EXPECT_THAT(*CompletionScript(app, shell), AllOf(HasSubstr("plain"), HasSubstr("loud"))) << shell;
  }
  EXPECT_TRUE(BashTakes(*CompletionScript(app, "bash"))) << "no option takes a value, no command there is";
}

TEST_F(CliTest, BashTakesTheCompletionOfEveryKindOfProgram) {
  EXPECT_TRUE(BashTakes(*CompletionScript(app_, "bash")));
  EXPECT_FALSE(BashTakes("case x in\n) y ;;\nesac\n"));
  CLI::App choices("Choices only.", "chooser");
  choices.add_option("--how", how_, "In which way.")->check(CLI::IsMember({"slow", "fast"}));
  EXPECT_TRUE(BashTakes(*CompletionScript(choices, "bash")));
}

}  // namespace
}  // namespace railsd::cli
