// The node's rails as the checks see them: of the daemon when one answers, else of its configuration.
#ifndef RAILS_RAILSCTL_DOCTOR_RAILS_H_
#define RAILS_RAILSCTL_DOCTOR_RAILS_H_

#include <string>
#include <vector>

#include "client/railsctl/doctor/facts.h"

namespace rails::ctl::doctor {

// Pointers go into the facts, which outlive it.
struct Rail {
  std::string name;
  bool verbs = false;
  std::string address;                   // TCP: without port; empty when only the interface is named
  std::string interface_name;            // TCP: that the rail is bound to; empty: of the address
  std::string device;                    // verbs: "mlx5_0/1", or a pattern in a configuration
  uint64_t speed_bytes_per_s = 0;        // that the planner expects; 0: unknown
  uint32_t path_mtu_bytes = 0;           // verbs, of a daemon
  const RdmaPort* port = nullptr;        // verbs: the one that matches
  const Interface* interface = nullptr;  // with its address, or of the port's GID; null when there is none
  const PciLink* pci = nullptr;          // of the port or the interface; null when neither is on PCIe
};

// A pattern of a configuration becomes one rail for each port that it matches. `rails: auto` stands for every active
// port.
std::vector<Rail> RailsOf(const Facts& facts);

// "10.1.0.1:7000" and "[fd00::1]:7000" without port and brackets; other texts as they are.
std::string HostOf(const std::string& address);

// The interface that has this address; null when none has.
const Interface* InterfaceWith(const Facts& facts, const std::string& host);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_RAILS_H_
