// What the configuration leaves open of a rail over TCP and its interface tells: the address, the speed.
#ifndef RAILSD_DAEMON_LIFECYCLE_RAIL_SPEED_H_
#define RAILSD_DAEMON_LIFECYCLE_RAIL_SPEED_H_

#include <spdlog/fwd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/agent.h"

namespace railsd {

inline constexpr uint64_t kDefaultRailBytesPerSecond = 1'250'000'000;  // 10gbit

// Interface that has `address` ("ip" or "ip:port"), or empty.
std::string InterfaceOf(const std::string& address);
// First address of an interface: IPv4, else IPv6 that is not link-local; empty where it has none.
std::string AddressOf(const std::string& interface);
// Gives rails over TCP that name only their interface its address, so that one configuration fits all nodes.
// Error: NOT_FOUND names the rail whose interface is not there or has no address.
absl::Status FillRailAddresses(std::vector<RailSpec>* rails);
// That of each rail over TCP, by rail: as configured, or the one that has its address; empty where there is none.
std::vector<std::string> InterfacesOf(const std::vector<RailSpec>& rails);
// Of an interface as the kernel tells it, in bytes per second; 0 when it does not know.
uint64_t InterfaceSpeed(const std::string& interface);
// Fills speeds of 0: from the interface (that of a device's port is known already), else the default with a warning.
void FillRailSpeeds(std::vector<RailSpec>* rails, spdlog::logger* log);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_RAIL_SPEED_H_
