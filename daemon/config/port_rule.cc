#include "daemon/config/port_rule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "daemon/config/units.h"

namespace railsd {

absl::StatusOr<PortRule> ParsePortRule(absl::string_view text) {
  using Kind = PortRule::Kind;
  constexpr std::pair<absl::string_view, Kind> kKinds[] = {{"device", Kind::kDevice},
                                                           {"interface", Kind::kInterface},
                                                           {"pci", Kind::kPci},
                                                           {"network", Kind::kNetwork},
                                                           {"numa", Kind::kNuma}};
  const size_t colon = std::min(text.find(':'), text.size());
  const absl::string_view value = text.substr(std::min(colon + 1, text.size()));
  const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                 [&](const auto& known) { return known.first == text.substr(0, colon); });
  if (kind == std::end(kKinds) || value.empty()) {
    return absl::InvalidArgumentError(
        "not a rule; write device:, interface:, pci:, network: or numa: and a value, as in device:mlx5_[0-7] or "
        "network:10.16.0.0/12");
  }
  PortRule rule{.kind = kind->second, .pattern = std::string(value), .network = {}, .numa_node = 0};
  if (rule.kind == Kind::kNetwork) {
    absl::StatusOr<IpNetwork> network = IpNetwork::Parse(value);
    if (!network.ok()) return network.status();
    rule.network = *std::move(network);
  }
  const bool pattern = rule.kind != Kind::kNetwork && rule.kind != Kind::kNuma;
  if (pattern && HasOpenBracket(value)) return absl::InvalidArgumentError("'[' without its ']'");
  if (rule.kind == Kind::kNuma && (!absl::SimpleAtoi(value, &rule.numa_node) || rule.numa_node < 0)) {
    return absl::InvalidArgumentError("not the number of a NUMA node");
  }
  return rule;
}

}  // namespace railsd
