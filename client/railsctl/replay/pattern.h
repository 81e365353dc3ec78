// Payload that identifies its place. Every byte depends on the seed, the job, the flow and its offset in the flow.
// Therefore a byte that is stale, misplaced or from another flow differs from the right one, except by chance (1 in
// 256).
#ifndef RAILS_RAILSCTL_REPLAY_PATTERN_H_
#define RAILS_RAILSCTL_REPLAY_PATTERN_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace rails::ctl {

// Identifies the bytes of one flow of one job of one run.
struct FlowName {
  uint64_t seed = 0;
  uint64_t job = 0;  // counts phases over the whole run
  uint32_t source_rank = 0;
  uint32_t destination_rank = 0;
};

// The flow's key for the functions below.
uint64_t PatternKey(const FlowName& flow);

// Writes the flow's bytes [flow_offset, flow_offset + out.size()). Several GB/s.
void FillPattern(uint64_t key, uint64_t flow_offset, absl::Span<std::byte> out);

struct Mismatch {
  uint64_t count = 0;  // wrong bytes; if 0, the other fields mean nothing
  uint64_t first = 0;  // index of the first wrong byte
  uint8_t expected = 0, got = 0;
};

// Compares every byte with FillPattern()'s.
Mismatch ComparePattern(uint64_t key, uint64_t flow_offset, absl::Span<const std::byte> bytes);

// The value that fills a receive buffer before a job. It reveals missing bytes and writes outside the ranges.
uint8_t PoisonByte(uint64_t job);
Mismatch ComparePoison(uint8_t poison, absl::Span<const std::byte> bytes);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_PATTERN_H_
