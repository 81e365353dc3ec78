#include "client/src/self_copy.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace rails::internal {
namespace {

bool Overlap(const Place& a, const Place& b) { return a.file == b.file && a.begin < b.end && b.begin < a.end; }

// Does an entry of `sorted` overlap `place`? The entries do not overlap each other.
bool OverlapsAny(const std::vector<Place>& sorted, const Place& place) {
  const auto after = std::upper_bound(sorted.begin(), sorted.end(), place);
  return (after != sorted.end() && Overlap(*after, place)) || (after != sorted.begin() && Overlap(*(after - 1), place));
}

// Joins entries of a sorted list that overlap.
void JoinOverlapping(std::vector<Place>* sorted) {
  size_t last = 0;
  for (size_t i = 1; i < sorted->size(); ++i) {
    Place& joined = (*sorted)[last];
    if (Overlap(joined, (*sorted)[i])) {
      joined.end = std::max(joined.end, (*sorted)[i].end);
    } else {
      (*sorted)[++last] = (*sorted)[i];
    }
  }
  if (!sorted->empty()) sorted->resize(last + 1);
}

std::string Text(const Place& place) { return absl::StrCat("[", place.begin, ", ", place.end, ")"); }

// `range` lies in a segment of this library; the caller has checked that.
Place PlaceOf(const Range& range) {
  const SharedMemory& memory = static_cast<const SegmentHandle&>(*range.segment).core()->memory();
  return {memory.file(), range.offset_bytes, range.offset_bytes + range.length_bytes};
}

// Calls `check(flow, index, range, place)` for each range of another rank until it fails.
template <typename Check>
absl::Status ForEachOther(const std::vector<FlowRanges>& flows, uint32_t rank, const Check& check) {
  for (size_t i = 0; i < flows.size(); ++i) {
    if (flows[i].rank == rank) continue;
    for (size_t j = 0; j < flows[i].ranges.size(); ++j) {
      const Range& range = flows[i].ranges[j];
      if (range.length_bytes == 0) continue;
      if (absl::Status status = check(i, j, range, PlaceOf(range)); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

SelfCopy::Piece SelfCopy::Make(const SegmentCore& segment, const Range& range) {
  return {segment.memory().bytes().subspan(range.offset_bytes, range.length_bytes), PlaceOf(range), segment.id()};
}

uint64_t SelfCopy::TotalBytes(const std::vector<Piece>& pieces) {
  uint64_t total_bytes = 0;
  for (const Piece& piece : pieces) total_bytes += piece.bytes.size();
  return total_bytes;
}

std::vector<Place> SelfCopy::SortedPlaces(const std::vector<Piece>& pieces) {
  std::vector<Place> places;
  places.reserve(pieces.size());
  for (const Piece& piece : pieces) places.push_back(piece.place);
  if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
  return places;
}

absl::Status SelfCopy::Refuse(const char* field, size_t flow, size_t index, const Range& range, const Place& place,
                              const std::vector<Piece>& own, uint32_t rank, const char* what) {
  const auto hit =
      std::find_if(own.begin(), own.end(), [&](const Piece& piece) { return Overlap(piece.place, place); });
  return absl::InvalidArgumentError(absl::StrCat(
      field, "[", flow, "].ranges[", index, "]: offset_bytes ", range.offset_bytes, ", length_bytes ",
      range.length_bytes, " of segment ", range.segment->id(), " overlaps ", Text(hit->place), " of segment ",
      hit->segment, hit->segment == range.segment->id() ? "" : ", which is the same memory", ", which rank ", rank, " ",
      what, " itself"));
}

absl::Status SelfCopy::Check(const AllToAllv& exchange, uint32_t rank, bool prepares) {
  const uint64_t sent = source_bytes(), room = TotalBytes(destinations_);
  if (!prepares && (exchange.capacities ? sent > room : sent != room)) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " sends ", sent, " bytes to itself but ",
                                                   exchange.capacities ? "has room for " : "receives ", room,
                                                   " from itself"));
  }
  if (destinations_.empty()) return absl::OkStatus();
  const std::vector<Place> to = SortedPlaces(destinations_);
  for (size_t i = 1; i < to.size(); ++i) {
    if (Overlap(to[i - 1], to[i])) {
      return absl::InvalidArgumentError(absl::StrCat("receives: the ranges ", Text(to[i - 1]), " and ", Text(to[i]),
                                                     " of rank ", rank, " from itself overlap"));
    }
  }
  const bool overlap =
      std::any_of(sources_.begin(), sources_.end(), [&to](const Piece& piece) { return OverlapsAny(to, piece.place); });
  // One pair of ranges in one mapping needs no staging: memmove() handles the overlap.
  staged_ =
      overlap && (sources_.size() > 1 || destinations_.size() > 1 || sources_[0].segment != destinations_[0].segment);
  std::vector<Place> from = SortedPlaces(sources_);
  JoinOverlapping(&from);
  absl::Status status = ForEachOther(exchange.receives, rank, [&](size_t i, size_t j, const Range& range, Place place) {
    if (OverlapsAny(to, place)) return Refuse("receives", i, j, range, place, destinations_, rank, "receives from");
    if (OverlapsAny(from, place)) return Refuse("receives", i, j, range, place, sources_, rank, "sends to");
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return ForEachOther(exchange.sends, rank, [&](size_t i, size_t j, const Range& range, Place place) {
    if (OverlapsAny(to, place)) return Refuse("sends", i, j, range, place, destinations_, rank, "receives from");
    return absl::OkStatus();
  });
}

void SelfCopy::Run(uint64_t bytes) const {
  if (staged_) {
    std::vector<std::byte> staged;
    staged.reserve(bytes);
    for (const Piece& piece : sources_) {
      const size_t length = std::min<uint64_t>(piece.bytes.size(), bytes - staged.size());
      staged.insert(staged.end(), piece.bytes.begin(), piece.bytes.begin() + static_cast<ptrdiff_t>(length));
    }
    const std::byte* next = staged.data();
    uint64_t left = staged.size();
    for (const Piece& piece : destinations_) {
      const size_t length = std::min<uint64_t>(piece.bytes.size(), left);
      if (length > 0) std::memcpy(piece.bytes.data(), next, length);
      next += length;
      left -= length;
    }
    return;
  }
  // Walks both lists in step.
  size_t i = 0, j = 0, i_done = 0, j_done = 0;
  while (bytes > 0 && i < sources_.size() && j < destinations_.size()) {
    const absl::Span<std::byte> source = sources_[i].bytes, destination = destinations_[j].bytes;
    const size_t length = std::min<uint64_t>({source.size() - i_done, destination.size() - j_done, bytes});
    std::memmove(destination.data() + j_done, source.data() + i_done, length);
    bytes -= length;
    i_done += length;
    j_done += length;
    if (i_done == source.size()) i_done = 0, ++i;
    if (j_done == destination.size()) j_done = 0, ++j;
  }
}

}  // namespace rails::internal
