// Networks of IP addresses, as in 10.16.0.0/12. Pure.
#ifndef RAILSD_DAEMON_CONFIG_NETWORK_H_
#define RAILSD_DAEMON_CONFIG_NETWORK_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace railsd {

class IpNetwork {
 public:
  // "10.16.0.0/12", "fd00::/64". Bits behind the prefix do not count. INVALID_ARGUMENT: the text is not a network.
  static absl::StatusOr<IpNetwork> Parse(absl::string_view text);

  // "10.16.0.0/12". Bits behind the prefix are 0.
  std::string Text() const;

  // True if `address` is a numeric address in the network, with or without a scope ("fe80::1%eth0").
  bool Contains(const std::string& address) const;
  // `address`: in IPv6's form; an IPv4 address is mapped (::ffff:10.0.0.1).
  bool Contains(const std::array<uint8_t, 16>& address) const;

 private:
  std::array<uint8_t, 16> bytes_{};  // IPv4 mapped
  uint32_t bits_ = 0;                // length of the prefix, in the mapped form
};

// True if the text is meant as a network, because it has a slash.
inline bool LooksLikeNetwork(absl::string_view text) { return text.find('/') != absl::string_view::npos; }

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_NETWORK_H_
