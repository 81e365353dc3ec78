// Finds the RDMA ports of this node, and which of them can be a rail. Reads sysfs only, so it knows no libibverbs; a
// test gives it a tree of its own.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_DISCOVERY_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_DISCOVERY_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/transport/verbs/signal.h"

namespace railsd::verbs {

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

struct Gid {
  uint32_t index = 0;  // in the port's table
  std::array<uint8_t, 16> bytes{};
  GidType type = GidType::kInfiniBand;
  std::string interface;  // network interface whose address it is; empty where there is none
  bool IsIpv4() const;    // an IPv4-mapped address
};

enum class PortState : uint8_t { kUnknown, kDown, kInit, kArmed, kActive };

// One port of one RDMA device.
struct RdmaPort {
  std::string device;  // "mlx5_0"
  uint8_t port = 1;
  PortState state = PortState::kUnknown;
  std::string state_text;  // as the kernel says it: "DOWN", with the physical state where that says more
  LinkLayer link_layer = LinkLayer::kEthernet;
  uint64_t speed_bytes_per_s = 0;  // of all lanes together; 0: the kernel does not know
  uint32_t mtu_bytes = 0;          // active; 0: only the device knows, see device.h
  uint16_t lid = 0;                // InfiniBand only
  int numa_node = -1;              // -1: none or unknown
  std::string pci_address;         // "0000:3b:00.0"; empty for software devices
  std::vector<Gid> gids;           // those in use

  std::string Name() const;  // "mlx5_0/1"
};

// Every port of every device below `class_infiniband`, in order of PCI address (software devices last), device name and
// port. No such directory: no ports. A value that cannot be read stays at its default. Without `with_gids` the GID
// tables are not read, because a table has hundreds of files, one for each entry.
std::vector<RdmaPort> ReadRdmaPorts(const std::string& class_infiniband = "/sys/class/infiniband",
                                    bool with_gids = true);

// The GID that a rail on this port uses. `forced`: this index, NOT_FOUND if it is not in use. Otherwise on Ethernet
// RoCE v2 over IPv4, then RoCE v2 over a routable IPv6 address, then any RoCE v2; NOT_FOUND if there is none. On
// InfiniBand the first. Errors name the port and what it has.
absl::StatusOr<Gid> ChooseGid(const RdmaPort& port, std::optional<uint32_t> forced);

// OK when the port can be a rail; else FAILED_PRECONDITION saying why not: down, no usable GID, no LID.
absl::Status CheckUsable(const RdmaPort& port, std::optional<uint32_t> forced_gid = std::nullopt);

// "mlx5_0" (port 1) or "mlx5_0/2". INVALID_ARGUMENT for anything else.
struct PortName {
  std::string device;
  uint8_t port = 1;
};
absl::StatusOr<PortName> ParsePortName(const std::string& text);

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_DISCOVERY_H_
