#include "daemon/link/listen.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::Status CannotListen(const std::string& address, absl::string_view why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ": ", why));
}

std::string Why(int error) {
  if (error == EADDRINUSE || error == EADDRNOTAVAIL) return "the address is not this node's or is in use";
  return std::strerror(error);
}

UniqueFd BindAndListen(int family, const sockaddr* address, socklen_t length) {
  UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, off = 0;
  if (!fd.valid()) return fd;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (family == AF_INET6) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd.get(), address, length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

int PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

AddressList Resolve(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) found = nullptr;
  return AddressList(found, &freeaddrinfo);
}

}  // namespace

absl::StatusOr<Listeners> ListenOn(const std::string& address) {
  absl::StatusOr<HostPort> want = ParseHostPort(address, false);
  if (!want.ok()) return CannotListen(address, want.status().message());
  Listeners out;
  out.port = want->port;
  if (want->host == "0.0.0.0" || want->host == "::") {
    sockaddr_in6 any = {};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(want->port);
    UniqueFd fd = BindAndListen(AF_INET6, reinterpret_cast<const sockaddr*>(&any), sizeof(any));
    if (fd.valid()) {
      out.port = PortOf(fd.get());
      out.sockets.push_back(std::move(fd));
      return out;
    }
    if (errno == EADDRINUSE) return CannotListen(address, Why(errno));
  }
  const AddressList found = Resolve(want->host, out.port);
  if (found == nullptr) return CannotListen(address, "the name has no address");
  for (addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    // With port 0 the first bind chooses the port for all addresses.
    if (one->ai_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(one->ai_addr)->sin6_port = htons(out.port);
    if (one->ai_family == AF_INET) reinterpret_cast<sockaddr_in*>(one->ai_addr)->sin_port = htons(out.port);
    UniqueFd fd = BindAndListen(one->ai_family, one->ai_addr, one->ai_addrlen);
    if (!fd.valid()) continue;
    out.port = PortOf(fd.get());
    out.sockets.push_back(std::move(fd));
  }
  if (out.sockets.empty()) return CannotListen(address, Why(errno));
  return out;
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
