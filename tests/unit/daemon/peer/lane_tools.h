// Keys and frames of lanes, for tests and fuzzers.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_TOOLS_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_TOOLS_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "daemon/peer/lane_codec.h"

namespace railsd {

// Others for each seed.
inline LaneKeys MakeLaneKeys(uint8_t seed = 1, bool sealed = true) {
  LaneKeys keys;
  keys.dialler.fill(seed);
  keys.key.fill(static_cast<uint8_t>(seed + 100));
  keys.sealed = sealed;
  return keys;
}

// Gives `bytes` to the opener in pieces of `piece`, and collects the messages. What the opener said last, if not OK.
inline absl::Status OpenLaneFrames(LaneOpener& opener, absl::string_view bytes, size_t piece,
                                   std::vector<std::string>* messages) {
  while (!bytes.empty()) {
    size_t room = 0;
    char* const space = opener.Space(&room);
    if (room == 0) return absl::InternalError("the opener has no space, and waits for more");
    const size_t now = std::min({piece, room, bytes.size()});
    std::memcpy(space, bytes.data(), now);
    opener.Arrived(now);
    bytes.remove_prefix(now);
    while (true) {
      const auto message = opener.Next();
      if (!message.ok()) return message.status();
      if (!message->has_value()) break;
      messages->emplace_back(**message);
    }
  }
  return absl::OkStatus();
}

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_TOOLS_H_
