// Chooses the rails of this node: matches the configured devices, patterns and `auto` against its RDMA ports. Pure;
// daemon/main.cc reads the ports.
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

// Returns the rails of `config` with all names, devices as "NAME/PORT", and the port's speed if none is configured.
// Takes ports that are named in any state, by device, pattern or `auto_rails.take`, so that a port that is down keeps
// its rail index. `auto` without `take` takes only usable ports. Several ports go in the order of `ports`. NOT_FOUND: a
// device or port does not exist, or no port fits (names each port, and why `auto` left it out). INVALID_ARGUMENT: two
// entries give the same port or name, a device has several ports and none is named, or there are too many rails.
// UNIMPLEMENTED: the configuration has RDMA rails, but the program was built without libibverbs (`has_verbs`).
// FAILED_PRECONDITION: `auto` gives another number of rails than `auto_rails.count` (names each port that was left out,
// and why).
absl::StatusOr<std::vector<RailSpec>> ChooseRails(const Config& config, absl::Span<const verbs::RdmaPort> ports,
                                                  bool has_verbs = true);

// A table of the ports for people. Says of each that it can be a rail, or why not.
std::string RdmaPortTable(absl::Span<const verbs::RdmaPort> ports);
// The same as JSON: {"ports": [...]}.
std::string RdmaPortJson(absl::Span<const verbs::RdmaPort> ports);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_RAIL_CHOICE_H_
