#include "client/railsctl/command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/json/json.h"

namespace rails::ctl {

int Fail(const Context& context, ExitCode code, const absl::Status& status) {
  const std::string message(status.message());
  std::fprintf(stderr, "railsctl: %s\n", message.c_str());
  if (context.json) {
    const nlohmann::json error = {{"error",
                                   {{"code", absl::StatusCodeToString(status.code())},
                                    {"message", message},
                                    {"exit_code", static_cast<int>(code)}}}};
    std::printf("%s\n", DumpJson(error, 2).c_str());
  }
  return code;
}

void ResolveNodes(const Context& context, std::vector<std::string>* nodes) {
  // Splits here, because CLI11's delimiter drops empty names and so renumbers the nodes behind them.
  for (const std::string& list : std::exchange(*nodes, {})) {
    for (absl::string_view dir : absl::StrSplit(list, ',')) nodes->emplace_back(dir);
  }
  if (nodes->empty()) nodes->push_back(context.socket_dir);
  for (const std::string& node : *nodes) {
    if (node.empty()) throw CLI::ValidationError("--nodes", "a folder's name is empty");
  }
}

}  // namespace rails::ctl
