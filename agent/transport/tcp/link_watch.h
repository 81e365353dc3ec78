// Watches the interface that has a rail's address. The kernel reports at once when the carrier is lost, the interface
// is switched off or the address is removed, long before a connection would fail.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_LINK_WATCH_H_
#define RAILSD_AGENT_TRANSPORT_TCP_LINK_WATCH_H_

#include <libmnl/libmnl.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd::tcp {

// A netlink socket (RTNETLINK, links and addresses). Used by the rail's thread. Never blocks.
class LinkWatch {
 public:
  // `interface`: the one that the rail is bound to; empty: any that has the address.
  LinkWatch(const SocketAddress& address, std::string interface);

  // Subscribes to changes and requests the present state, which the first calls of Read() take. Needs no privilege.
  absl::Status Open();
  // Readable when there is something for Read().
  int fd() const { return mnl_socket_get_fd(socket_.get()); }
  // Takes the kernel's messages, and requests the whole state again if messages were lost. True: error() has changed.
  bool Read();
  // 0: the link is up, or was never seen. ENETDOWN: the interface is switched off or has no carrier; EADDRNOTAVAIL: no
  // interface has the address any more; ENODEV: the interface that the rail is bound to is gone.
  int error() const { return error_; }

 private:
  enum class Phase : uint8_t { kLinks, kAddresses, kWatching };  // the first two: a dump is under way
  struct Address {
    uint32_t interface = 0;
    uint8_t family = 0, prefix = 0;
    std::array<std::byte, 16> bytes{};
    friend auto operator<=>(const Address&, const Address&) = default;  // NOLINT(modernize-use-nullptr): mistaken
  };
  struct Link {
    std::string name;
    bool up = false;
    bool loopback = false;
  };
  struct Close {
    void operator()(mnl_socket* socket) const { mnl_socket_close(socket); }
  };

  bool Ask(uint16_t type);  // for a dump
  void ReadAnew();
  void Apply(const nlmsghdr* message);
  void OnLink(const nlmsghdr* message);
  void OnAddress(const nlmsghdr* message);
  bool IsMine(const Address& address, const Link& link) const;
  int Judge();

  const Address wanted_;
  const bool any_;
  const std::string interface_;
  std::unique_ptr<mnl_socket, Close> socket_;
  Phase phase_ = Phase::kLinks;
  uint32_t sequence_ = 0;
  bool interrupted_ = false;  // the dump is not consistent
  bool seen_ = false;         // the address, or the interface, was there once
  int error_ = 0;
  std::map<uint32_t, Link> links_;
  std::set<Address> addresses_;
  alignas(8) std::array<std::byte, 32 << 10> buffer_;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_LINK_WATCH_H_
