#include "daemon/lifecycle/rail_speed.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {

std::string InterfaceOf(const std::string& address) {
  const auto wanted = ParseHostPort(address, true);
  ifaddrs* found = nullptr;
  if (!wanted.ok() || getifaddrs(&found) != 0) return "";
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, &freeifaddrs);
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char host[NI_MAXHOST];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0 &&
        wanted->host == host) {
      return entry->ifa_name;
    }
  }
  return "";
}

std::vector<std::string> InterfacesOf(const std::vector<RailSpec>& rails) {
  std::vector<std::string> interfaces;
  for (const RailSpec& rail : rails) {
    const bool tcp = rail.kind == RailKind::kTcp;
    interfaces.push_back(tcp && rail.interface.empty() ? InterfaceOf(rail.address) : rail.interface);
  }
  return interfaces;
}

uint64_t InterfaceSpeed(const std::string& interface) {
  std::ifstream file(absl::StrCat("/sys/class/net/", interface, "/speed"));
  int64_t megabits = 0;
  return file >> megabits && megabits > 0 ? static_cast<uint64_t>(megabits) * 125'000 : 0;
}

void FillRailSpeeds(std::vector<RailSpec>* rails, spdlog::logger* log) {
  for (RailSpec& rail : *rails) {
    if (rail.speed_bytes_per_s != 0) continue;
    const bool device = rail.kind == RailKind::kVerbs;
    const std::string interface = device                   ? rail.device
                                  : rail.interface.empty() ? InterfaceOf(rail.address)
                                                           : rail.interface;
    if (!device && !interface.empty()) rail.speed_bytes_per_s = InterfaceSpeed(interface);
    if (rail.speed_bytes_per_s != 0) {
      log->info("rail_speed rail={} interface={} speed={}", rail.name, interface, FormatRate(rail.speed_bytes_per_s));
      continue;
    }
    rail.speed_bytes_per_s = kDefaultRailBytesPerSecond;
    log->warn("rail_speed_unknown rail={} interface={} assumed=10gbit hint=\"set rails[].speed\"", rail.name,
              interface.empty() ? "none" : interface);
  }
}

}  // namespace railsd
