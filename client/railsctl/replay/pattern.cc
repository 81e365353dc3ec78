#include "client/railsctl/replay/pattern.h"

#include <algorithm>
#include <cstring>

namespace rails::ctl {
namespace {

// The finalizer of SplitMix64: every input bit affects every output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Eight bytes of a flow. All supported machines are little-endian.
uint64_t Word(uint64_t key, uint64_t index) { return Mix(key + index * 0x9E3779B97F4A7C15u); }

uint8_t ByteAt(uint64_t key, uint64_t offset) {
  return static_cast<uint8_t>(Word(key, offset / 8) >> (8 * (offset % 8)));
}

void CountByte(uint8_t expected, uint8_t got, uint64_t index, Mismatch* mismatch) {
  if (expected == got) return;
  if (mismatch->count++ == 0) *mismatch = {1, index, expected, got};
}

}  // namespace

uint64_t PatternKey(const FlowName& flow) {
  uint64_t key = Mix(flow.seed + 0x9E3779B97F4A7C15u);
  key = Mix(key ^ (flow.job + 0xD1B54A32D192ED03u));
  return Mix(key ^ (uint64_t{flow.source_rank} << 32 | flow.destination_rank));
}

void FillPattern(uint64_t key, uint64_t flow_offset, absl::Span<std::byte> out) {
  size_t i = 0;
  for (; i < out.size() && (flow_offset + i) % 8 != 0; ++i) out[i] = std::byte{ByteAt(key, flow_offset + i)};
  for (uint64_t index = (flow_offset + i) / 8; i + 8 <= out.size(); i += 8, ++index) {
    const uint64_t word = Word(key, index);
    std::memcpy(out.data() + i, &word, 8);
  }
  for (; i < out.size(); ++i) out[i] = std::byte{ByteAt(key, flow_offset + i)};
}

Mismatch ComparePattern(uint64_t key, uint64_t flow_offset, absl::Span<const std::byte> bytes) {
  Mismatch mismatch;
  const auto compare_byte = [&](size_t i) {
    CountByte(ByteAt(key, flow_offset + i), static_cast<uint8_t>(bytes[i]), i, &mismatch);
  };
  size_t i = 0;
  for (; i < bytes.size() && (flow_offset + i) % 8 != 0; ++i) compare_byte(i);
  for (uint64_t index = (flow_offset + i) / 8; i + 8 <= bytes.size(); i += 8, ++index) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if (word == Word(key, index)) continue;
    for (size_t j = i; j < i + 8; ++j) compare_byte(j);
  }
  for (; i < bytes.size(); ++i) compare_byte(i);
  return mismatch;
}

uint8_t PoisonByte(uint64_t job) { return static_cast<uint8_t>(0xA5 + 37 * job); }

Mismatch ComparePoison(uint8_t poison, absl::Span<const std::byte> bytes) {
  Mismatch mismatch;
  uint64_t eight;
  std::memset(&eight, poison, 8);
  for (size_t i = 0; i < bytes.size();) {
    uint64_t word;
    if (i + 8 <= bytes.size() && (std::memcpy(&word, bytes.data() + i, 8), word == eight)) {
      i += 8;
      continue;
    }
    const size_t end = std::min(i + 8, bytes.size());
    for (; i < end; ++i) CountByte(poison, static_cast<uint8_t>(bytes[i]), i, &mismatch);
  }
  return mismatch;
}

}  // namespace rails::ctl
