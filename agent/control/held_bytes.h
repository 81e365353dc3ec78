// How much memory a message of a peer takes while it waits.
#ifndef RAILSD_AGENT_CONTROL_HELD_BYTES_H_
#define RAILSD_AGENT_CONTROL_HELD_BYTES_H_

#include <cstddef>
#include <type_traits>
#include <variant>
#include <vector>

#include "agent/control/messages.h"

namespace railsd {

// Bytes of the message, without the allocator's overhead. Does not count names and reasons: they are short and bounded
// elsewhere.
inline size_t HeldBytes(const ControlMessage& message) {
  const auto bytes_of = [](const auto& elements) { return elements.size() * sizeof(elements[0]); };
  const auto bytes_of_keys = [&](const std::vector<RailKeys>& rails) {
    size_t bytes = bytes_of(rails);
    for (const RailKeys& rail : rails) bytes += bytes_of(rail.keys);
    return bytes;
  };
  const auto bytes_of_grant = [&](const Grant& grant) { return bytes_of(grant.ranges) + bytes_of_keys(grant.keys); };
  return std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        size_t bytes = sizeof(ControlMessage);
        if constexpr (requires { m.members; }) bytes += bytes_of(m.members);
        if constexpr (requires { m.failed; }) bytes += bytes_of(m.failed);
        if constexpr (requires { m.exchanges; }) bytes += bytes_of(m.exchanges);
        if constexpr (requires { m.bytes; }) bytes += bytes_of(m.bytes);
        if constexpr (std::is_same_v<M, LateGrant>) bytes += bytes_of_grant(m.grant);
        if constexpr (std::is_same_v<M, Rehomed>) {
          for (const Rehomed::Exchange& exchange : m.exchanges) bytes += bytes_of_keys(exchange.keys);
        }
        if constexpr (std::is_same_v<M, Ready>) {
          bytes += bytes_of(m.sends) + bytes_of(m.receives) + m.eager.size();
          bytes += bytes_of(m.rails.bytes_per_s) + bytes_of(m.planned_bytes);
          for (const Tally& tally : m.tallies) bytes += sizeof(tally) + bytes_of(tally.bytes);
          if (m.grant.has_value()) bytes += bytes_of_grant(*m.grant);
        }
        return bytes;
      },
      message);
}

}  // namespace railsd

#endif  // RAILSD_AGENT_CONTROL_HELD_BYTES_H_
