// Stands in for the transport where there is no libibverbs.
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/verbs_transport.h"

namespace railsd {

absl::StatusOr<std::unique_ptr<RailTransport>> CreateVerbsTransport(VerbsOptions options) {
  return absl::UnimplementedError(absl::StrCat("rail ", options.rail.value(), ": device '", options.device,
                                               "': built without libibverbs; rails are TCP only"));
}

bool HasVerbs() { return false; }

std::vector<verbs::RdmaPort> DiscoverRdmaPorts() { return verbs::ReadRdmaPorts(); }

}  // namespace railsd
