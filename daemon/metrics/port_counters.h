// Reads the drivers' own counters of rails from sysfs.
#ifndef RAILSD_DAEMON_METRICS_PORT_COUNTERS_H_
#define RAILSD_DAEMON_METRICS_PORT_COUNTERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railsd {

// Name and value of each counter that the port has, in a fixed order; empty if there is no such port. Reads only a
// fixed list of names (errors, discards, retransmissions, congestion), so that a driver cannot add labels. Tests
// replace `sysfs`.
std::vector<std::pair<std::string, uint64_t>> ReadRdmaPortCounters(const std::string& device, uint32_t port,
                                                                   const std::string& sysfs = "/sys");

// Counters of a network interface.
struct InterfaceCounters {
  std::optional<uint64_t> tx_bytes, rx_bytes;            // all traffic, with headers
  std::vector<std::pair<std::string, uint64_t>> events;  // as above
};

// Empty if there is no such interface.
InterfaceCounters ReadInterfaceCounters(const std::string& interface, const std::string& sysfs = "/sys");

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_PORT_COUNTERS_H_
