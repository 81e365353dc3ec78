// What the drivers of rails count by themselves, from sysfs.
#ifndef RAILSD_DAEMON_METRICS_PORT_COUNTERS_H_
#define RAILSD_DAEMON_METRICS_PORT_COUNTERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace railsd {

// Name and value of each counter that the port has, in a fixed order; empty without such a port. Only names of a fixed
// list are read, so a driver cannot make up labels: errors, discards, what is sent again, and signs of congestion.
// `sysfs` is /sys but in tests.
std::vector<std::pair<std::string, uint64_t>> ReadRdmaPortCounters(const std::string& device, uint32_t port,
                                                                   const std::string& sysfs = "/sys");

// Of a network interface.
struct InterfaceCounters {
  std::optional<uint64_t> tx_bytes, rx_bytes;            // all that pass it, with headers
  std::vector<std::pair<std::string, uint64_t>> events;  // as above
};

// Empty without such an interface.
InterfaceCounters ReadInterfaceCounters(const std::string& interface, const std::string& sysfs = "/sys");

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_PORT_COUNTERS_H_
