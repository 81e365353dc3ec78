// Fills in the address and speed of a TCP rail from its interface, if the configuration does not give them.
#ifndef RAILSD_DAEMON_LIFECYCLE_RAIL_SPEED_H_
#define RAILSD_DAEMON_LIFECYCLE_RAIL_SPEED_H_

#include <spdlog/fwd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/agent.h"
#include "daemon/lifecycle/local_address.h"

namespace railsd {

inline constexpr uint64_t kDefaultRailBytesPerSecond = 1'250'000'000;  // 10gbit

// Gives TCP rails that name a network or only an interface the address that this machine has there, so that one
// configuration fits all nodes. NOT_FOUND: names the rail whose interface or network has no address here.
// INVALID_ARGUMENT: two rails would have the same address.
absl::Status FillRailAddresses(absl::Span<const LocalAddress> known, std::vector<RailSpec>* rails);
// The interface of each TCP rail, by rail: as configured, or the one that has its address, else empty.
std::vector<std::string> InterfacesOf(const std::vector<RailSpec>& rails);
// The kernel's speed of an interface in bytes per second; 0 if unknown.
uint64_t InterfaceSpeed(const std::string& interface);
// Replaces speeds of 0 by the interface's speed, else by the default, with a warning. RDMA ports already have theirs.
void FillRailSpeeds(absl::Span<const LocalAddress> known, std::vector<RailSpec>* rails, spdlog::logger* log);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_RAIL_SPEED_H_
