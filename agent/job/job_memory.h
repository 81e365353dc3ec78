// The memory that a session's jobs under way read and write, so that no two of them use the same bytes.
#ifndef RAILSD_AGENT_JOB_JOB_MEMORY_H_
#define RAILSD_AGENT_JOB_JOB_MEMORY_H_

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

// One rank's part of a job. Both lists are sorted and joined.
struct JobMemory {
  JobKey job;
  Rank rank;
  std::vector<Extent> reads, writes;
};

// Two parts that must not be under way together, since at least one of them writes what the other one uses.
struct MemoryConflict {
  JobKey job;  // the other part
  Rank rank;
  Extent extent, other;
  bool writes = false, other_writes = false;
};

class MemoryClaim;

// The claims of one session. Any thread.
class ClaimedMemory {
 public:
  // The parts that were there before.
  std::vector<std::shared_ptr<const JobMemory>> Add(std::shared_ptr<const JobMemory> memory);
  void Remove(const JobMemory* memory);

 private:
  std::mutex mutex_;
  absl::flat_hash_map<const JobMemory*, std::shared_ptr<const JobMemory>> parts_;  // guarded by mutex_
};

// Keeps the memory of a part claimed until Drop(), or while it lives.
class MemoryClaim {
 public:
  // Claims `memory`, then looks for a conflict with what was claimed before: of two threads at most one finds none.
  // An earlier submission of the same part is no conflict, since one of the two is refused.
  MemoryClaim(std::shared_ptr<ClaimedMemory> session, JobMemory memory);
  ~MemoryClaim() { Drop(); }
  MemoryClaim(const MemoryClaim&) = delete;
  MemoryClaim& operator=(const MemoryClaim&) = delete;
  const std::optional<MemoryConflict>& conflict() const { return conflict_; }
  // Takes no time: the lists are freed with this object.
  void Drop();

 private:
  std::shared_ptr<ClaimedMemory> session_;  // null once dropped
  const std::shared_ptr<const JobMemory> memory_;
  std::optional<MemoryConflict> conflict_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_JOB_MEMORY_H_
