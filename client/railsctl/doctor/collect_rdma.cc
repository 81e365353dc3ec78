// Reads RDMA ports and PCIe slots from sysfs.
#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/collect.h"

namespace rails::ctl::doctor {
namespace {

namespace fs = std::filesystem;

// "4: ACTIVE" and "5: LinkUp" without the number.
std::string AfterColon(const std::string& line) {
  const size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

// "100 Gb/sec (4X EDR)", "16.0 GT/s PCIe".
double LeadingNumber(const std::string& line) {
  double number = 0;
  return absl::SimpleAtod(line.substr(0, line.find(' ')), &number) && number > 0 && number < 1e6 ? number : 0;
}

void ReadGids(const std::string& folder, RdmaPort* port) {
  for (const std::string& name : ListFolder(folder + "/gids")) {
    Gid gid;
    uint8_t bytes[16];
    if (!absl::SimpleAtoi(name, &gid.index) ||
        inet_pton(AF_INET6, ReadLine(absl::StrCat(folder, "/gids/", name)).c_str(), bytes) != 1 ||
        std::all_of(std::begin(bytes), std::end(bytes), [](uint8_t byte) { return byte == 0; })) {
      continue;
    }
    char text[INET6_ADDRSTRLEN];
    gid.text = inet_ntop(AF_INET6, bytes, text, sizeof(text));
    gid.type = ReadLine(absl::StrCat(folder, "/gid_attrs/types/", name));
    gid.interface = ReadLine(absl::StrCat(folder, "/gid_attrs/ndevs/", name));
    port->gids.push_back(std::move(gid));
  }
  std::sort(port->gids.begin(), port->gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
}

RdmaPort ReadPort(const std::string& device_folder, const std::string& device, uint32_t number) {
  const std::string folder = absl::StrCat(device_folder, "/ports/", number);
  RdmaPort port;
  port.device = device;
  port.port = number;
  port.state = AfterColon(ReadLine(folder + "/state"));
  port.physical_state = AfterColon(ReadLine(folder + "/phys_state"));
  port.link_layer = ReadLine(folder + "/link_layer") == "InfiniBand" ? "InfiniBand" : "Ethernet";
  port.speed_bytes_per_s = static_cast<uint64_t>(LeadingNumber(ReadLine(folder + "/rate")) * 1e9 / 8);
  port.lid = static_cast<uint32_t>(std::strtoul(ReadLine(folder + "/lid").c_str(), nullptr, 16));
  port.pci = ReadPciLink(device_folder + "/device");
  ReadGids(folder, &port);
  return port;
}

}  // namespace

std::vector<RdmaPort> ReadRdmaPorts(const std::string& root) {
  std::vector<RdmaPort> ports;
  for (const std::string& device : ListFolder(root + "/sys/class/infiniband")) {
    const std::string folder = absl::StrCat(root, "/sys/class/infiniband/", device);
    for (const std::string& name : ListFolder(folder + "/ports")) {
      uint32_t number = 0;
      if (absl::SimpleAtoi(name, &number)) ports.push_back(ReadPort(folder, device, number));
    }
  }
  // The daemon's order: by PCI address, software devices last.
  std::sort(ports.begin(), ports.end(), [](const RdmaPort& a, const RdmaPort& b) {
    return std::make_tuple(a.pci.address.empty(), a.pci.address, a.device, a.port) <
           std::make_tuple(b.pci.address.empty(), b.pci.address, b.device, b.port);
  });
  return ports;
}

std::vector<std::string> ReadNicsWithoutRdma(const std::string& root) {
  std::vector<std::string> nics;
  for (const std::string& address : ListFolder(root + "/sys/bus/pci/devices")) {
    const std::string folder = absl::StrCat(root, "/sys/bus/pci/devices/", address);
    // Mellanox (NVIDIA) network and InfiniBand controllers: all of them do RDMA.
    if (ReadLine(folder + "/vendor") != "0x15b3" || !absl::StartsWith(ReadLine(folder + "/class"), "0x02")) continue;
    std::error_code error;
    if (!fs::exists(folder + "/infiniband", error)) nics.push_back(address);
  }
  return nics;
}

PciLink ReadPciLink(const std::string& device) {
  PciLink link;
  if (!absl::SimpleAtoi(ReadLine(device + "/numa_node"), &link.numa_node)) link.numa_node = -1;
  const std::string speed = ReadLine(device + "/current_link_speed");
  if (speed.empty()) return link;
  std::error_code error;
  const fs::path folder = fs::canonical(device, error);
  if (!error) link.address = folder.filename().string();
  link.transfers = LeadingNumber(speed);
  link.max_transfers = LeadingNumber(ReadLine(device + "/max_link_speed"));
  if (!absl::SimpleAtoi(ReadLine(device + "/current_link_width"), &link.lanes)) link.lanes = 0;
  if (!absl::SimpleAtoi(ReadLine(device + "/max_link_width"), &link.max_lanes)) link.max_lanes = 0;
  if (link.transfers == 0) link.lanes = 0;  // "Unknown"
  return link;
}

}  // namespace rails::ctl::doctor
