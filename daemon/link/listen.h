// The listening sockets of the control port.
#ifndef RAILSD_DAEMON_LINK_LISTEN_H_
#define RAILSD_DAEMON_LINK_LISTEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/base/unique_fd.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd {

// Every address behind "name:port", as "ip:port", sorted, each once. May block for long. NOT_FOUND: the name and the
// reason.
absl::StatusOr<std::vector<std::string>> AddressesOf(const std::string& address);

struct Listeners {
  std::vector<UniqueFd> sockets;  // non-blocking; one for each address of the name
  int port = 0;                   // bound
};

// `address`: "host:port", "[::1]:0". 0.0.0.0 and [::] mean all addresses of the node, IPv6 as well where the node has
// it. UNAVAILABLE: the address and the reason.
absl::StatusOr<Listeners> ListenOn(const std::string& address);

// The source under which a connection from this address is counted: the address of IPv4, or the /64 network of IPv6,
// because one node may have every address of that network.
std::string SourceOf(const tcp::SocketAddress& from);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_LISTEN_H_
