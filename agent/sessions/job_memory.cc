#include "agent/sessions/job_memory.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"

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

std::optional<MemoryOverlap> FindOverlap(const UsedMemory& uses, const UsedMemory& other) {
  const auto between = [&](bool writes, bool other_writes) -> std::optional<MemoryOverlap> {
    const auto overlap = FirstOverlap(writes ? uses.writes : uses.reads, other_writes ? other.writes : other.reads);
    if (!overlap) return std::nullopt;
    return MemoryOverlap{overlap->first, overlap->second, writes, other_writes};
  };
  std::optional<MemoryOverlap> overlap = between(true, true);
  if (!overlap) overlap = between(true, false);
  if (!overlap) overlap = between(false, true);
  return overlap;
}

MemoryOverlap FromOtherSide(const MemoryOverlap& overlap) {
  return {overlap.other, overlap.extent, overlap.other_writes, overlap.writes};
}

}  // namespace

UsedMemory::UsedMemory(std::vector<Extent> its_reads, std::vector<Extent> its_writes, bool is_prepared,
                       std::shared_ptr<KnownOverlaps> of_session)
    : reads(std::move(its_reads)), writes(std::move(its_writes)), prepared(is_prepared), known(std::move(of_session)) {}

UsedMemory::~UsedMemory() {
  if (IsLong()) known->Forget(*this);
}

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

std::optional<MemoryOverlap> KnownOverlaps::OverlapOf(const UsedMemory& uses, const UsedMemory& other) {
  // Keeps only costly results. The cost is that of the shorter list, and a list overlaps with itself at its first
  // entry.
  const bool keeps = uses.IsLong() && other.IsLong() && &uses != &other && (uses.prepared || other.prepared);
  if (!keeps) return FindOverlap(uses, other);
  const bool by_other = uses.prepared && (!other.prepared || &uses < &other);
  const UsedMemory &list = by_other ? other : uses, &with = by_other ? uses : other;
  const auto seen_by_uses = [by_other](const std::optional<MemoryOverlap>& found) {
    return found && by_other ? FromOtherSide(*found) : found;
  };
  {
    std::lock_guard lock(mutex_);
    if (const auto of_list = known_.find(&list); of_list != known_.end()) {
      const auto found = of_list->second.find(&with);
      if (found != of_list->second.end()) return seen_by_uses(found->second);
    }
  }
  const std::optional<MemoryOverlap> found = FindOverlap(list, with);
  std::lock_guard lock(mutex_);
  known_[&list][&with] = found;
  return seen_by_uses(found);
}

void KnownOverlaps::Forget(const UsedMemory& ended) {
  std::lock_guard lock(mutex_);
  known_.erase(&ended);
  if (!ended.prepared) return;
  absl::erase_if(known_, [&](auto& entry) { return entry.second.erase(&ended) > 0 && entry.second.empty(); });
}

void ClaimedMemory::Learn(const UsedMemory& uses, absl::Span<const std::shared_ptr<const UsedMemory>> prepared) {
  if (!uses.IsLong()) return;
  std::vector<std::shared_ptr<const UsedMemory>> all(prepared.begin(), prepared.end());
  if (uses.prepared) {
    std::lock_guard lock(mutex_);
    for (const auto& [number, part] : parts_) all.push_back(part->memory.uses);
  }
  for (const std::shared_ptr<const UsedMemory>& other : all) {
    if (other->IsLong()) known_->OverlapOf(uses, *other);
  }
}

void ClaimedMemory::Add(const std::shared_ptr<ClaimedPart>& part) {
  absl::InlinedVector<std::shared_ptr<ClaimedPart>, 8> before;
  {
    std::lock_guard lock(mutex_);
    before.reserve(parts_.size());
    for (const auto& [number, other] : parts_) before.push_back(other);
    part->number = ++last_number_;
    parts_.emplace(part->number, part);
    weight_ += part->weight();
  }
  for (const std::shared_ptr<ClaimedPart>& other : before) {
    if (other->memory.job == part->memory.job && other->memory.rank == part->memory.rank) continue;
    const std::optional<MemoryOverlap> overlap = known_->OverlapOf(*part->memory.uses, *other->memory.uses);
    if (!overlap) continue;
    std::lock_guard lock(mutex_);
    part->conflicts.emplace_back(other->number, MemoryConflict{other->memory.job, other->memory.rank, *overlap});
    if (other->accepted) continue;
    if (other->conflicts.size() >= other->tidy_at) {
      std::erase_if(other->conflicts, [this](const auto& noted) { return !parts_.contains(noted.first); });
      other->tidy_at = std::max(other->tidy_at, 2 * other->conflicts.size());
    }
    other->conflicts.emplace_back(part->number,
                                  MemoryConflict{part->memory.job, part->memory.rank, FromOtherSide(*overlap)});
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
  weight_ -= removed->weight();
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
