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
  class Writer;

  // Makes room for so many more pieces and segments.
  void Reserve(size_t pieces, size_t segments = 0);
  // Keeps the mapping alive as long as the table.
  void Hold(const std::shared_ptr<const Segment>& segment);
  void Hold(const MemoryTable& other) {
    for (const std::shared_ptr<const Segment>& segment : other.segments_) Hold(segment);
  }
  size_t segments() const { return segments_.size(); }
  // A segment is memory of a device, whose bytes only RDMA devices can reach.
  bool has_device_memory() const { return has_device_memory_; }
  // The pieces of all streams; Stream::first is an index into them.
  const MemoryPiece* Pieces() const { return pieces_.get(); }
  absl::Span<const MemoryPiece> Pieces(const Stream& stream) const { return {Pieces() + stream.first, stream.count}; }

 private:
  std::unique_ptr<MemoryPiece[]> pieces_;  // the first `count_`, and room for more
  size_t count_ = 0, room_ = 0;
  std::vector<std::shared_ptr<const Segment>> segments_;  // each once
  bool has_device_memory_ = false;
};

// Appends streams to a table, one after the other. The table has room for all pieces and holds their segments, and only
// this writer uses it meanwhile.
class MemoryTable::Writer {
 public:
  explicit Writer(MemoryTable* table) : table_(*table), out_(table->pieces_.get() + table->count_), first_(out_) {}

  // Bytes of the stream so far.
  uint64_t total_bytes() const { return total_bytes_; }
  // Appends a range. Zero lengths are dropped; a range that continues the last one of its stream is merged into it.
  void Append(const Segment* segment, std::byte* address, uint64_t length_bytes) {
    if (length_bytes > 0) Add(segment, address, length_bytes);
  }
  // Appends the first `bytes` of a stream that begins with `piece`.
  void Append(const MemoryPiece* piece, uint64_t bytes) {
    for (; bytes > 0; ++piece) {
      const uint64_t length = std::min(piece->length_bytes, bytes);
      Add(piece->segment, piece->address, length);
      bytes -= length;
    }
  }
  // Ends the stream. The next Append() begins another one.
  Stream End() {
    const Stream stream{table_.count_, static_cast<size_t>(out_ - first_), total_bytes_};
    table_.count_ += stream.count;
    first_ = out_;
    total_bytes_ = 0;
    next_ = nullptr;
    return stream;
  }

 private:
  void Add(const Segment* segment, std::byte* address, uint64_t length_bytes) {
    // Pieces of two segments are never merged, even if they are adjacent in memory: devices know the segments by
    // different keys.
    if (address == next_ && out_[-1].segment == segment) {
      out_[-1].length_bytes += length_bytes;
    } else {
      *out_++ = {total_bytes_, address, length_bytes, segment};
    }
    next_ = address + length_bytes;
    total_bytes_ += length_bytes;
  }

  MemoryTable& table_;
  MemoryPiece* out_;          // where the next piece goes
  const MemoryPiece* first_;  // of the stream
  uint64_t total_bytes_ = 0;
  const std::byte* next_ = nullptr;  // the address behind the stream's last piece; null: it has none
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
  // False: every byte is memory of the host. True if any stream of the table is in memory of a device.
  bool may_be_device_memory() const { return table_ != nullptr && table_->has_device_memory(); }

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

// Copies bytes [offset, offset + length) of `from`, which lie inside both, to the same place of `to`. Pages may be
// missing. `*done_bytes` counts progress from `offset`. FAILED_PRECONDITION: a page of either side cannot be touched.
absl::Status CopyRangeBytes(const MemoryRanges& from, const MemoryRanges& to, uint64_t offset_bytes,
                            uint64_t length_bytes, uint64_t* done_bytes);

}  // namespace railsd

#endif  // RAILSD_AGENT_MEMORY_MEMORY_RANGES_H_
