// A READY that is as long as the test wants, and that its receiver accepts.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_LONG_READY_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_LONG_READY_H_

#include <cstdint>
#include <vector>

#include "agent/control/messages.h"

namespace railsd::testing {

// About 8 bytes a flow.
inline Ready LongReady(JobKey job, uint32_t flows) {
  constexpr uint32_t kRanks = 2000;
  Ready ready;
  ready.job = job;
  std::vector<Ready::Flow> sends;
  for (uint32_t i = 0; i < flows; ++i) {
    sends.push_back({Rank(i % kRanks), Rank(i / kRanks), uint64_t{1} << 40});
  }
  ready.sends = sends;
  return ready;
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_LONG_READY_H_
