#include "daemon/link/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

absl::Status CannotListen(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

// A socket of an IPv6 address takes IPv4 as well if the address is [::].
UniqueFd BindAndListen(const tcp::SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  if (!fd.valid()) return fd;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family() == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> AddressesOf(const std::string& address) {
  const absl::StatusOr<HostPort> split = ParseHostPort(address, false);
  if (!split.ok()) return split.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(split->host.c_str(), nullptr, &hints, &found);
  if (error != 0) return absl::NotFoundError(absl::StrCat("the name '", split->host, "': ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  std::set<std::string> addresses;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    char host[NI_MAXHOST];
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    addresses.insert(FormatHostPort({host, split->port}));
  }
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

absl::StatusOr<Listeners> ListenOn(const std::string& address) {
  absl::StatusOr<std::vector<std::string>> found = AddressesOf(address);
  if (!found.ok()) return CannotListen(address, found.status().message());
  const HostPort want = *ParseHostPort(address, false);
  const bool all = want.host == "0.0.0.0" || want.host == "::";
  if (all) found = {"[::]", "0.0.0.0"};
  Listeners out;
  out.port = want.port;
  for (const std::string& one : *found) {
    absl::StatusOr<tcp::SocketAddress> to = tcp::ParseAddress(one);
    if (!to.ok()) return CannotListen(address, to.status().message());
    to->set_port(static_cast<uint16_t>(out.port));
    UniqueFd fd = BindAndListen(*to);
    if (all && !fd.valid() && errno == EADDRINUSE) break;
    if (!fd.valid()) continue;
    // With port 0 the first bind chooses the port for all addresses.
    const absl::StatusOr<tcp::SocketAddress> bound = tcp::LocalAddressOf(fd.get());
    if (bound.ok()) out.port = bound->port();
    out.sockets.push_back(std::move(fd));
    if (all) break;
  }
  if (!out.sockets.empty()) return out;
  return CannotListen(address, errno == EADDRINUSE      ? "another process listens there"
                               : errno == EADDRNOTAVAIL ? "no interface of this machine has the address"
                                                        : std::strerror(errno));
}

std::string SourceOf(const tcp::SocketAddress& from) {
  tcp::SocketAddress source = from;
  source.set_port(0);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&source.storage);
  if (source.family() == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
    std::memset(six->sin6_addr.s6_addr + 8, 0, 8);
  }
  return source.ToString();
}

}  // namespace railsd
