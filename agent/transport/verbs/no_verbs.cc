// Stands in for the transport where there is no libibverbs.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/verbs_transport.h"

namespace railsd {

namespace verbs {
class DeviceEvents {};
}  // namespace verbs

absl::StatusOr<std::unique_ptr<RailTransport>> CreateVerbsTransport(VerbsOptions options) {
  return absl::UnimplementedError(absl::StrCat("rail ", options.rail.value(), ": device '", options.device,
                                               "': built without libibverbs; rails are TCP only"));
}

absl::StatusOr<std::shared_ptr<verbs::DeviceEvents>> CreateVerbsEventThread() {
  return absl::UnimplementedError("built without libibverbs");
}

bool HasVerbs() { return false; }

std::vector<verbs::RdmaPort> DiscoverRdmaPorts() { return verbs::ReadRdmaPorts(); }

}  // namespace railsd
