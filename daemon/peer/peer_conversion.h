// Converts rails.peer.v1 messages to the agent's structures and back. Bytes from a peer are hostile and all checked.
#ifndef RAILSD_DAEMON_PEER_PEER_CONVERSION_H_
#define RAILSD_DAEMON_PEER_PEER_CONVERSION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/control/messages.h"

namespace rails::peer::v1 {
class Hello;
class Message;
}  // namespace rails::peer::v1

namespace railsd {

inline constexpr uint32_t kPeerProtocolVersion = 5;
inline constexpr uint64_t kMinMaxMessageBytes = 64 << 10;
inline constexpr size_t kMaxPeerRails = 64;
inline constexpr size_t kMaxSoftware = 64;
inline constexpr size_t kMaxPeerText = 4096;  // bytes of a reason; longer ones are cut when sent, refused when received

void MessageTo(const ControlMessage& message, rails::peer::v1::Message* out);

// INVALID_ARGUMENT names the field and the value: ranks from `max_world_size` on, columns of unequal length, flows out
// of order, sums of bytes past 64 bits, ranges past the end of memory, lists that are too long, rails that are named
// twice, rails without a key for each range, impossible slots, generations, rounds, states and codes, a missing body.
absl::StatusOr<ControlMessage> MessageFrom(const rails::peer::v1::Message& in, uint32_t max_world_size);

// The contents of a HELLO.
struct HelloFacts {
  PeerHello hello;
  uint32_t link_generation = 1;
  uint64_t max_message_bytes = 0;
  uint32_t max_world_size = 0;
  BootId expected_boot;
  uint32_t expected_generation = 0;
  uint64_t taken = 0;
  uint64_t count = 0;
  std::string software;  // version of the daemon
};
void HelloTo(const HelloFacts& facts, rails::peer::v1::Hello* out);

// Reads a peer's HELLO and checks it against this node's limits. Errors name both nodes. FAILED_PRECONDITION: the
// versions do not overlap, or the limits do not agree. INVALID_ARGUMENT: a field is malformed.
absl::StatusOr<HelloFacts> HelloFrom(const rails::peer::v1::Hello& in, const std::string& own_node,
                                     uint32_t own_max_world_size);

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_PEER_CONVERSION_H_
