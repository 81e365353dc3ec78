#include "agent/sessions/job_memory.h"

#include <algorithm>

namespace railsd {
namespace {

bool Before(const Extent& a, const Extent& b) { return a.file < b.file || (a.file == b.file && a.end <= b.begin); }

// The first entry from `from` on that does not lie before `extent`, in steps that double: far entries cost little.
const Extent* SkipTo(const Extent* from, const Extent* end, const Extent& extent) {
  ptrdiff_t step = 1;
  while (step < end - from && Before(from[step], extent)) {
    from += step;
    step *= 2;
  }
  return std::partition_point(from, from + std::min(step + 1, end - from),
                              [&](const Extent& e) { return Before(e, extent); });
}

std::optional<MemoryConflict> FindConflict(const JobMemory& memory, const JobMemory& other) {
  const auto between = [&](bool writes, bool other_writes) -> std::optional<MemoryConflict> {
    const auto overlap = FirstOverlap(writes ? memory.uses->writes : memory.uses->reads,
                                      other_writes ? other.uses->writes : other.uses->reads);
    if (!overlap) return std::nullopt;
    return MemoryConflict{other.job, other.rank, overlap->first, overlap->second, writes, other_writes};
  };
  std::optional<MemoryConflict> conflict = between(true, true);
  if (!conflict) conflict = between(true, false);
  if (!conflict) conflict = between(false, true);
  return conflict;
}

// As the other part, which conflicts with `memory`'s, sees it.
MemoryConflict FromOtherSide(const MemoryConflict& conflict, const JobMemory& memory) {
  return {memory.job, memory.rank, conflict.other, conflict.extent, conflict.other_writes, conflict.writes};
}

}  // namespace

void JoinExtents(std::vector<Extent>* sorted) {
  size_t last = 0;
  for (size_t i = 1; i < sorted->size(); ++i) {
    Extent& joined = (*sorted)[last];
    const Extent& next = (*sorted)[i];
    if (joined.file == next.file && next.begin <= joined.end) {
      joined.end = std::max(joined.end, next.end);
    } else {
      (*sorted)[++last] = next;
    }
  }
  if (!sorted->empty()) sorted->resize(last + 1);
  sorted->shrink_to_fit();
}

std::optional<std::pair<Extent, Extent>> FirstOverlap(absl::Span<const Extent> a, absl::Span<const Extent> b) {
  const Extent *i = a.data(), *const a_end = i + a.size(), *j = b.data(), *const b_end = j + b.size();
  while (i != a_end && j != b_end) {
    if (Before(*i, *j)) {
      i = SkipTo(i, a_end, *j);
    } else if (Before(*j, *i)) {
      j = SkipTo(j, b_end, *i);
    } else {
      return std::pair(*i, *j);
    }
  }
  return std::nullopt;
}

void ClaimedMemory::Add(const std::shared_ptr<ClaimedPart>& part) {
  std::vector<std::shared_ptr<ClaimedPart>> before;
  {
    std::lock_guard lock(mutex_);
    before.reserve(parts_.size());
    for (const auto& [number, other] : parts_) before.push_back(other);
    part->number = ++last_number_;
    parts_.emplace(part->number, part);
  }
  for (const std::shared_ptr<ClaimedPart>& other : before) {
    if (other->memory.job == part->memory.job && other->memory.rank == part->memory.rank) continue;
    const std::optional<MemoryConflict> conflict = FindConflict(part->memory, other->memory);
    if (!conflict) continue;
    std::lock_guard lock(mutex_);
    part->conflicts.emplace_back(other->number, *conflict);
    if (other->accepted) continue;
    if (other->conflicts.size() >= other->tidy_at) {
      std::erase_if(other->conflicts, [this](const auto& noted) { return !parts_.contains(noted.first); });
      other->tidy_at = std::max(other->tidy_at, 2 * other->conflicts.size());
    }
    other->conflicts.emplace_back(part->number, FromOtherSide(*conflict, part->memory));
  }
}

std::optional<MemoryConflict> ClaimedMemory::Accept(ClaimedPart& part) {
  std::lock_guard lock(mutex_);
  for (const auto& [number, conflict] : part.conflicts) {
    const auto other = parts_.find(number);
    if (other != parts_.end() && other->second->accepted) return conflict;
  }
  part.accepted = true;
  part.conflicts.clear();
  return std::nullopt;
}

void ClaimedMemory::Remove(const ClaimedPart& part) {
  std::shared_ptr<const ClaimedPart> removed;  // freed without the lock
  std::lock_guard lock(mutex_);
  const auto it = parts_.find(part.number);
  removed = std::move(it->second);
  parts_.erase(it);
}

MemoryClaim::MemoryClaim(std::shared_ptr<ClaimedMemory> session, JobMemory memory)
    : session_(std::move(session)), part_(std::make_shared<ClaimedPart>(ClaimedPart{.memory = std::move(memory)})) {
  session_->Add(part_);
}

void MemoryClaim::Drop() {
  if (session_ != nullptr) session_->Remove(*part_);
  session_ = nullptr;
}

}  // namespace railsd
