// The memory that a session's jobs under way read and write, so that no two of them use the same bytes.
#ifndef RAILSD_AGENT_SESSIONS_JOB_MEMORY_H_
#define RAILSD_AGENT_SESSIONS_JOB_MEMORY_H_

#include <compare>
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

// The bytes that one rank's part of a job names. Both lists are sorted and joined.
struct UsedMemory {
  std::vector<Extent> reads, writes;
};

// One rank's part of a job.
struct JobMemory {
  JobKey job;
  Rank rank;
  std::shared_ptr<const UsedMemory> uses;
};

// Two parts that must not be under way together, since at least one of them writes what the other one uses.
struct MemoryConflict {
  JobKey job;  // the other part
  Rank rank;
  Extent extent, other;
  bool writes = false, other_writes = false;
};

// A part that was submitted. Guarded by ClaimedMemory, but for `memory`.
struct ClaimedPart {
  const JobMemory memory;
  uint64_t number = 0;  // no other part of the session has had it
  bool accepted = false;
  // Of one that is not accepted yet: the numbers of others, which may be gone by now.
  std::vector<std::pair<uint64_t, MemoryConflict>> conflicts = {};
  size_t tidy_at = 64;  // so many conflicts: those that are gone are taken out
};

// The claims of one session. Any thread.
class ClaimedMemory {
 public:
  // Finds the conflicts of `part` with those that are there, and notes each for whichever is accepted later.
  void Add(const std::shared_ptr<ClaimedPart>& part);
  std::optional<MemoryConflict> Accept(ClaimedPart& part);
  void Remove(const ClaimedPart& part);

 private:
  std::mutex mutex_;
  uint64_t last_number_ = 0;                                           // guarded by mutex_
  absl::flat_hash_map<uint64_t, std::shared_ptr<ClaimedPart>> parts_;  // guarded by mutex_
};

// Keeps the memory of a part claimed until Drop(), or while it lives.
class MemoryClaim {
 public:
  // Costs about the length of the shorter list for each other part. Another submission of the same part is no conflict,
  // since one of the two is refused.
  MemoryClaim(std::shared_ptr<ClaimedMemory> session, JobMemory memory);
  ~MemoryClaim() { Drop(); }
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;
  // From here on the part is in the way of others, unless an accepted one is in its way. What was never accepted is in
  // nobody's way: it may be an attempt that its client has given up. Does not depend on the number of ranges.
  std::optional<MemoryConflict> Accept() { return session_->Accept(*part_); }
  // Takes no time: the lists are freed with this object.
  void Drop();

 private:
  std::shared_ptr<ClaimedMemory> session_;  // null once dropped
  const std::shared_ptr<ClaimedPart> part_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_JOB_MEMORY_H_
