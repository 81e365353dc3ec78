#include "agent/transport/verbs/discovery.h"

#include <arpa/inet.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace railsd::verbs {
namespace {

namespace fs = std::filesystem;

// A file's first line, without the newline; nothing when it cannot be read (unused GIDs answer with an error).
std::optional<std::string> ReadLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return line;
}

std::vector<std::string> Entries(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "4: ACTIVE" -> 4, "ACTIVE".
std::pair<int, std::string> ParseState(const std::string& line) {
  const size_t colon = line.find(": ");
  int number = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(line.substr(0, colon), &number)) return {0, line};
  return {number, line.substr(colon + 2)};
}

PortState ToState(int number) {
  switch (number) {
    case 1:
      return PortState::kDown;
    case 2:
      return PortState::kInit;
    case 3:
      return PortState::kArmed;
    case 4:
    case 5:  // active, deferred
      return PortState::kActive;
    default:
      return PortState::kUnknown;
  }
}

// "100 Gb/sec (4X EDR)": gigabits a second, of all lanes.
uint64_t ParseRate(const std::string& line) {
  const size_t space = line.find(' ');
  double gigabits = 0;
  if (space == std::string::npos || line.compare(space, 7, " Gb/sec") != 0 ||
      !absl::SimpleAtod(line.substr(0, space), &gigabits) || !(gigabits > 0) || gigabits > 1e6) {
    return 0;
  }
  return static_cast<uint64_t>(gigabits * 1e9 / 8);
}

GidType ParseGidType(const std::string& line, LinkLayer layer) {
  if (line == "RoCE v2") return GidType::kRoceV2;
  return layer == LinkLayer::kEthernet ? GidType::kRoceV1 : GidType::kInfiniBand;
}

void ReadGids(const fs::path& directory, RdmaPort* port) {
  for (const std::string& name : Entries(directory / "gids")) {
    Gid gid;
    if (!absl::SimpleAtoi(name, &gid.index)) continue;
    const std::optional<std::string> text = ReadLine(directory / "gids" / name);
    if (!text.has_value() || ::inet_pton(AF_INET6, text->c_str(), gid.bytes.data()) != 1) continue;
    if (std::all_of(gid.bytes.begin(), gid.bytes.end(), [](uint8_t byte) { return byte == 0; })) continue;
    const fs::path attributes = directory / "gid_attrs";
    gid.type = ParseGidType(ReadLine(attributes / "types" / name).value_or(""), port->link_layer);
    gid.interface = ReadLine(attributes / "ndevs" / name).value_or("");
    port->gids.push_back(std::move(gid));
  }
  std::sort(port->gids.begin(), port->gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
}

RdmaPort ReadPort(const fs::path& device, const std::string& name, uint8_t number, bool with_gids) {
  const fs::path directory = device / "ports" / std::to_string(number);
  RdmaPort port;
  port.device = name;
  port.port = number;
  const auto [state, text] = ParseState(ReadLine(directory / "state").value_or("0: unknown"));
  port.state = ToState(state);
  port.state_text = text;
  const std::string physical = ParseState(ReadLine(directory / "phys_state").value_or("")).second;
  if (port.state != PortState::kActive && !physical.empty()) {
    port.state_text = absl::StrCat(text, ", physically ", physical);
  }
  port.link_layer = ReadLine(directory / "link_layer").value_or("Ethernet") == "InfiniBand" ? LinkLayer::kInfiniBand
                                                                                            : LinkLayer::kEthernet;
  port.speed_bytes_per_s = ParseRate(ReadLine(directory / "rate").value_or(""));
  uint32_t lid = 0;
  if (absl::SimpleHexAtoi(ReadLine(directory / "lid").value_or("0"), &lid) && lid <= 0xffff) {
    port.lid = static_cast<uint16_t>(lid);
  }
  int numa_node = -1;
  if (absl::SimpleAtoi(ReadLine(device / "device" / "numa_node").value_or("-1"), &numa_node))
    port.numa_node = numa_node;
  std::error_code error;
  const fs::path pci = fs::canonical(device / "device", error);
  if (!error) port.pci_address = pci.filename().string();
  if (with_gids) ReadGids(directory, &port);
  return port;
}

// fe80::/10.
bool IsLinkLocal(const Gid& gid) { return gid.bytes[0] == 0xfe && (gid.bytes[1] & 0xc0) == 0x80; }

std::string ListGids(const RdmaPort& port) {
  std::string list;
  for (const Gid& gid : port.gids) {
    const char* type = gid.type == GidType::kRoceV2   ? "RoCE v2"
                       : gid.type == GidType::kRoceV1 ? "RoCE v1"
                                                      : "InfiniBand";
    absl::StrAppend(&list, list.empty() ? "" : "; ", gid.index, ": ", GidText(gid.bytes), " ", type);
  }
  return list.empty() ? "none" : list;
}

int Preference(const Gid& gid) {
  if (gid.type != GidType::kRoceV2) return 0;
  if (gid.IsIpv4()) return 3;
  return IsLinkLocal(gid) ? 1 : 2;
}

}  // namespace

bool Gid::IsIpv4() const {
  static constexpr std::array<uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kMapped.begin(), kMapped.end(), bytes.begin());
}

std::string RdmaPort::Name() const { return absl::StrCat(device, "/", int{port}); }

std::vector<RdmaPort> ReadRdmaPorts(const std::string& class_infiniband, bool with_gids) {
  std::vector<RdmaPort> ports;
  for (const std::string& name : Entries(class_infiniband)) {
    const fs::path device = fs::path(class_infiniband) / name;
    for (const std::string& text : Entries(device / "ports")) {
      uint32_t number = 0;
      if (!absl::SimpleAtoi(text, &number) || number == 0 || number > 255) continue;
      ports.push_back(ReadPort(device, name, static_cast<uint8_t>(number), with_gids));
    }
  }
  std::sort(ports.begin(), ports.end(), [](const RdmaPort& a, const RdmaPort& b) {
    return std::make_tuple(a.pci_address.empty(), a.pci_address, a.device, a.port) <
           std::make_tuple(b.pci_address.empty(), b.pci_address, b.device, b.port);
  });
  return ports;
}

absl::StatusOr<Gid> ChooseGid(const RdmaPort& port, std::optional<uint32_t> forced) {
  if (forced.has_value()) {
    for (const Gid& gid : port.gids) {
      if (gid.index == *forced) return gid;
    }
    return absl::NotFoundError(
        absl::StrCat(port.Name(), ": GID index ", *forced, " is not in use; it has: ", ListGids(port)));
  }
  const auto best = std::max_element(port.gids.begin(), port.gids.end(), [](const Gid& a, const Gid& b) {
    return Preference(a) < Preference(b);  // the first of equals
  });
  if (best == port.gids.end() && port.link_layer == LinkLayer::kInfiniBand) {
    return absl::NotFoundError(
        absl::StrCat(port.Name(), ": the InfiniBand port has no GID (is a subnet manager running?)"));
  }
  if (best == port.gids.end() || (port.link_layer == LinkLayer::kEthernet && Preference(*best) == 0)) {
    return absl::NotFoundError(absl::StrCat(
        port.Name(), ": no RoCE v2 GID (give its network interface an address); it has: ", ListGids(port)));
  }
  return *best;
}

absl::Status CheckUsable(const RdmaPort& port, std::optional<uint32_t> forced_gid) {
  if (port.state != PortState::kActive) {
    return absl::FailedPreconditionError(absl::StrCat(port.Name(), ": the port is not active: ", port.state_text));
  }
  if (port.link_layer == LinkLayer::kInfiniBand && port.lid == 0) {
    return absl::FailedPreconditionError(absl::StrCat(port.Name(), ": it has no LID (is a subnet manager running?)"));
  }
  if (absl::StatusOr<Gid> gid = ChooseGid(port, forced_gid); !gid.ok()) {
    return absl::FailedPreconditionError(gid.status().message());
  }
  return absl::OkStatus();
}

absl::StatusOr<PortName> ParsePortName(const std::string& text) {
  PortName name;
  const size_t slash = text.find('/');
  name.device = text.substr(0, slash);
  uint32_t number = 1;
  if (name.device.empty() || (slash != std::string::npos &&
                              (!absl::SimpleAtoi(text.substr(slash + 1), &number) || number == 0 || number > 255))) {
    return absl::InvalidArgumentError(absl::StrCat("RDMA device '", text, "' is neither NAME nor NAME/PORT"));
  }
  name.port = static_cast<uint8_t>(number);
  return name;
}

}  // namespace railsd::verbs
