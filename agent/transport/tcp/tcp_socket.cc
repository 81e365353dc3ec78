#include "agent/transport/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace railsd::tcp {
namespace {

void SetInt(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof(value)); }

// Buffers must be set before the handshake, which fixes the window's scale.
void SetBuffers(int fd, const SocketTuning& tuning) {
  if (tuning.send_buffer_bytes > 0) SetInt(fd, SOL_SOCKET, SO_SNDBUF, tuning.send_buffer_bytes);
  if (tuning.receive_buffer_bytes > 0) SetInt(fd, SOL_SOCKET, SO_RCVBUF, tuning.receive_buffer_bytes);
}

int BindToInterface(int fd, const std::string& interface) {
  if (interface.empty()) return 0;
  if (interface.size() >= IFNAMSIZ) return ENODEV;
  return ::setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface.c_str(),
                      static_cast<socklen_t>(interface.size() + 1)) == 0
             ? 0
             : errno;
}

absl::Status BadAddress(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("address '", text, "': ", why, "; expected ip, ip:port, ip6 or [ip6]:port"));
}

}  // namespace

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                                    : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
}

bool SocketAddress::IsAny() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
  return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr == htonl(INADDR_ANY);
}

std::string SocketAddress::ToString() const {
  char host[NI_MAXHOST] = {};
  if (::getnameinfo(get(), length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) return "(no address)";
  return family() == AF_INET6 ? absl::StrCat("[", host, "]:", port()) : absl::StrCat(host, ":", port());
}

absl::StatusOr<SocketAddress> ParseAddress(absl::string_view text) {
  absl::string_view host = text;
  absl::string_view port;
  bool has_port = false;
  if (!text.empty() && text.front() == '[') {
    const size_t end = text.find(']');
    if (end == absl::string_view::npos) return BadAddress(text, "no closing bracket");
    host = text.substr(1, end - 1);
    const absl::string_view rest = text.substr(end + 1);
    has_port = !rest.empty();
    if (has_port && rest.front() != ':') return BadAddress(text, "junk after the bracket");
    port = has_port ? rest.substr(1) : "";
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    const size_t colon = text.find(':');
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  uint32_t port_number = 0;
  if (has_port && (!absl::SimpleAtoi(port, &port_number) || port_number > 65535)) {
    return BadAddress(text, "its port is not a number up to 65535");
  }
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (host.empty() || ::getaddrinfo(std::string(host).c_str(), nullptr, &hints, &found) != 0) {
    return BadAddress(text, "not an IP address");
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  address.set_port(static_cast<uint16_t>(port_number));
  return address;
}

absl::StatusOr<UniqueFd> Listen(const SocketAddress& address, const SocketTuning& tuning) {
  const std::string what =
      absl::StrCat("listen on ", address.ToString(),
                   tuning.interface.empty() ? "" : absl::StrCat(" (interface ", tuning.interface, ")"));
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, absl::StrCat(what, ": socket"));
  if (const int error = BindToInterface(fd.get(), tuning.interface); error != 0) {
    if (error == EPERM) {
      return absl::PermissionDeniedError(absl::StrCat(
          what,
          ": SO_BINDTODEVICE was refused; give the daemon CAP_NET_RAW, or give the rail an address and no interface"));
    }
    if (error == ENODEV) {
      return absl::NotFoundError(absl::StrCat(what, ": there is no such interface (see `ip link`)"));
    }
    return absl::ErrnoToStatus(error, absl::StrCat(what, ": SO_BINDTODEVICE"));
  }
  // A restarted daemon must get its port back although old connections linger.
  SetInt(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address.family() == AF_INET6) SetInt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  SetBuffers(fd.get(), tuning);
  if (::bind(fd.get(), address.get(), address.length) != 0) {
    const int error = errno;
    const char* hint = error == EADDRNOTAVAIL ? " (no interface of this node has the address)"
                       : error == EADDRINUSE  ? " (another process listens there; choose another port)"
                       : error == EACCES      ? " (ports below 1024 need CAP_NET_BIND_SERVICE)"
                                              : "";
    return absl::Status(absl::ErrnoToStatusCode(error), absl::StrCat(what, ": ", std::strerror(error), hint));
  }
  if (::listen(fd.get(), 1024) != 0) return absl::ErrnoToStatus(errno, what);
  return fd;
}

absl::StatusOr<SocketAddress> LocalAddressOf(int fd) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) {
    return absl::ErrnoToStatus(errno, "getsockname");
  }
  return address;
}

void TuneAccepted(int fd, const SocketTuning& tuning) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (tuning.unsent_low_water_bytes > 0) SetInt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, tuning.unsent_low_water_bytes);
  const int64_t silence_ms = absl::ToInt64Milliseconds(tuning.peer_silence);
  if (silence_ms <= 0) return;
  // Unanswered data and unanswered probes of an idle connection both end it after the same time.
  SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min<int64_t>(silence_ms, 1 << 30)));
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(std::clamp<int64_t>(silence_ms / 4000, 1, 32000)));
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(std::clamp<int64_t>(silence_ms / 4000, 1, 32000)));
  SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

UniqueFd StartConnect(const SocketAddress& from, const SocketAddress& to, const SocketTuning& tuning,
                      int* error_number) {
  *error_number = 0;
  UniqueFd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) {
    *error_number = errno;
    return fd;
  }
  *error_number = BindToInterface(fd.get(), tuning.interface);
  SetBuffers(fd.get(), tuning);
  TuneAccepted(fd.get(), tuning);
  if (*error_number == 0 && !from.IsAny() && from.family() == to.family()) {
    SocketAddress local = from;
    local.set_port(0);
    SetInt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
    if (::bind(fd.get(), local.get(), local.length) != 0) *error_number = errno;
  }
  if (*error_number == 0 && ::connect(fd.get(), to.get(), to.length) != 0 && errno != EINPROGRESS) {
    *error_number = errno;
  }
  if (*error_number != 0) fd.Reset();
  return fd;
}

int TakeSocketError(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

}  // namespace railsd::tcp
