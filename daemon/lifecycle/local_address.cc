#include "daemon/lifecycle/local_address.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/network.h"
#include "daemon/config/units.h"
#include "daemon/link/listen.h"

namespace railsd {

bool MayBindTo(const LocalAddress& address) {
  if (address.interface == kLoopback) return false;
  if (address.prefix_bits == (address.v4 ? 32 : 128)) return false;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  const int error = setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, address.interface.c_str(),
                               static_cast<socklen_t>(address.interface.size() + 1));
  const bool refused = error != 0 && errno == EPERM;
  close(fd);
  return !refused;
}

const LocalAddress* FindAddress(const std::string& address, absl::Span<const LocalAddress> known) {
  const auto wanted = ParseHostPort(address, true);
  if (!wanted.ok()) return nullptr;
  const auto own =
      std::find_if(known.begin(), known.end(), [&](const LocalAddress& a) { return a.host == wanted->host; });
  return own == known.end() ? nullptr : &*own;
}

std::string InterfaceOf(const std::string& address, absl::Span<const LocalAddress> known) {
  const LocalAddress* const own = FindAddress(address, known);
  return own == nullptr ? "" : own->interface;
}

std::string SubnetOf(const std::string& address, absl::Span<const LocalAddress> known) {
  const LocalAddress* const own = FindAddress(address, known);
  if (own == nullptr || own->prefix_bits == 0) return "";
  const auto network = IpNetwork::Parse(absl::StrCat(own->host.substr(0, own->host.find('%')), "/", own->prefix_bits));
  return network.ok() ? network->Text() : "";
}

std::string AddressOf(const std::string& interface, absl::Span<const LocalAddress> known) {
  std::string v6;
  for (const LocalAddress& own : known) {
    if (own.interface != interface) continue;
    if (own.v4) return own.host;
    const bool link_local = own.host.find('%') != std::string::npos;
    if (v6.empty() && !link_local) v6 = own.host;
  }
  return v6;
}

absl::StatusOr<std::string> ResolveHost(const std::string& host, absl::Span<const LocalAddress> known) {
  if (!LooksLikeNetwork(host)) {
    const std::string own = AddressOf(host, known);
    return own.empty() ? host : own;
  }
  const absl::StatusOr<IpNetwork> network = IpNetwork::Parse(host);
  if (!network.ok()) return network.status();
  for (const bool loopback : {false, true}) {
    for (const LocalAddress& own : known) {
      if (loopback == (own.interface == kLoopback) && network->Contains(own.host)) return own.host;
    }
  }
  return absl::NotFoundError(
      absl::StrCat("this machine has no address in ", host, "; it has ",
                   absl::StrJoin(known, ", ", [](std::string* out, const LocalAddress& own) { *out += own.host; })));
}

absl::StatusOr<std::string> ResolveListen(const std::string& key, const std::string& listen,
                                          absl::Span<const LocalAddress> known) {
  if (listen.empty()) return listen;
  const absl::StatusOr<HostPort> address = ParseHostPort(listen, false);
  if (!address.ok()) return address.status();
  const absl::StatusOr<std::string> host = ResolveHost(address->host, known);
  if (!host.ok()) return absl::Status(host.status().code(), absl::StrCat(key, ": ", host.status().message()));
  std::string resolved = FormatHostPort({*host, address->port});
  if (const absl::Status found = AddressesOf(resolved).status(); !found.ok()) {
    return absl::Status(found.code(),
                        absl::StrCat(key, ": '", address->host, "' is no interface of this machine with an ",
                                     "address, and ", found.message()));
  }
  return resolved;
}

}  // namespace railsd
