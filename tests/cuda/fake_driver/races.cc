#include "races.h"

#include <algorithm>
#include <utility>

namespace fake_cuda {

void Clock::Set(size_t component, uint64_t step) {
  if (component >= steps_.size()) steps_.resize(component + 1);
  steps_[component] = step;
}

void Clock::Join(const Clock& other) {
  if (steps_.size() < other.steps_.size()) steps_.resize(other.steps_.size());
  for (size_t i = 0; i < other.steps_.size(); ++i) steps_[i] = std::max(steps_[i], other.steps_[i]);
}

std::optional<Conflict> History::Compare(Segments::const_iterator segment, bool write, const Clock& clock) {
  const auto& [begin, accesses] = *segment;
  const auto unordered = [&](const Access& access) { return clock[access.component] < access.step; };
  if (unordered(accesses.write)) return Conflict{begin, accesses.end, true, *accesses.write.text};
  if (write) {
    for (const Access& read : accesses.reads) {
      if (unordered(read)) return Conflict{begin, accesses.end, false, *read.text};
    }
  }
  return std::nullopt;
}

void History::Split(uint64_t at) {
  auto next = segments_.upper_bound(at);
  if (next == segments_.begin()) return;
  auto segment = std::prev(next);
  if (segment->first == at || segment->second.end <= at) return;
  Segment rest = segment->second;
  segment->second.end = at;
  segments_.emplace_hint(next, at, std::move(rest));
}

std::optional<Conflict> History::Add(uint64_t begin, uint64_t end, bool write, const Access& access,
                                     const Clock& clock) {
  if (begin >= end) return std::nullopt;
  Split(begin);
  Split(end);
  std::optional<Conflict> first;
  auto segment = segments_.lower_bound(begin);
  for (auto i = segment; i != segments_.end() && i->first < end && !first; ++i) first = Compare(i, write, clock);
  if (write) {
    segments_.erase(segment, segments_.lower_bound(end));
    segments_.emplace(begin, Segment{end, access, {}});
    return first;
  }
  for (uint64_t at = begin; at < end;) {
    if (segment == segments_.end() || segment->first > at) {
      const uint64_t gap_end = segment == segments_.end() ? end : std::min(end, segment->first);
      segments_.emplace_hint(segment, at, Segment{gap_end, {}, {access}});
      at = gap_end;
      continue;
    }
    auto& reads = segment->second.reads;
    auto same =
        std::find_if(reads.begin(), reads.end(), [&](const Access& r) { return r.component == access.component; });
    if (same == reads.end()) {
      reads.push_back(access);
    } else {
      *same = access;
    }
    at = segment->second.end;
    ++segment;
  }
  return first;
}

std::optional<Conflict> History::Find(uint64_t begin, uint64_t end, bool write, const Clock& clock) const {
  auto segment = segments_.upper_bound(begin);
  if (segment != segments_.begin()) --segment;
  for (; segment != segments_.end() && segment->first < end; ++segment) {
    if (segment->second.end <= begin) continue;
    if (auto conflict = Compare(segment, write, clock)) return conflict;
  }
  return std::nullopt;
}

void History::Erase(uint64_t begin, uint64_t end) {
  Split(begin);
  Split(end);
  segments_.erase(segments_.lower_bound(begin), segments_.lower_bound(end));
}

}  // namespace fake_cuda
