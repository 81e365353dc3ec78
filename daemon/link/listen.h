// The listening sockets of the control port.
#ifndef RAILSD_DAEMON_LINK_LISTEN_H_
#define RAILSD_DAEMON_LINK_LISTEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/base/unique_fd.h"

namespace railsd {

struct Listeners {
  std::vector<UniqueFd> sockets;  // not blocking; one for each address that a name has
  int port = 0;                   // that was bound
};

// `address`: "host:port", "[::1]:0". All addresses of the node, 0.0.0.0 or [::], mean those of IPv6 as well where there
// are any. Error: UNAVAILABLE, with the address and why.
absl::StatusOr<Listeners> ListenOn(const std::string& address);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_LISTEN_H_
