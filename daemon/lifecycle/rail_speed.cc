#include "daemon/lifecycle/rail_speed.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <spdlog/logger.h>
#include <sys/socket.h>

#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {

namespace {

struct InterfaceAddress {
  std::string interface, host;
  bool v4 = false;
};

// All IP addresses of this machine, in the kernel's order.
std::vector<InterfaceAddress> Addresses() {
  std::vector<InterfaceAddress> addresses;
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) return addresses;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, &freeifaddrs);
  for (const ifaddrs* entry = found; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    char host[NI_MAXHOST];
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(entry->ifa_addr, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0) {
      addresses.push_back({entry->ifa_name, host, family == AF_INET});
    }
  }
  return addresses;
}

}  // namespace

std::string InterfaceOf(const std::string& address) {
  const auto wanted = ParseHostPort(address, true);
  if (!wanted.ok()) return "";
  for (const InterfaceAddress& known : Addresses()) {
    if (wanted->host == known.host) return known.interface;
  }
  return "";
}

std::string AddressOf(const std::string& interface) {
  std::string v6;
  for (const InterfaceAddress& known : Addresses()) {
    if (known.interface != interface) continue;
    if (known.v4) return known.host;
    const bool link_local = known.host.find('%') != std::string::npos;  // '%' begins a scope
    if (v6.empty() && !link_local) v6 = known.host;
  }
  return v6;
}

// Empty for a rail over verbs.
static std::string InterfaceOfRail(const RailSpec& rail) {
  return rail.kind == RailKind::kTcp && rail.interface.empty() ? InterfaceOf(rail.address) : rail.interface;
}

absl::Status FillRailAddresses(std::vector<RailSpec>* rails) {
  for (RailSpec& rail : *rails) {
    if (rail.kind != RailKind::kTcp || !rail.address.empty()) continue;
    rail.address = AddressOf(rail.interface);
    if (rail.address.empty()) {
      return absl::NotFoundError(absl::StrCat("rails: ", rail.name, ": interface '", rail.interface,
                                              "' is not there or has no address; `ip -brief address` shows what is"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> InterfacesOf(const std::vector<RailSpec>& rails) {
  std::vector<std::string> interfaces;
  for (const RailSpec& rail : rails) interfaces.push_back(InterfaceOfRail(rail));
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
    const std::string interface = device ? rail.device : InterfaceOfRail(rail);
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
