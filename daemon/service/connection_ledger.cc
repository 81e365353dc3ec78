#include "daemon/service/connection_ledger.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/base/unique_fd.h"

namespace railsd {
namespace {

// 0: none.
ino_t SocketBehind(int fd) {
  struct stat what;
  return ::fstat(fd, &what) == 0 && S_ISSOCK(what.st_mode) ? what.st_ino : 0;
}

// Nothing for what is no TCP, as Unix sockets.
std::optional<uint64_t> BytesReceived(int fd) {
  tcp_info info;
  socklen_t length = sizeof(info);
  std::memset(&info, 0, sizeof(info));
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  if (length < offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received)) return std::nullopt;
  return info.tcpi_bytes_received;
}

// Ends the connection for gRPC too, which sees its end. Another copy of the descriptor makes sure that it is still the
// same: gRPC may close it at any moment, and its number be given away.
void ShutDown(int fd, ino_t socket) {
  const UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (copy.valid() && SocketBehind(copy.get()) == socket) ::shutdown(copy.get(), SHUT_RDWR);
}

Caller CallerOfIpv4(const in_addr& address, in_port_t port) {
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address, text, sizeof(text));
  return {absl::StrCat("ipv4:", text, ":", ntohs(port)), text};
}

Caller CallerOfIpv6(const sockaddr_in6& peer) {
  if (IN6_IS_ADDR_V4MAPPED(&peer.sin6_addr)) {
    in_addr inner;
    std::memcpy(&inner, &peer.sin6_addr.s6_addr[12], sizeof(inner));
    return CallerOfIpv4(inner, peer.sin6_port);
  }
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof(text));
  const std::string scope = peer.sin6_scope_id == 0 ? "" : absl::StrCat("%25", peer.sin6_scope_id);
  in6_addr network = peer.sin6_addr;
  std::memset(&network.s6_addr[8], 0, 8);
  char prefix[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET6, &network, prefix, sizeof(prefix));
  return {absl::StrCat("ipv6:%5B", text, scope, "%5D:", ntohs(peer.sin6_port)), absl::StrCat(prefix, "/64", scope)};
}

}  // namespace

Caller CallerOfSocket(int fd) {
  sockaddr_storage peer = {};
  socklen_t length = sizeof(peer);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0) {
    if (peer.ss_family == AF_INET) {
      const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(peer);
      return CallerOfIpv4(ipv4.sin_addr, ipv4.sin_port);
    }
    if (peer.ss_family == AF_INET6) return CallerOfIpv6(reinterpret_cast<const sockaddr_in6&>(peer));
  }
  return {absl::StrCat("socket ", SocketBehind(fd)), ""};
}

void ConnectionLedger::Add(int fd, const Caller& caller, absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  const auto [it, added] = entries_.try_emplace(caller.name);
  // The same name again: its connection from before is closed. Or it leads to another address of this machine; then it
  // ends, so that none is left that is not counted.
  if (!added) {
    ShutDown(it->second.fd, it->second.socket);
    Forget(it->second.address);
  }
  Entry entry;
  entry.fd = fd;
  entry.socket = SocketBehind(fd);
  entry.address = caller.address;
  entry.deadline = deadline;
  entry.looked = absl::Now();
  it->second = std::move(entry);
  if (!caller.address.empty()) ++by_address_[caller.address];
}

void ConnectionLedger::Spoke(absl::string_view name) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(name);
  if (it != entries_.end()) it->second.deadline = absl::InfiniteFuture();
}

void ConnectionLedger::Taken(absl::string_view name, uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(name);
  // With the frames of HTTP/2 and the records of TLS around it.
  if (it != entries_.end()) it->second.taken += bytes + bytes / 64 + 1024;
}

// The kernel is asked without the mutex: calls and peers' messages must not wait for some thousand system calls.
std::vector<ConnectionLedger::Reading> ConnectionLedger::ReadAll() const {
  std::vector<Reading> readings;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, entry] : entries_) {
      if (!entry.address.empty()) readings.push_back({name, entry.fd, entry.socket, std::nullopt});
    }
  }
  for (Reading& reading : readings) {
    reading.received = BytesReceived(reading.fd);
    // Its descriptor may be another's by now; that of a socket that is gone never comes back.
    if (SocketBehind(reading.fd) != reading.socket) reading.received = std::nullopt;
  }
  return readings;
}

size_t ConnectionLedger::Meter(absl::Time now, uint64_t most) {
  size_t greedy = 0;
  for (const Reading& reading : ReadAll()) {
    if (!reading.received) continue;
    absl::MutexLock lock(&mutex_);
    const auto it = entries_.find(reading.name);
    if (it == entries_.end() || it->second.socket != reading.socket) continue;
    Entry& entry = it->second;
    const double seconds = std::max(absl::ToDoubleSeconds(now - entry.looked), 0.0);
    const uint64_t credit = entry.taken + static_cast<uint64_t>(seconds * static_cast<double>(kForgivenPerSecond));
    entry.untaken += *reading.received - entry.received;
    entry.untaken -= std::min(entry.untaken, credit);
    entry.received = *reading.received;
    entry.taken = 0;
    entry.looked = now;
    if (entry.untaken <= most) continue;
    ++greedy;
    entry.untaken = 0;  // gRPC closes it soon
    ShutDown(entry.fd, entry.socket);
  }
  return greedy;
}

size_t ConnectionLedger::Sweep(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  size_t late = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    if (SocketBehind(entry.fd) != entry.socket) {
      Forget(entry.address);
      entries_.erase(it++);
      continue;
    }
    if (now >= entry.deadline) {
      ++late;
      entry.deadline = absl::InfiniteFuture();  // gRPC closes it soon
      ShutDown(entry.fd, entry.socket);
    }
    ++it;
  }
  return late;
}

size_t ConnectionLedger::size() const {
  absl::MutexLock lock(&mutex_);
  return entries_.size();
}

size_t ConnectionLedger::CountFrom(const std::string& address) const {
  absl::MutexLock lock(&mutex_);
  const auto it = by_address_.find(address);
  return it == by_address_.end() ? 0 : it->second;
}

void ConnectionLedger::Forget(const std::string& address) {
  const auto it = by_address_.find(address);
  if (it != by_address_.end() && --it->second == 0) by_address_.erase(it);
}

}  // namespace railsd
