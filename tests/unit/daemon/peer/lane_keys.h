// Keys of lanes, for tests.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_KEYS_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_KEYS_H_

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

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_LANE_KEYS_H_
