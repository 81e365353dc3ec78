#include "sim/program.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace railsd::sim {

int Fail(const std::string& command, bool json, ExitCode code, const absl::Status& status) {
  if (json) {
    const nlohmann::ordered_json object = {{"error",
                                            {{"code", absl::StatusCodeToString(status.code())},
                                             {"exit_code", static_cast<int>(code)},
                                             {"message", std::string(status.message())}}}};
    std::cout << object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  std::cerr << command << ": " << status.message() << "\n";
  return code;
}

std::optional<int> ParseCommandLine(CLI::App* app, int argc, char** argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app->exit(error);
    // --json may follow the mistake, where the parser has not read it.
    const bool json = std::find(argv, argv + argc, std::string_view("--json")) != argv + argc;
    const int code = Fail(app->get_name(), json, kExitUsage, absl::InvalidArgumentError(error.what()));
    std::cerr << "Run " << app->get_name() << " --help for more information.\n";
    return code;
  }
  return std::nullopt;
}

}  // namespace railsd::sim
