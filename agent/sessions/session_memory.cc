#include "agent/sessions/session_memory.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {

void SessionMemory::Add(SegmentId id, std::shared_ptr<const Segment> segment) {
  auto held = std::make_shared<HeldSegment>(HeldSegment{std::move(segment)});
  std::lock_guard lock(mutex_);
  segments_.emplace(id, std::move(held));
}

absl::StatusOr<uint64_t> SessionMemory::Remove(SegmentId id) {
  std::shared_ptr<const HeldSegment> removed;  // unmapped without the lock
  std::lock_guard lock(mutex_);
  const auto it = segments_.find(id);
  if (it == segments_.end()) {
    return absl::NotFoundError(absl::StrCat("segment_id: ", id.value(), " is not a segment of this session"));
  }
  if (it->second.use_count() > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("segment_id: ", id.value(), " is used by a job, or by a prepared exchange"));
  }
  removed = std::move(it->second);
  segments_.erase(it);
  return removed->segment->length_bytes();
}

std::vector<uint64_t> SessionMemory::RemoveAll() {
  decltype(segments_) removed;  // unmapped without the lock
  {
    std::lock_guard lock(mutex_);
    removed.swap(segments_);
  }
  std::vector<uint64_t> lengths;
  for (const auto& [id, held] : removed) lengths.push_back(held->segment->length_bytes());
  return lengths;
}

std::shared_ptr<const HeldSegment> SessionMemory::Find(SegmentId id) const {
  std::lock_guard lock(mutex_);
  const auto it = segments_.find(id);
  return it == segments_.end() ? nullptr : it->second;
}

size_t SessionMemory::count() const {
  std::lock_guard lock(mutex_);
  return segments_.size();
}

}  // namespace railsd
