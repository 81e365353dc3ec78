#include "client/railsctl/replay/layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rails::ctl {
namespace {

constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 46;
constexpr uint32_t kMaxRangesPerFlow = 1'000'000;

absl::Status CheckSide(absl::Span<const uint64_t> bytes, const char* what) {
  uint64_t total = 0;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    if (bytes[rank] > kMaxSegmentBytes - total) {
      return absl::InvalidArgumentError(absl::StrCat("a rank ", what, " more than 2^46 bytes in one exchange (",
                                                     bytes[rank], " with rank ", rank,
                                                     " alone); scale down with --bytes-per-rank"));
    }
    total += bytes[rank];
  }
  return absl::OkStatus();
}

// Cuts a flow into ranges of nearly equal length, at most one a byte.
std::vector<PlacedRange> Cut(uint64_t bytes, uint32_t ranges_per_flow) {
  const uint64_t count = std::min<uint64_t>(ranges_per_flow, bytes);
  std::vector<PlacedRange> ranges;
  ranges.reserve(count);
  uint64_t offset = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t length = bytes / count + (i < bytes % count ? 1 : 0);
    ranges.push_back({offset, 0, length});
    offset += length;
  }
  return ranges;
}

}  // namespace

absl::StatusOr<RankLayout> LayOut(absl::Span<const uint64_t> row, absl::Span<const uint64_t> column,
                                  uint32_t ranges_per_flow) {
  if (row.size() != column.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a row of ", row.size(), " ranks and a column of ", column.size(), " do not fit"));
  }
  if (ranges_per_flow == 0 || ranges_per_flow > kMaxRangesPerFlow) {
    return absl::InvalidArgumentError(
        absl::StrCat("ranges per flow must be from 1 to ", kMaxRangesPerFlow, ", not ", ranges_per_flow));
  }
  if (absl::Status status = CheckSide(row, "sends"); !status.ok()) return status;
  if (absl::Status status = CheckSide(column, "receives"); !status.ok()) return status;

  RankLayout layout;
  layout.receive_bytes = kGuardBytes;
  for (uint32_t peer = 0; peer < row.size(); ++peer) {
    if (row[peer] > 0) {
      PlacedFlow flow{peer, Cut(row[peer], ranges_per_flow)};
      for (PlacedRange& range : flow.ranges) range.segment_offset = layout.send_bytes + range.flow_offset;
      layout.send_bytes += row[peer];
      layout.sends.push_back(std::move(flow));
    }
    if (column[peer] > 0) {
      PlacedFlow flow{peer, Cut(column[peer], ranges_per_flow)};
      for (auto range = flow.ranges.rbegin(); range != flow.ranges.rend(); ++range) {
        range->segment_offset = layout.receive_bytes;
        layout.receive_bytes += range->length + kGuardBytes;
      }
      layout.receives.push_back(std::move(flow));
    }
  }
  return layout;
}

}  // namespace rails::ctl
