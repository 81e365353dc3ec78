// The memory that a session's jobs under way read and write, so that no two of them use the same bytes.
#ifndef RAILSD_AGENT_SESSIONS_JOB_MEMORY_H_
#define RAILSD_AGENT_SESSIONS_JOB_MEMORY_H_

#include <algorithm>
#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "agent/base/ids.h"
#include "agent/memory/segment.h"

namespace railsd {

// Bytes [begin, end) of a file.
struct Extent {
  FileId file;
  uint64_t begin = 0, end = 0;
  friend auto operator<=>(const Extent&, const Extent&) = default;
};

// Joins entries of a sorted list that overlap or touch.
void JoinExtents(std::vector<Extent>* sorted);

// The first entries of the two lists that overlap each other. Both lists are sorted and joined. Costs about the length
// of the shorter list.
std::optional<std::pair<Extent, Extent>> FirstOverlap(absl::Span<const Extent> a, absl::Span<const Extent> b);

struct UsedMemory;

// Bytes of two lists that overlap, and that at least one of the two writes.
struct MemoryOverlap {
  Extent extent, other;
  bool writes = false, other_writes = false;
};

// Results of comparing long lists of a session, at least one of which belongs to a prepared exchange. The engine's
// thread checks submissions of prepared exchanges and has no time to compare the lists. A result is kept while both
// lists live. Any thread.
class KnownOverlaps {
 public:
  // Compares the two, unless the result is known.
  std::optional<MemoryOverlap> OverlapOf(const UsedMemory& uses, const UsedMemory& other);
  void Forget(const UsedMemory& ended);

 private:
  using Overlaps = absl::flat_hash_map<const UsedMemory*, std::optional<MemoryOverlap>>;
  std::mutex mutex_;
  // By list, then by the list of a prepared exchange. Guarded by mutex_.
  absl::flat_hash_map<const UsedMemory*, Overlaps> known_;
};

// The bytes that one rank's part of a job names. Both lists are sorted and joined. Jobs of a prepared exchange share
// one.
struct UsedMemory {
  const std::vector<Extent> reads, writes;
  const bool prepared;  // of an exchange that is prepared
  const std::shared_ptr<KnownOverlaps> known;

  UsedMemory(std::vector<Extent> reads, std::vector<Extent> writes, bool prepared,
             std::shared_ptr<KnownOverlaps> known);
  ~UsedMemory();
  UsedMemory(const UsedMemory&) = delete;
  UsedMemory& operator=(const UsedMemory&) = delete;
  size_t length() const { return reads.size() + writes.size(); }
  // The engine's thread has no time to compare two lists that are longer than this.
  static constexpr size_t kLong = 1024;  // no request that the engine's thread checks can name more
  bool IsLong() const { return length() > kLong; }
};

// One rank's part of a job.
struct JobMemory {
  JobKey job;
  Rank rank;
  std::shared_ptr<const UsedMemory> uses;
};

// Two parts that must not be under way together.
struct MemoryConflict {
  JobKey job;  // the other part
  Rank rank;
  MemoryOverlap overlap;
};

// A part that was submitted. Guarded by ClaimedMemory, except `memory`.
struct ClaimedPart {
  const JobMemory memory;
  // The most entries that a comparison of another list with this one takes, unless its result is known.
  size_t weight() const { return std::min(memory.uses->length(), UsedMemory::kLong); }
  uint64_t number = 0;  // unique in the session, never reused
  bool accepted = false;
  // While the part is not accepted: its conflicts, by the numbers of other parts, which may have been removed since.
  std::vector<std::pair<uint64_t, MemoryConflict>> conflicts = {};
  size_t tidy_at = 64;  // number of conflicts at which those with removed parts are deleted
};

// The claims of one session. Any thread.
class ClaimedMemory {
 public:
  // Finds the conflicts of `part` with the other parts, and records each with `part` and with the other one if that is
  // not accepted yet.
  void Add(const std::shared_ptr<ClaimedPart>& part);
  std::optional<MemoryConflict> Accept(ClaimedPart& part);
  void Remove(const ClaimedPart& part);
  // True when Add() takes at most some 0.1 ms for a list that is not long, or that belongs to a prepared exchange.
  bool IsQuick() const { return weight_.load(std::memory_order_relaxed) <= 4 * UsedMemory::kLong; }
  // Compares a long list with the lists of the session's prepared exchanges, and the list of a prepared exchange also
  // with the lists of all parts, so that Add() need not compare them. May take long.
  void Learn(const UsedMemory& uses, absl::Span<const std::shared_ptr<const UsedMemory>> prepared);
  const std::shared_ptr<KnownOverlaps>& known() const { return known_; }

 private:
  const std::shared_ptr<KnownOverlaps> known_ = std::make_shared<KnownOverlaps>();
  std::mutex mutex_;
  std::atomic<size_t> weight_{0};  // lengths of the parts' lists, kLong at most of each; written with mutex_
  uint64_t last_number_ = 0;       // guarded by mutex_
  absl::flat_hash_map<uint64_t, std::shared_ptr<ClaimedPart>> parts_;  // guarded by mutex_
};

// Keeps the memory of a part claimed until Drop(), or while it lives.
class MemoryClaim {
 public:
  // Costs about the length of the shorter list for each other part. Another submission of the same part is no conflict,
  // since one of the two is refused.
  MemoryClaim(std::shared_ptr<ClaimedMemory> session, JobMemory memory);
  ~MemoryClaim() { Drop(); }
  MemoryClaim(MemoryClaim&&) noexcept = default;
  MemoryClaim& operator=(MemoryClaim&& other) noexcept {
    Drop();
    session_ = std::move(other.session_);
    part_ = std::move(other.part_);
    return *this;
  }
  // Accepts the part, unless it conflicts with an accepted one, and returns that conflict. Only accepted parts exclude
  // others: a part that was never accepted may be a call that its client has given up. The cost does not depend on
  // the number of ranges.
  std::optional<MemoryConflict> Accept() const { return session_->Accept(*part_); }
  // Cheap: the lists are freed with this object.
  void Drop();

 private:
  std::shared_ptr<ClaimedMemory> session_;  // null once dropped
  std::shared_ptr<ClaimedPart> part_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_JOB_MEMORY_H_
