#include "agent/jobs/explanation.h"

#include <algorithm>

namespace railsd {

void JobRecorder::Reset(size_t rails) {
  if (last_received_.size() != rails) rails_ = std::make_unique<RailRecords[]>(rails);
  last_received_.assign(rails, absl::InfinitePast());
  for (size_t r = 0; r < rails; ++r) rails_[r].Reset(JobTimeline::kMaxChunks / rails);
}

JobTimeline JobRecorder::Timeline(absl::Time now, absl::FunctionRef<Rank(PeerIndex, uint64_t)> source_of) const {
  JobTimeline out;
  for (size_t r = 0; r < last_received_.size(); ++r) {
    out.rails_.push_back({rails_[r].TotalsAt(now), last_received_[r]});
    out.left_out_ += rails_[r].left_out();
    rails_[r].ForEachChunk([&](const RailRecords::Chunk& chunk) {
      out.chunks_.push_back({RailIndex(static_cast<uint32_t>(r)), chunk.peer, source_of(chunk.peer, chunk.offset_bytes),
                             chunk.returned, chunk.length_bytes, chunk.posted, chunk.ended});
    });
  }
  const auto before = [](const JobTimeline::Chunk& a, const JobTimeline::Chunk& b) { return a.posted < b.posted; };
  std::stable_sort(out.chunks_.begin(), out.chunks_.end(), before);
  return out;
}

}  // namespace railsd
