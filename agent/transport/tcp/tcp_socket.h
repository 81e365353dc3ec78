// Addresses and sockets of a TCP rail.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_SOCKET_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/base/unique_fd.h"

namespace railsd::tcp {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool IsAny() const;            // 0.0.0.0 or ::
  std::string ToString() const;  // "ip:port" or "[ip6]:port"
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// "ip", "ip:port", "ip6", "[ip6]", "[ip6]:port"; ip6 may carry a scope ("fe80::1%eth0"). Port 0 when absent. No names.
absl::StatusOr<SocketAddress> ParseAddress(absl::string_view text);

struct SocketTuning {
  std::string interface;           // SO_BINDTODEVICE when not empty
  int send_buffer_bytes = 0;       // 0: the kernel's own tuning
  int receive_buffer_bytes = 0;    // 0: the kernel's own tuning
  int unsent_low_water_bytes = 0;  // TCP_NOTSENT_LOWAT; 0: none
  absl::Duration peer_silence;     // TCP_USER_TIMEOUT and keepalives
};

// A listening socket, non-blocking. Errors name address and interface, and what to do when a capability is missing.
absl::StatusOr<UniqueFd> Listen(const SocketAddress& address, const SocketTuning& tuning);
absl::StatusOr<SocketAddress> LocalAddressOf(int fd);

// Begins a connection from `from` (any port) to `to`; it may still be in progress. *error_number gets the errno.
UniqueFd StartConnect(const SocketAddress& from, const SocketAddress& to, const SocketTuning& tuning,
                      int* error_number);
// Sets the options of a connection, accepted or dialled. StartConnect() calls it.
void TuneAccepted(int fd, const SocketTuning& tuning);
// How the connection attempt ended: 0 or an errno.
int TakeSocketError(int fd);

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_SOCKET_H_
