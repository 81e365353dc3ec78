// The places of a rank's flows in its two segments. Pure: coordinator and worker compute the same.
#ifndef RAILS_RAILSCTL_REPLAY_LAYOUT_H_
#define RAILS_RAILSCTL_REPLAY_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace rails::ctl {

struct PlacedRange {
  uint64_t flow_offset = 0;     // first byte in the flow
  uint64_t segment_offset = 0;  // first byte in the segment
  uint64_t length = 0;          // bytes, above 0
};

struct PlacedFlow {
  uint32_t peer = 0;
  std::vector<PlacedRange> ranges;  // in the order of the flow's bytes
};

struct RankLayout {
  std::vector<PlacedFlow> sends, receives;  // without empty flows
  uint64_t send_bytes = 0;                  // size of the send segment
  uint64_t receive_bytes = 0;               // size of the receive segment with guards
};

// Size of the guards before, between and after the receive ranges. No job may write them.
inline constexpr uint64_t kGuardBytes = 64;

// `row`: bytes to each rank; `column`: bytes from each rank. Cuts every flow into `ranges_per_flow` ranges, or fewer if
// it has fewer bytes. The receive segment has the ranges in reverse order, so that swapped ranges are detected.
// INVALID_ARGUMENT: row and column differ in size, ranges_per_flow is 0 or above 1,000,000, or a segment would exceed
// 2^46 bytes.
absl::StatusOr<RankLayout> LayOut(absl::Span<const uint64_t> row, absl::Span<const uint64_t> column,
                                  uint32_t ranges_per_flow);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_LAYOUT_H_
