#include "agent/sessions/job_memory.h"

#include <algorithm>
#include <atomic>

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

// More are forgotten, and compared again when they are needed.
constexpr size_t kMaxKnown = 4096;

}  // namespace

UsedMemory::UsedMemory(std::vector<Extent> its_reads, std::vector<Extent> its_writes)
    : reads(std::move(its_reads)), writes(std::move(its_writes)), number([] {
        static std::atomic<uint64_t> last{0};
        return last.fetch_add(1, std::memory_order_relaxed) + 1;
      }()) {}

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

std::optional<MemoryOverlap> ClaimedMemory::OverlapOf(const UsedMemory& uses, const UsedMemory& other) {
  // Comparing takes as long as the shorter one is, and equal ones differ nowhere.
  if (!uses.IsLong() || !other.IsLong() || uses.number == other.number) return FindOverlap(uses, other);
  const bool first = uses.number < other.number;
  const std::pair key(std::min(uses.number, other.number), std::max(uses.number, other.number));
  std::optional<MemoryOverlap> found;
  bool is_known = false;
  {
    std::lock_guard lock(mutex_);
    const auto it = known_.find(key);
    is_known = it != known_.end();
    if (is_known) found = it->second;
  }
  if (!is_known) {
    found = first ? FindOverlap(uses, other) : FindOverlap(other, uses);
    std::lock_guard lock(mutex_);
    if (known_.size() >= kMaxKnown) known_.clear();
    known_[key] = found;
  }
  return found && !first ? FromOtherSide(*found) : found;
}

void ClaimedMemory::Learn(const UsedMemory& uses, absl::Span<const std::shared_ptr<const UsedMemory>> others) {
  if (!uses.IsLong()) return;
  std::vector<std::shared_ptr<const UsedMemory>> all(others.begin(), others.end());
  {
    std::lock_guard lock(mutex_);
    for (const auto& [number, part] : parts_) all.push_back(part->memory.uses);
  }
  for (const std::shared_ptr<const UsedMemory>& other : all) OverlapOf(uses, *other);
}

void ClaimedMemory::Add(const std::shared_ptr<ClaimedPart>& part) {
  absl::InlinedVector<std::shared_ptr<ClaimedPart>, 8> before;
  {
    std::lock_guard lock(mutex_);
    before.reserve(parts_.size());
    for (const auto& [number, other] : parts_) before.push_back(other);
    part->number = ++last_number_;
    parts_.emplace(part->number, part);
  }
  for (const std::shared_ptr<ClaimedPart>& other : before) {
    if (other->memory.job == part->memory.job && other->memory.rank == part->memory.rank) continue;
    const std::optional<MemoryOverlap> overlap = OverlapOf(*part->memory.uses, *other->memory.uses);
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
  parts_.erase(it);
  const UsedMemory& uses = *part.memory.uses;
  if (!uses.IsLong() || part.memory.uses.use_count() > 1) return;  // others may compare it again
  absl::erase_if(
      known_, [&](const auto& entry) { return entry.first.first == uses.number || entry.first.second == uses.number; });
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
