// Manual pages, made from the command tree and its help texts.
#ifndef RAILSD_COMMON_CLI_MAN_PAGE_H_
#define RAILSD_COMMON_CLI_MAN_PAGE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace CLI {
class App;
}

namespace railsd::cli {

struct ManPageOptions {
  int section = 1;
  // Other pages, as in "railsd(8)".
  std::vector<std::string> see_also{};
  // Files that the program uses, each with its description.
  std::vector<std::pair<std::string, std::string>> files{};
};

// The page of a program in the language of man(7): its options, its commands with their options, and the footer's list
// of exit codes. Leaves out hidden options and commands.
std::string ManPage(const CLI::App& app, const ManPageOptions& options);

}  // namespace railsd::cli

#endif  // RAILSD_COMMON_CLI_MAN_PAGE_H_
