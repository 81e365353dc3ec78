// What the kernel says of the interface that has a rail's address: it tells at once when the cable is out, the
// interface is switched off or the address is taken away, long before a connection would notice.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_LINK_WATCH_H_
#define RAILSD_AGENT_TRANSPORT_TCP_LINK_WATCH_H_

#include <ifaddrs.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "agent/base/unique_fd.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd::tcp {

// A netlink socket (RTNETLINK, links and addresses) that says when to look; getifaddrs(3) says how it is. Of the rail's
// thread.
class LinkWatch {
 public:
  // `interface`: the rail is bound to it; empty: whichever has the address.
  LinkWatch(const SocketAddress& address, std::string interface) : wanted_(address), interface_(std::move(interface)) {}

  // Subscribes. Needs no privilege. The first Read() tells the state of now.
  absl::Status Open();
  // Readable when there is something for Read().
  int fd() const { return socket_.get(); }
  // Looks at the state when the kernel says that something has changed. True: error() has changed.
  bool Read();
  // 0: the link is up, or was never seen. ENETDOWN: the interface is switched off or has no carrier; EADDRNOTAVAIL: no
  // interface has the address any more; ENODEV: the interface that the rail is bound to is gone.
  int error() const { return error_; }

 private:
  bool IsMine(const ifaddrs& entry) const;
  int Judge(const ifaddrs* entries);

  const SocketAddress wanted_;
  const std::string interface_;
  UniqueFd socket_;
  bool seen_ = false;  // the address, or the interface, was there once
  int error_ = 0;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_LINK_WATCH_H_
