#include "common/net/local_addresses.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <bit>
#include <memory>
#include <numeric>
#include <string_view>

namespace railsd {
namespace {

uint32_t PrefixBits(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  const bool v4 = mask->sa_family == AF_INET;
  const auto* const bytes = v4 ? reinterpret_cast<const uint8_t*>(&reinterpret_cast<const sockaddr_in*>(mask)->sin_addr)
                               : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr;
  return std::accumulate(bytes, bytes + (v4 ? 4 : 16), uint32_t{0},
                         [](uint32_t bits, uint8_t byte) { return bits + static_cast<uint32_t>(std::popcount(byte)); });
}

}  // namespace

std::vector<LocalAddress> LocalAddresses() {
  std::vector<LocalAddress> addresses;
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
      // An IPv4 address may have a label, as in "eth0:1".
      const std::string_view name = entry->ifa_name;
      addresses.push_back(
          {std::string(name.substr(0, name.find(':'))), host, family == AF_INET, PrefixBits(entry->ifa_netmask)});
    }
  }
  return addresses;
}

}  // namespace railsd
