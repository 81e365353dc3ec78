#include "agent/transport/tcp/link_watch.h"

#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace railsd::tcp {
namespace {

// IFF_LOWER_UP, which <net/if.h> lacks: the interface has a carrier.
constexpr unsigned kLowerUp = 0x10000;

template <typename Wanted>
Wanted WantedAddress(const SocketAddress& address) {
  Wanted wanted;
  wanted.family = static_cast<uint8_t>(address.family());
  if (address.family() == AF_INET6) {
    std::memcpy(wanted.bytes.data(), &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr, 16);
  } else {
    std::memcpy(wanted.bytes.data(), &reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr, 4);
  }
  return wanted;
}

// The attribute of that type behind a message's own header; null when there is none.
const nlattr* FindAttribute(const nlmsghdr* message, size_t header_bytes, uint16_t type) {
  const auto* attribute = static_cast<const nlattr*>(mnl_nlmsg_get_payload_offset(message, header_bytes));
  const auto* end = static_cast<const char*>(mnl_nlmsg_get_payload_tail(message));
  while (mnl_attr_ok(attribute, static_cast<int>(end - reinterpret_cast<const char*>(attribute)))) {
    if (mnl_attr_get_type(attribute) == type) return attribute;
    attribute = mnl_attr_next(attribute);
  }
  return nullptr;
}

}  // namespace

LinkWatch::LinkWatch(const SocketAddress& address, std::string interface)
    : wanted_(WantedAddress<Address>(address)), any_(address.IsAny()), interface_(std::move(interface)) {}

absl::Status LinkWatch::Open() {
  socket_.reset(mnl_socket_open2(NETLINK_ROUTE, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket_ == nullptr) return absl::ErrnoToStatus(errno, "netlink socket");
  constexpr unsigned kGroups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
  if (mnl_socket_bind(socket_.get(), kGroups, MNL_SOCKET_AUTOPID) < 0) {
    return absl::ErrnoToStatus(errno, "bind of a netlink socket");
  }
  ReadAnew();
  return absl::OkStatus();
}

bool LinkWatch::Ask(uint16_t type) {
  alignas(8) std::array<std::byte, 64> request;
  nlmsghdr* header = mnl_nlmsg_put_header(request.data());
  header->nlmsg_type = type;
  header->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  header->nlmsg_seq = ++sequence_;
  if (type == RTM_GETLINK) {
    mnl_nlmsg_put_extra_header(header, sizeof(ifinfomsg));
  } else {
    mnl_nlmsg_put_extra_header(header, sizeof(ifaddrmsg));
  }
  return mnl_socket_sendto(socket_.get(), header, header->nlmsg_len) >= 0;
}

void LinkWatch::ReadAnew() {
  links_.clear();
  addresses_.clear();
  interrupted_ = false;
  phase_ = Ask(RTM_GETLINK) ? Phase::kLinks : Phase::kWatching;
}

bool LinkWatch::Read() {
  const int before = error_;
  for (;;) {
    const ssize_t got = mnl_socket_recvfrom(socket_.get(), buffer_.data(), buffer_.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == ENOBUFS || errno == ENOSPC)) {  // messages were lost, or did not fit
      ReadAnew();
      continue;
    }
    if (got <= 0) break;
    int left = static_cast<int>(got);
    for (const auto* message = reinterpret_cast<const nlmsghdr*>(buffer_.data()); mnl_nlmsg_ok(message, left);
         message = mnl_nlmsg_next(message, &left)) {
      Apply(message);
    }
  }
  if (phase_ == Phase::kWatching) error_ = Judge();
  return error_ != before;
}

void LinkWatch::Apply(const nlmsghdr* message) {
  const bool mine = message->nlmsg_seq == sequence_;  // of the dump; other messages of the kernel have no number
  if (mine && (message->nlmsg_flags & NLM_F_DUMP_INTR) != 0) interrupted_ = true;
  switch (message->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
      return OnLink(message);
    case RTM_NEWADDR:
    case RTM_DELADDR:
      return OnAddress(message);
    case NLMSG_DONE:
    case NLMSG_ERROR:
      if (!mine || phase_ == Phase::kWatching) return;
      if (interrupted_) return ReadAnew();
      phase_ = phase_ == Phase::kLinks && Ask(RTM_GETADDR) ? Phase::kAddresses : Phase::kWatching;
      return;
    default:
      return;
  }
}

void LinkWatch::OnLink(const nlmsghdr* message) {
  if (mnl_nlmsg_get_payload_len(message) < sizeof(ifinfomsg)) return;
  const auto* info = static_cast<const ifinfomsg*>(mnl_nlmsg_get_payload(message));
  if (info->ifi_family != AF_UNSPEC) return;  // a bridge's message about one of its ports
  const auto index = static_cast<uint32_t>(info->ifi_index);
  if (message->nlmsg_type == RTM_DELLINK) {
    links_.erase(index);
    std::erase_if(addresses_, [&](const Address& address) { return address.interface == index; });
    return;
  }
  Link& link = links_[index];
  if (const nlattr* name = FindAttribute(message, sizeof(ifinfomsg), IFLA_IFNAME); name != nullptr) {
    const char* text = mnl_attr_get_str(name);
    link.name.assign(text, strnlen(text, mnl_attr_get_payload_len(name)));
  }
  link.up = (info->ifi_flags & IFF_UP) != 0 && (info->ifi_flags & kLowerUp) != 0;
  link.loopback = (info->ifi_flags & IFF_LOOPBACK) != 0;
}

void LinkWatch::OnAddress(const nlmsghdr* message) {
  if (mnl_nlmsg_get_payload_len(message) < sizeof(ifaddrmsg)) return;
  const auto* info = static_cast<const ifaddrmsg*>(mnl_nlmsg_get_payload(message));
  const nlattr* bytes = FindAttribute(message, sizeof(ifaddrmsg), IFA_LOCAL);
  if (bytes == nullptr) bytes = FindAttribute(message, sizeof(ifaddrmsg), IFA_ADDRESS);
  const size_t length = info->ifa_family == AF_INET6 ? 16 : 4;
  if (bytes == nullptr || info->ifa_family != wanted_.family || mnl_attr_get_payload_len(bytes) != length) return;
  Address address;
  address.interface = info->ifa_index;
  address.family = info->ifa_family;
  address.prefix = info->ifa_prefixlen;
  std::memcpy(address.bytes.data(), mnl_attr_get_payload(bytes), length);
  // A tentative address cannot be used yet (the kernel checks for duplicates). The kernel reports it again later.
  if (message->nlmsg_type == RTM_NEWADDR && (info->ifa_flags & IFA_F_TENTATIVE) == 0) {
    addresses_.insert(address);
  } else {
    addresses_.erase(address);
  }
}

bool LinkWatch::IsMine(const Address& address, const Link& link) const {
  if (!interface_.empty() && link.name != interface_) return false;
  if (address.bytes == wanted_.bytes) return true;
  if (!link.loopback || wanted_.family != AF_INET) return false;
  // The loopback interface answers for every address of its network.
  const auto network = [&](const Address& a) {
    uint32_t bits = 0;
    std::memcpy(&bits, a.bytes.data(), sizeof(bits));
    return address.prefix == 0 ? 0 : ntohl(bits) >> (32 - std::min<uint32_t>(address.prefix, 32));
  };
  return network(address) == network(wanted_);
}

int LinkWatch::Judge() {
  bool there = false;
  if (any_) {
    if (interface_.empty()) return 0;
    for (const auto& [index, link] : links_) {
      if (link.name != interface_) continue;
      seen_ = there = true;
      if (link.up) return 0;
    }
    return there ? ENETDOWN : seen_ ? ENODEV : 0;
  }
  for (const Address& address : addresses_) {
    const auto link = links_.find(address.interface);
    if (link == links_.end() || !IsMine(address, link->second)) continue;
    seen_ = there = true;
    if (link->second.up) return 0;
  }
  return there ? ENETDOWN : seen_ ? EADDRNOTAVAIL : 0;
}

}  // namespace railsd::tcp
