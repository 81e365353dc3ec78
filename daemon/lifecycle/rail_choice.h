// Which rails the configuration means on this node: its devices, patterns and `auto` against the RDMA ports that are
// there. Pure; daemon/main.cc reads the ports.
#ifndef RAILSD_DAEMON_LIFECYCLE_RAIL_CHOICE_H_
#define RAILSD_DAEMON_LIFECYCLE_RAIL_CHOICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/agent.h"
#include "agent/transport/verbs/discovery.h"
#include "daemon/config/config.h"

namespace railsd {

// The rails of `config` with every name filled in, every device as "NAME/PORT", and the speed of its port where none
// is configured. A device that is named is taken whatever its state is; patterns and `auto` take usable ports only, in
// the order of `ports`.
// Errors: NOT_FOUND, a device or port is not there, or nothing usable matches (names each port that was left out, and
// why); INVALID_ARGUMENT, two entries give the same port or name, a device has several ports and none is named, or
// there are too many rails; UNIMPLEMENTED, rails over RDMA are asked for and this program was built without libibverbs
// (`has_verbs`).
absl::StatusOr<std::vector<RailSpec>> ChooseRails(const Config& config, absl::Span<const verbs::RdmaPort> ports,
                                                  bool has_verbs = true);

// For people: a table of the ports, and for each whether it can be a rail or why not.
std::string RdmaPortTable(absl::Span<const verbs::RdmaPort> ports);
// The same for programs: {"ports": [...]}.
std::string RdmaPortJson(absl::Span<const verbs::RdmaPort> ports);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_RAIL_CHOICE_H_
