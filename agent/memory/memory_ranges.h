// Bytes of a stream in memory: an ordered list of ranges of segments, addressed by the offset in the stream.
#ifndef RAILSD_AGENT_MEMORY_MEMORY_RANGES_H_
#define RAILSD_AGENT_MEMORY_MEMORY_RANGES_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/memory/segment.h"

namespace railsd {

// Immutable once handed to a rail; any thread may then read it.
class MemoryRanges {
 public:
  // Appends [offset, offset + length) of `segment`, which the caller has checked to lie inside it. Zero lengths are
  // dropped; a range that continues the last one is merged into it.
  void Append(std::shared_ptr<const Segment> segment, uint64_t offset_bytes, uint64_t length_bytes);
  // Appends all of `other`.
  void Append(const MemoryRanges& other);
  void Reserve(size_t ranges) { pieces_.reserve(ranges); }

  uint64_t total_bytes() const { return total_bytes_; }
  size_t range_count() const { return pieces_.size(); }

  // Fills `out` with the memory of [offset, offset + length) of the stream, as much as fits into `out`.
  // Returns how many entries were filled; `*covered_bytes` says how many bytes they hold. Never allocates.
  size_t FillIovecs(uint64_t offset_bytes, uint64_t length_bytes, absl::Span<iovec> out, uint64_t* covered_bytes) const;

  // One range: bytes [offset, offset + length) of the stream. Lies inside `segment`.
  struct Piece {
    uint64_t offset_bytes;
    std::byte* address;
    uint64_t length_bytes;
    const Segment* segment;
  };
  // In order of their offset.
  absl::Span<const Piece> pieces() const { return pieces_; }
  // The piece that holds byte `offset_bytes`, which is below the total.
  absl::Span<const Piece>::const_iterator PieceAt(uint64_t offset_bytes) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<std::shared_ptr<const Segment>> segments_;  // keeps the mappings alive, each once
  uint64_t total_bytes_ = 0;
};

// Copies all of `from` into `to` (equal totals) by a system call that reports a bad page instead of raising SIGBUS.
// `*done_bytes` counts progress; call again until it reaches the total. At most `limit_bytes` are moved per call.
// Errors: FAILED_PRECONDITION when a page of either side cannot be touched.
absl::Status CopyBetweenRanges(const MemoryRanges& from, const MemoryRanges& to, uint64_t limit_bytes,
                               uint64_t* done_bytes);

// The same for bytes [offset, offset + length) of both, which lie inside both; `*done_bytes` counts from `offset`.
absl::Status CopyRangeBytes(const MemoryRanges& from, const MemoryRanges& to, uint64_t offset_bytes,
                            uint64_t length_bytes, uint64_t* done_bytes);

}  // namespace railsd

#endif  // RAILSD_AGENT_MEMORY_MEMORY_RANGES_H_
