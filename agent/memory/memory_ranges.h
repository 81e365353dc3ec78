// Bytes of a stream in memory: an ordered list of ranges of segments, addressed by the offset in the stream.
#ifndef RAILSD_AGENT_MEMORY_MEMORY_RANGES_H_
#define RAILSD_AGENT_MEMORY_MEMORY_RANGES_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/memory/segment.h"

namespace railsd {

// One range: bytes [offset, offset + length) of a stream. Lies inside `segment`.
struct MemoryPiece {
  uint64_t offset_bytes;
  std::byte* address;
  uint64_t length_bytes;
  const Segment* segment;
};

// The pieces of many streams in one table, one stream behind the other, so that a thousand streams cost no more
// allocations than one. Immutable once a stream of it is used.
class MemoryTable {
 public:
  // Where a stream is in the table.
  struct Stream {
    size_t first = 0, count = 0;
    uint64_t total_bytes = 0;
  };
  // Makes room for so many more.
  void Reserve(size_t pieces, size_t segments = 0) {
    pieces_.reserve(pieces_.size() + pieces);
    segments_.reserve(segments_.size() + segments);
  }
  // Begins another stream: the appended pieces are its own from now on.
  void Begin() { stream_ = {pieces_.size(), 0, 0}; }
  // Appends [offset, offset + length) of `segment`, which the caller has checked to lie inside it. Zero lengths are
  // dropped; a range that continues the last one of its stream is merged into it.
  void Append(const std::shared_ptr<const Segment>& segment, uint64_t offset_bytes, uint64_t length_bytes);
  // Appends the first `total_bytes` of a stream of another table, whose segments Hold() keeps.
  void Append(absl::Span<const MemoryPiece> pieces, uint64_t total_bytes) {
    for (const MemoryPiece& piece : pieces) {
      if (piece.offset_bytes >= total_bytes) break;
      Add(piece.segment, piece.address, std::min(piece.length_bytes, total_bytes - piece.offset_bytes));
    }
  }
  void Hold(const MemoryTable& other) {
    for (const std::shared_ptr<const Segment>& segment : other.segments_) Hold(segment);
  }
  size_t segments() const { return segments_.size(); }
  // The one that began last, so far.
  const Stream& stream() const { return stream_; }
  absl::Span<const MemoryPiece> Pieces(const Stream& stream) const {
    return {pieces_.data() + stream.first, stream.count};
  }

 private:
  void Add(const Segment* segment, std::byte* address, uint64_t length_bytes) {
    // Two segments may lie side by side in the address space: devices know them by different keys.
    MemoryPiece* const last = stream_.count > 0 ? &pieces_.back() : nullptr;
    if (last != nullptr && last->segment == segment && last->address + last->length_bytes == address) {
      last->length_bytes += length_bytes;
    } else {
      pieces_.push_back({stream_.total_bytes, address, length_bytes, segment});
      ++stream_.count;
    }
    stream_.total_bytes += length_bytes;
  }
  void Hold(const std::shared_ptr<const Segment>& segment);

  std::vector<MemoryPiece> pieces_;
  std::vector<std::shared_ptr<const Segment>> segments_;  // keeps the mappings alive, each once
  Stream stream_;
};

// One stream of a table, which it keeps alive. Any thread may read it.
class MemoryRanges {
 public:
  using Piece = MemoryPiece;
  MemoryRanges() = default;
  MemoryRanges(std::shared_ptr<const MemoryTable> table, const MemoryTable::Stream& stream)
      : pieces_(table->Pieces(stream)), total_bytes_(stream.total_bytes), table_(std::move(table)) {}

  uint64_t total_bytes() const { return total_bytes_; }
  size_t range_count() const { return pieces_.size(); }

  // Fills `out` with the memory of [offset, offset + length) of the stream, as much as fits into `out`.
  // Returns how many entries were filled; `*covered_bytes` says how many bytes they hold. Never allocates.
  size_t FillIovecs(uint64_t offset_bytes, uint64_t length_bytes, absl::Span<iovec> out, uint64_t* covered_bytes) const;

  // In order of their offset.
  absl::Span<const Piece> pieces() const { return pieces_; }
  // The piece that holds byte `offset_bytes`, which is below the total.
  absl::Span<const Piece>::const_iterator PieceAt(uint64_t offset_bytes) const;

 private:
  absl::Span<const Piece> pieces_;
  uint64_t total_bytes_ = 0;
  std::shared_ptr<const MemoryTable> table_;
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
