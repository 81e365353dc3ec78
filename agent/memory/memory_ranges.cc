#include "agent/memory/memory_ranges.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/memory/guarded_copy.h"

namespace railsd {

void MemoryTable::Reserve(size_t pieces, size_t segments) {
  segments_.reserve(segments_.size() + segments);
  if (count_ + pieces <= room_) return;
  room_ = count_ + pieces;
  auto more = std::make_unique_for_overwrite<MemoryPiece[]>(room_);
  std::copy_n(pieces_.get(), count_, more.get());
  pieces_ = std::move(more);
}

void MemoryTable::Hold(const std::shared_ptr<const Segment>& segment) {
  // Searches from the back: the segment is nearly always that of the range before.
  if (std::find(segments_.rbegin(), segments_.rend(), segment) != segments_.rend()) return;
  segments_.push_back(segment);
  has_device_memory_ = has_device_memory_ || segment->kind() == MemoryKind::kDmaBuf;
}

absl::Span<const MemoryRanges::Piece>::const_iterator MemoryRanges::PieceAt(uint64_t offset_bytes) const {
  const absl::Span<const Piece> all = pieces();
  return std::upper_bound(all.begin(), all.end(), offset_bytes,
                          [](uint64_t offset, const Piece& p) { return offset < p.offset_bytes; }) -
         1;
}

size_t MemoryRanges::FillIovecs(uint64_t offset_bytes, uint64_t length_bytes, absl::Span<iovec> out,
                                uint64_t* covered_bytes) const {
  *covered_bytes = 0;
  if (offset_bytes >= total_bytes_ || out.empty()) return 0;
  uint64_t left = std::min(length_bytes, total_bytes_ - offset_bytes);
  auto piece = PieceAt(offset_bytes);
  uint64_t skip = offset_bytes - piece->offset_bytes;
  size_t filled = 0;
  for (; left > 0 && filled < out.size(); ++piece, ++filled, skip = 0) {
    const uint64_t take = std::min(left, piece->length_bytes - skip);
    out[filled] = {piece->address + skip, take};
    *covered_bytes += take;
    left -= take;
  }
  return filled;
}

absl::Status CopyRangeBytes(const MemoryRanges& from, const MemoryRanges& to, uint64_t offset_bytes,
                            uint64_t length_bytes, uint64_t* done_bytes) {
  constexpr size_t kRangesPerCall = 128;
  std::array<iovec, kRangesPerCall> source;
  std::array<iovec, kRangesPerCall> destination;
  while (*done_bytes < length_bytes) {
    const uint64_t at = offset_bytes + *done_bytes;
    uint64_t readable = 0;
    uint64_t writable = 0;
    const size_t sources = from.FillIovecs(at, length_bytes - *done_bytes, absl::MakeSpan(source), &readable);
    const size_t destinations = to.FillIovecs(at, readable, absl::MakeSpan(destination), &writable);
    const uint64_t moved =
        GuardedCopy(absl::MakeSpan(source.data(), sources), absl::MakeSpan(destination.data(), destinations));
    *done_bytes += moved;
    if (moved > 0 && moved == writable) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("local copy at byte ", at + moved, " of ", from.total_bytes(),
                     ": a page of the segment cannot be touched (was its memfd truncated?)"));
  }
  return absl::OkStatus();
}

}  // namespace railsd
