// The facts about a node for `railsctl doctor`. collect.h reads them once, checks.h judges them.
#ifndef RAILS_RAILSCTL_DOCTOR_FACTS_H_
#define RAILS_RAILSCTL_DOCTOR_FACTS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl::doctor {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

// The PCIe slot of a device. Zeros: unknown, or no PCIe device.
struct PciLink {
  std::string address;                      // "0000:3b:00.0"
  double transfers = 0, max_transfers = 0;  // GT/s of a lane
  uint32_t lanes = 0, max_lanes = 0;
  int numa_node = -1;
};

struct Interface {
  std::string name;
  std::string state;               // the kernel's: "up", "down", "unknown", ...
  uint64_t speed_bytes_per_s = 0;  // 0: the kernel does not know
  uint32_t mtu_bytes = 0;
  std::vector<std::string> addresses;  // "10.1.0.1/24"
  // Values in force: the larger of the interface's value and that of "all".
  int rp_filter = 0, arp_ignore = 0, arp_announce = 0;
  PciLink pci;
};

struct Gid {
  uint32_t index = 0;
  std::string text, type, interface;  // "::ffff:10.1.0.1", "RoCE v2", "eth2"
};

struct RdmaPort {
  std::string device;  // "mlx5_0"
  uint32_t port = 1;
  std::string state, physical_state;  // "ACTIVE", "LinkUp"
  std::string link_layer = "Ethernet";
  uint64_t speed_bytes_per_s = 0;
  uint32_t lid = 0;
  std::vector<Gid> gids;  // those in use
  PciLink pci;
  std::string Name() const { return device + "/" + std::to_string(port); }
};

struct DeviceFile {
  std::string path;
  mode_t mode = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

struct Machine {
  std::vector<Interface> interfaces;
  std::vector<RdmaPort> ports;
  std::vector<std::string> nics_without_rdma;  // PCI addresses of network devices that could do RDMA
  bool uverbs_module = false;
  std::vector<DeviceFile> device_files;  // of /dev/infiniband
  uint64_t huge_page_bytes = 0, huge_pages = 0, huge_pages_free = 0;
  uint64_t memory_bytes = 0;
  std::string tcp_upper_layers;  // the kernel's available upper protocols of TCP, such as "mptcp tls"
  int numa_nodes = 1;
};

struct Clock {
  bool known = false;  // adjtimex answered
  bool synchronised = false;
  int64_t max_error_us = 0;
};

struct User {
  uid_t uid = 0;
  std::string name;
  std::vector<gid_t> groups;  // of this process
};

struct Socket {
  std::string name;  // "client.sock"
  bool exists = false;
  bool usable = false;  // by this user
  mode_t mode = 0;
  gid_t gid = 0;
  std::string group;  // name, or number if it has no name
};

// The process that listens on the sockets, as far as this user can see it.
struct DaemonProcess {
  pid_t pid = 0;  // 0: not visible
  uid_t uid = 0;
  std::vector<gid_t> groups;
  bool may_lock_memory = false;                // CAP_IPC_LOCK
  uint64_t memlock_bytes = 0, open_files = 0;  // soft limits
  std::string config_path;                     // from its command line; empty: unknown
  std::vector<std::string> options;            // the rest of its command line
  std::optional<bool> same_network;            // in this process's network namespace; nullopt: unknown
};

struct ConfiguredRail {
  std::string name, transport, address, interface, device, speed;
};

struct ConfiguredPeer {
  std::string name, control;
  std::string trouble;  // error of connecting to `control`; empty: connected, or not tried
};

// The configuration file, and railsd's view of it.
struct Configuration {
  std::string path;
  bool given = false;  // named on this or the daemon's command line
  bool exists = false;
  std::string program;  // railsd; empty: not found
  std::string program_version;
  absl::Status verdict;  // INVALID_ARGUMENT with all errors in the file
  absl::Status here;     // NOT_FOUND: this machine has nothing for a pattern, network or interface in the file
  std::string hash;      // as the daemon computes it; empty: unknown, or the daemon uses another file
  // Set if the file has no errors. The rails are those of this machine, and set only if `here` is OK:
  std::string node, socket_dir, control_listen, dns_name;
  size_t dns_addresses = 0;  // addresses of dns_name
  std::string dns_trouble;   // error of its look-up
  bool auto_rails = false;
  bool tls_data = false;  // tls.data: kernel
  std::vector<ConfiguredRail> rails;
  std::vector<ConfiguredPeer> peers;
};

struct Facts {
  std::string version;  // of railsctl
  std::string socket_dir;
  Machine machine;
  Clock clock;
  User user;
  uint64_t own_memlock_bytes = 0;
  std::vector<Socket> sockets;  // client.sock, descriptors.sock, operator.sock
  DaemonProcess process;
  Configuration config;
  bool live = true;                  // health service: the daemon's threads run
  bool serving = true;               // health service: the daemon takes new work
  absl::Status health;               // error of asking the health service
  absl::Status answered;             // error of asking the operator socket
  v1::GetOverviewResponse overview;  // set if `answered` is OK

  bool running() const { return answered.ok(); }
};

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_FACTS_H_
