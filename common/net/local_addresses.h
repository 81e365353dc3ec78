// The IP addresses of this machine.
#ifndef RAILSD_COMMON_NET_LOCAL_ADDRESSES_H_
#define RAILSD_COMMON_NET_LOCAL_ADDRESSES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace railsd {

struct LocalAddress {
  std::string interface, host;  // without the address's label; a link-local IPv6 address ends with its scope, "%eth0"
  bool v4 = false;
  uint32_t prefix_bits = 0;  // of its network
};

// All IP addresses of this machine, in the kernel's order. Empty if the kernel cannot be asked.
std::vector<LocalAddress> LocalAddresses();

}  // namespace railsd

#endif  // RAILSD_COMMON_NET_LOCAL_ADDRESSES_H_
