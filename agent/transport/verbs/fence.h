// A fence in the 32 bits of its immediate.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_FENCE_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_FENCE_H_

#include <cstdint>

#include "agent/base/ids.h"

namespace railsd::verbs {

struct FenceImmediate {
  uint16_t slot = 0;       // the zone, as its receiver numbered it
  uint8_t generation = 0;  // 4 bits: ZoneRef::short_generation()
  uint8_t round = 0;       // 4 bits
  uint8_t weight = 0;      // never 0
  friend bool operator==(const FenceImmediate&, const FenceImmediate&) = default;
};

// Rounds of an exchange that the immediate tells apart.
inline constexpr uint32_t kFenceRounds = 15;

// In host order; bits that do not fit are dropped.
constexpr uint32_t EncodeFence(const FenceImmediate& fence) {
  return uint32_t{fence.slot} << 16 | uint32_t{fence.generation & 15u} << 12 | uint32_t{fence.round & 15u} << 8 |
         fence.weight;
}
// Every value decodes. The receiver checks the slot.
constexpr FenceImmediate DecodeFence(uint32_t immediate) {
  return {static_cast<uint16_t>(immediate >> 16), static_cast<uint8_t>(immediate >> 12 & 15),
          static_cast<uint8_t>(immediate >> 8 & 15), static_cast<uint8_t>(immediate & 255)};
}

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_FENCE_H_
