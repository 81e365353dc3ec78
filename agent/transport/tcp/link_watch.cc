#include "agent/transport/tcp/link_watch.h"

#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace railsd::tcp {
namespace {

// <net/if.h> lacks it: the carrier is there.
constexpr unsigned kLowerUp = 0x10000;

template <typename Address>
const Address& As(const sockaddr* address) {
  return *reinterpret_cast<const Address*>(address);
}

bool IsUp(const ifaddrs& entry) { return (entry.ifa_flags & IFF_UP) != 0 && (entry.ifa_flags & kLowerUp) != 0; }

// False for an IPv6 address that the network is still being asked about; the kernel tells when it is not any more.
bool CanBeUsed(SocketAddress address) {
  address.set_port(0);
  const UniqueFd probe(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return !probe.valid() || ::bind(probe.get(), address.get(), address.length) == 0 || errno != EADDRNOTAVAIL;
}

}  // namespace

absl::Status LinkWatch::Open() {
  socket_.Reset(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!socket_.valid()) return absl::ErrnoToStatus(errno, "netlink socket");
  sockaddr_nl groups{};
  groups.nl_family = AF_NETLINK;
  groups.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&groups), sizeof(groups)) != 0) {
    return absl::ErrnoToStatus(errno, "bind of a netlink socket");
  }
  return absl::OkStatus();
}

bool LinkWatch::Read() {
  // Whatever the messages say, and however many were lost (ENOBUFS): the state is read anew.
  std::array<std::byte, 64> message;
  while (::recv(socket_.get(), message.data(), message.size(), 0) >= 0 || errno == EINTR || errno == ENOBUFS) {
  }
  ifaddrs* entries = nullptr;
  if (::getifaddrs(&entries) != 0) return false;
  const int before = error_;
  error_ = Judge(entries);
  ::freeifaddrs(entries);
  return error_ != before;
}

// Whether the entry is the rail's address, or, for a rail on any address, its interface.
bool LinkWatch::IsMine(const ifaddrs& entry) const {
  if (!interface_.empty() && entry.ifa_name != interface_) return false;
  if (wanted_.IsAny()) return true;
  if (entry.ifa_addr == nullptr || entry.ifa_addr->sa_family != wanted_.family()) return false;
  if (wanted_.family() == AF_INET6) {
    const in6_addr& wanted = As<sockaddr_in6>(wanted_.get()).sin6_addr;
    return std::memcmp(&wanted, &As<sockaddr_in6>(entry.ifa_addr).sin6_addr, sizeof(wanted)) == 0;
  }
  const uint32_t differs =
      As<sockaddr_in>(wanted_.get()).sin_addr.s_addr ^ As<sockaddr_in>(entry.ifa_addr).sin_addr.s_addr;
  if (differs == 0) return true;
  // The loopback has every address of its network.
  const bool has_network = (entry.ifa_flags & IFF_LOOPBACK) != 0 && entry.ifa_netmask != nullptr;
  return has_network && (differs & As<sockaddr_in>(entry.ifa_netmask).sin_addr.s_addr) == 0;
}

int LinkWatch::Judge(const ifaddrs* entries) {
  const bool any = wanted_.IsAny();
  if (any && interface_.empty()) return 0;
  bool there = false;
  for (const ifaddrs* entry = entries; entry != nullptr; entry = entry->ifa_next) {
    if (!IsMine(*entry) || (!any && wanted_.family() == AF_INET6 && !CanBeUsed(wanted_))) continue;
    seen_ = there = true;
    if (IsUp(*entry)) return 0;
  }
  if (!seen_) return 0;
  return there ? ENETDOWN : any ? ENODEV : EADDRNOTAVAIL;
}

}  // namespace railsd::tcp
