// Reads network interfaces, memory and processors of the machine.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/doctor/collect.h"
#include "common/net/local_addresses.h"

namespace rails::ctl::doctor {
namespace {

namespace fs = std::filesystem;

int ReadSetting(const std::string& root, const std::string& interface, const char* name) {
  int here = 0, all = 0;
  const std::string folder = root + "/proc/sys/net/ipv4/conf/";
  if (!absl::SimpleAtoi(ReadLine(absl::StrCat(folder, interface, "/", name)), &here)) here = 0;
  if (!absl::SimpleAtoi(ReadLine(absl::StrCat(folder, "all/", name)), &all)) all = 0;
  return std::max(here, all);
}

// "HugePages_Total:      12" and "MemTotal:   32000 kB" of meminfo; kilobytes become bytes.
uint64_t MemoryFigure(const std::vector<std::string>& lines, absl::string_view name) {
  for (const std::string& line : lines) {
    if (!absl::StartsWith(line, absl::StrCat(name, ":"))) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    uint64_t figure = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &figure)) return 0;
    return words.size() > 2 && words[2] == "kB" ? figure * 1024 : figure;
  }
  return 0;
}

void ReadMemory(const std::string& root, Machine* machine) {
  std::ifstream file(root + "/proc/meminfo");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  machine->huge_page_bytes = MemoryFigure(lines, "Hugepagesize");
  machine->huge_pages = MemoryFigure(lines, "HugePages_Total");
  machine->huge_pages_free = MemoryFigure(lines, "HugePages_Free");
  machine->memory_bytes = MemoryFigure(lines, "MemTotal");
}

}  // namespace

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

std::vector<std::string> ListFolder(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

AddressesByInterface OwnAddresses() {
  AddressesByInterface addresses;
  for (const railsd::LocalAddress& own : railsd::LocalAddresses()) {
    addresses[own.interface].push_back(absl::StrCat(own.host, "/", own.prefix_bits));
  }
  return addresses;
}

std::vector<Interface> ReadInterfaces(const std::string& root, const AddressesByInterface& addresses) {
  std::vector<Interface> interfaces;
  for (const std::string& name : ListFolder(root + "/sys/class/net")) {
    const std::string folder = absl::StrCat(root, "/sys/class/net/", name);
    Interface interface;
    interface.name = name;
    interface.state = ReadLine(folder + "/operstate");
    if (interface.state.empty()) continue;  // bonding_masters is a file
    int64_t megabits = 0;
    if (absl::SimpleAtoi(ReadLine(folder + "/speed"), &megabits) && megabits > 0) {
      interface.speed_bytes_per_s = static_cast<uint64_t>(megabits) * 125'000;
    }
    if (!absl::SimpleAtoi(ReadLine(folder + "/mtu"), &interface.mtu_bytes)) interface.mtu_bytes = 0;
    if (const auto it = addresses.find(name); it != addresses.end()) interface.addresses = it->second;
    interface.rp_filter = ReadSetting(root, name, "rp_filter");
    interface.arp_ignore = ReadSetting(root, name, "arp_ignore");
    interface.arp_announce = ReadSetting(root, name, "arp_announce");
    interface.pci = ReadPciLink(folder + "/device");
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

Machine ReadMachine(const std::string& root, const AddressesByInterface& addresses) {
  Machine machine;
  machine.interfaces = ReadInterfaces(root, addresses);
  machine.ports = ReadRdmaPorts(root);
  machine.nics_without_rdma = ReadNicsWithoutRdma(root);
  std::error_code error;
  machine.uverbs_module =
      fs::exists(root + "/sys/module/ib_uverbs", error) || fs::exists(root + "/sys/class/infiniband_verbs", error);
  for (const std::string& name : ListFolder(root + "/dev/infiniband")) {
    DeviceFile file;
    file.path = absl::StrCat("/dev/infiniband/", name);
    struct stat info {};
    if (stat((root + file.path).c_str(), &info) != 0 || S_ISDIR(info.st_mode)) continue;
    file.mode = info.st_mode;
    file.uid = info.st_uid;
    file.gid = info.st_gid;
    machine.device_files.push_back(std::move(file));
  }
  ReadMemory(root, &machine);
  machine.tcp_upper_layers = ReadLine(root + "/proc/sys/net/ipv4/tcp_available_ulp");
  int nodes = 0;
  for (const std::string& name : ListFolder(root + "/sys/devices/system/node")) {
    int number = 0;
    nodes += absl::StartsWith(name, "node") && absl::SimpleAtoi(name.substr(4), &number) ? 1 : 0;
  }
  machine.numa_nodes = std::max(1, nodes);
  return machine;
}

}  // namespace rails::ctl::doctor
