#include "client/railsctl/command.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace rails::ctl {

int Fail(const Context& context, ExitCode code, const absl::Status& status) {
  const std::string message(status.message());
  std::fprintf(stderr, "railsctl: %s\n", message.c_str());
  if (context.json) {
    const nlohmann::json error = {{"error",
                                   {{"code", absl::StatusCodeToString(status.code())},
                                    {"message", message},
                                    {"exit_code", static_cast<int>(code)}}}};
    std::printf("%s\n", error.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
  return code;
}

}  // namespace rails::ctl
