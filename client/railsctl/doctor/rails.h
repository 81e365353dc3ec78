// The node's rails for the checks: from the daemon if one answers, else from its configuration.
#ifndef RAILS_RAILSCTL_DOCTOR_RAILS_H_
#define RAILS_RAILSCTL_DOCTOR_RAILS_H_

#include <optional>
#include <string>
#include <vector>

#include "client/railsctl/doctor/facts.h"

namespace rails::ctl::doctor {

// Pointers point into the facts, which outlive the rail.
struct Rail {
  std::string name;
  bool verbs = false;
  std::string address;                   // TCP: without port; empty if only the interface is named
  std::string interface_name;            // TCP: the rail is bound to it; empty: the address decides
  std::string device;                    // verbs: "mlx5_0/1", or a pattern in a configuration
  uint64_t speed_bytes_per_s = 0;        // speed that the planner expects; 0: unknown
  uint32_t path_mtu_bytes = 0;           // verbs, if a daemon answers
  std::optional<bool> dma_bufs;          // verbs, if a daemon tells: the device registers dma-bufs
  const RdmaPort* port = nullptr;        // verbs: the matching port
  const Interface* interface = nullptr;  // has the address, or belongs to the port's GID; null: none
  const PciLink* pci = nullptr;          // of the port or the interface; null: neither is on PCIe
};

// A pattern in the configuration becomes one rail for each matching port. `rails: auto` means every active port.
std::vector<Rail> RailsOf(const Facts& facts);

// Number of rails that this node, with `own` rails, and the peer both have. `own` if the peer's number is not known
// yet.
int CommonRails(const v1::PeerStatus& peer, int own);

// Removes port and brackets from "10.1.0.1:7000" and "[fd00::1]:7000". Returns other texts unchanged.
std::string HostOf(const std::string& address);

// The interface that has this address, or null.
const Interface* InterfaceWith(const Facts& facts, const std::string& host);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_RAILS_H_
