// A flow over rails that write into remote memory.
#ifndef RAILSD_AGENT_JOB_FENCED_FLOW_H_
#define RAILSD_AGENT_JOB_FENCED_FLOW_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "agent/base/ids.h"

namespace railsd {

struct PeerExchange;

// A set of rails; a node has no more than its size.
using RailMask = uint64_t;
inline constexpr size_t kMaxMaskedRails = 64;
constexpr RailMask RailBit(size_t rail) { return RailMask{1} << rail; }

// When nothing of the flow is left to post, each rail that carried some of it sends a fence; the receiver has
// everything when it has that many. Owned by the job, kept by the sprayer.
struct FencedFlow {
  // What a rail gave back without knowing whether it arrived.
  struct Lost {
    uint64_t offset_bytes = 0, length_bytes = 0;
    RailIndex rail;
  };
  PeerExchange* exchange = nullptr;
  uint64_t unposted_bytes = 0;
  RailMask usable = 0;       // its receiver has given keys for these
  RailMask used = 0;         // something was posted to these in this round
  uint32_t fences_left = 0;  // not acknowledged; from the moment when the last byte was posted
  uint8_t round = 0;         // raised by the receiver when a rail has failed
  bool asked = false;        // the receiver is to say whether it has it; nothing else decides meanwhile
  bool over = false;         // the receiver has everything
  std::vector<Lost> lost;    // of rails that failed in this round
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_FENCED_FLOW_H_
