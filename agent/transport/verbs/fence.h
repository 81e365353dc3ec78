// What a fence says in the 32 bits of its immediate.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_FENCE_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_FENCE_H_

#include <cstdint>

#include "agent/transport/transport.h"

namespace railsd::verbs {

struct FenceImmediate {
  FenceSlot slot;      // the flow, as its receiver numbered it
  uint8_t round = 0;   // 4 bits
  uint8_t fences = 0;  // of the flow in this round, over all rails; never 0
  friend bool operator==(const FenceImmediate&, const FenceImmediate&) = default;
};

inline constexpr uint8_t kMaxFenceGeneration = 15;
inline constexpr uint8_t kMaxFenceRound = 15;

// In host order; bits that do not fit are dropped.
constexpr uint32_t EncodeFence(const FenceImmediate& fence) {
  return uint32_t{fence.slot.slot} << 16 | uint32_t{fence.slot.generation & 15u} << 12 |
         uint32_t{fence.round & 15u} << 8 | fence.fences;
}
// Every value decodes; whether the slot means anything is the receiver's business.
constexpr FenceImmediate DecodeFence(uint32_t immediate) {
  return {{static_cast<uint16_t>(immediate >> 16), static_cast<uint8_t>(immediate >> 12 & 15)},
          static_cast<uint8_t>(immediate >> 8 & 15),
          static_cast<uint8_t>(immediate & 255)};
}

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_FENCE_H_
