// A session's segments, shared by all threads that check its submissions.
#ifndef RAILSD_AGENT_SESSIONS_SESSION_MEMORY_H_
#define RAILSD_AGENT_SESSIONS_SESSION_MEMORY_H_

#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "agent/base/ids.h"
#include "agent/memory/segment.h"
#include "agent/sessions/job_memory.h"
#include "agent/sessions/prepared_exchanges.h"

namespace railsd {

// A session's segment. Every holder of a pointer to this uses the segment: a submission while it is checked, a part of
// a job until it is terminal, and a prepared exchange. (Rails may hold the segment itself for a moment longer, with
// zones that are closed already.)
struct HeldSegment {
  std::shared_ptr<const Segment> segment;
};

// Any thread. Segments come and go on the engine's thread only.
class SessionMemory {
 public:
  void Add(SegmentId id, std::shared_ptr<const Segment> segment);
  // Returns the length of the removed segment. NOT_FOUND, or FAILED_PRECONDITION while the segment is in use.
  absl::StatusOr<uint64_t> Remove(SegmentId id);
  // Removes all segments, also those in use. Returns their lengths.
  std::vector<uint64_t> RemoveAll();
  // Null for an unknown one.
  std::shared_ptr<const HeldSegment> Find(SegmentId id) const;
  size_t count() const;
  // The memory that the session's jobs use.
  const std::shared_ptr<ClaimedMemory>& claimed() const { return claimed_; }
  PreparedExchanges& prepared() { return prepared_; }

 private:
  const std::shared_ptr<ClaimedMemory> claimed_ = std::make_shared<ClaimedMemory>();
  mutable std::mutex mutex_;
  absl::flat_hash_map<SegmentId, std::shared_ptr<const HeldSegment>> segments_;  // guarded by mutex_
  PreparedExchanges prepared_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_SESSION_MEMORY_H_
