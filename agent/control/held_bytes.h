// How much memory a message of a peer takes while it waits.
#ifndef RAILSD_AGENT_CONTROL_HELD_BYTES_H_
#define RAILSD_AGENT_CONTROL_HELD_BYTES_H_

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include "agent/control/messages.h"

namespace railsd {

// Without what the allocator adds. Names and reasons are bounded elsewhere and short, so they are not looked at.
inline size_t HeldBytes(const ControlMessage& message) {
  const auto bytes_of = [](const auto& elements) { return elements.size() * sizeof(elements[0]); };
  return std::visit(
      [&](const auto& m) {
        size_t bytes = sizeof(ControlMessage);
        if constexpr (requires { m.members; }) bytes += bytes_of(m.members);
        if constexpr (requires { m.flows; }) bytes += bytes_of(m.flows);
        if constexpr (requires { m.ranges; }) bytes += bytes_of(m.ranges) + bytes_of(m.keys) + bytes_of(m.fences);
        if constexpr (requires { m.bytes; }) bytes += bytes_of(m.bytes);
        return bytes;
      },
      message);
}

}  // namespace railsd

#endif  // RAILSD_AGENT_CONTROL_HELD_BYTES_H_
