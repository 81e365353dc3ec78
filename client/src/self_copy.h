// Checks and copies the bytes that a rank sends to itself. The daemon never sees them.
#ifndef RAILS_CLIENT_SRC_SELF_COPY_H_
#define RAILS_CLIENT_SRC_SELF_COPY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/src/segment.h"
#include "rails/client.h"

namespace rails::internal {

// Bytes [begin, end) of a file, independent of the mapping.
struct Place {
  FileId file;
  uint64_t begin = 0, end = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

// Not thread-safe. The caller keeps the segments alive.
class SelfCopy {
 public:
  // `range` is inside its segment and not empty.
  void AddSource(const SegmentCore& segment, const Range& range) { sources_.push_back(Make(segment, range)); }
  void AddDestination(const SegmentCore& segment, const Range& range) { destinations_.push_back(Make(segment, range)); }

  // INVALID_ARGUMENT names both ranges: the totals do not fit, a destination overlaps another receive range or a range
  // sent to another rank, or a source overlaps a range received from another rank. Sources may overlap send ranges and
  // the destinations. The caller has checked each range of `exchange`. `prepares`: for jobs that move less, so the
  // totals may differ.
  absl::Status Check(const AllToAllv& exchange, uint32_t rank, bool prepares);
  uint64_t source_bytes() const { return TotalBytes(sources_); }
  // Copies as if all sources were read before any destination is written: the first bytes of both. Check() was called.
  void Run(uint64_t bytes) const;

 private:
  struct Piece {
    absl::Span<std::byte> bytes;
    Place place;
    uint32_t segment = 0;
  };
  static Piece Make(const SegmentCore& segment, const Range& range);
  static uint64_t TotalBytes(const std::vector<Piece>& pieces);
  static std::vector<Place> SortedPlaces(const std::vector<Piece>& pieces);
  static absl::Status Refuse(const char* field, size_t flow, size_t index, const Range& range, const Place& place,
                             const std::vector<Piece>& own, uint32_t rank, const char* what);

  std::vector<Piece> sources_, destinations_;
  bool staged_ = false;  // through a buffer, because sources and destinations overlap
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_SELF_COPY_H_
