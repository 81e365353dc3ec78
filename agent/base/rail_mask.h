// A set of this node's rails.
#ifndef RAILSD_AGENT_BASE_RAIL_MASK_H_
#define RAILSD_AGENT_BASE_RAIL_MASK_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace railsd {

using RailMask = uint64_t;
inline constexpr size_t kMaxMaskedRails = 64;  // a node has no more rails
// Lists by rail have room for this many without an allocation.
inline constexpr size_t kUsualRails = 8;
using BytesByRail = absl::InlinedVector<uint64_t, kUsualRails>;
constexpr RailMask RailBit(size_t rail) { return RailMask{1} << rail; }
constexpr bool Has(RailMask rails, size_t rail) { return (rails & RailBit(rail)) != 0; }
constexpr void Set(RailMask* rails, size_t rail, bool in) { *rails = (*rails & ~RailBit(rail)) | RailMask{in} << rail; }

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_RAIL_MASK_H_
