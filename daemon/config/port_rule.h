// Rules that tell RDMA ports apart for `rails: auto`. Pure.
#ifndef RAILSD_DAEMON_CONFIG_PORT_RULE_H_
#define RAILSD_DAEMON_CONFIG_PORT_RULE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/network.h"

namespace railsd {

// "device:mlx5_[0-7]", "interface:rail*", "pci:0000:1?:*", "network:10.16.0.0/12" or "numa:0".
struct PortRule {
  enum class Kind : uint8_t { kDevice, kInterface, kPci, kNetwork, kNuma };
  Kind kind = Kind::kDevice;
  std::string pattern;  // a shell pattern; not used for kNetwork and kNuma
  IpNetwork network;
  int numa_node = 0;
};

// INVALID_ARGUMENT: the text is not a rule.
absl::StatusOr<PortRule> ParsePortRule(absl::string_view text);

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_PORT_RULE_H_
