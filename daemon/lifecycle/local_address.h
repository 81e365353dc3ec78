// The addresses of this machine that a configuration selects by a network or an interface.
#ifndef RAILSD_DAEMON_LIFECYCLE_LOCAL_ADDRESS_H_
#define RAILSD_DAEMON_LIFECYCLE_LOCAL_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/net/local_addresses.h"

namespace railsd {

inline constexpr const char* kLoopback = "lo";

// Finds `address` ("ip" or "ip:port") among the addresses of this machine; null: it is not there.
const LocalAddress* FindAddress(const std::string& address, absl::Span<const LocalAddress> known);
// Whether sockets with this address belong to its interface: it is in a network there, not on the loopback or routed by
// itself (a prefix of all bits), and the kernel lets this process bind them (before Linux 5.7 only with CAP_NET_RAW).
bool MayBindTo(const LocalAddress& address);
// The interface that has `address` ("ip" or "ip:port"), or empty.
std::string InterfaceOf(const std::string& address, absl::Span<const LocalAddress> known);
// The first IPv4 address of an interface, else its first IPv6 address that is not link-local, else empty.
std::string AddressOf(const std::string& interface, absl::Span<const LocalAddress> known);

// The network of an address of this machine ("ip" or "ip:port"), as in 10.16.0.0/12, or empty.
std::string SubnetOf(const std::string& address, absl::Span<const LocalAddress> known);

// Resolves the host of a configuration. A network as in 10.16.0.0/12 becomes the first address of this machine in it,
// an address of "lo" only if there is no other. An interface becomes its address (AddressOf()). Any other host is
// returned unchanged. NOT_FOUND: this machine has no address in the network.
absl::StatusOr<std::string> ResolveHost(const std::string& host, absl::Span<const LocalAddress> known);
// The same for "host:port". Empty stays empty. NOT_FOUND, too: a name that is neither an interface with an address nor
// a host. Errors begin with `key`.
absl::StatusOr<std::string> ResolveListen(const std::string& key, const std::string& listen,
                                          absl::Span<const LocalAddress> known);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_LOCAL_ADDRESS_H_
