// Prints the answer of one call. Shared by the commands that inspect and operate a node.
#ifndef RAILS_RAILSCTL_PRINT_H_
#define RAILS_RAILSCTL_PRINT_H_

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/railsctl/command.h"
#include "client/railsctl/operator_client.h"
#include "common/json/json.h"

namespace rails::ctl {

inline OperatorClient Connect(const Context& context) {
  return OperatorClient(context.socket_dir, context.TimeoutOr(absl::Seconds(5)));
}

// Prints `text`, or with --json `json`, to standard output.
inline void PrintAs(const Context& context, const std::string& text, const nlohmann::ordered_json& json) {
  std::fputs(context.json ? (DumpJson(json, 2) + "\n").c_str() : text.c_str(), stdout);
}

// Prints the answer as text or JSON, or the error. Returns the exit code.
template <typename Response>
int Print(const Context& context, const absl::StatusOr<Response>& response,
          std::string (*render)(const Response&, bool)) {
  if (!response.ok()) return Fail(context, ExitCodeOfCall(response.status()), response.status());
  PrintAs(context, render(*response, context.color), MessageJson(*response));
  return kExitOk;
}

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_PRINT_H_
