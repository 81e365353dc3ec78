// Sessions and their segments, with limits and quotas.
#ifndef RAILSD_AGENT_SESSIONS_SESSIONS_H_
#define RAILSD_AGENT_SESSIONS_SESSIONS_H_

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "agent/base/ids.h"
#include "agent/memory/segment.h"
#include "agent/sessions/session_memory.h"
#include "agent/sessions/tenants.h"

namespace railsd {

struct Session {
  SessionId id;
  SessionInfo info;
  Tenant* tenant = nullptr;
  std::shared_ptr<SessionMemory> memory = std::make_shared<SessionMemory>();
  absl::flat_hash_map<SegmentId, uint64_t> reserved;  // lengths of segments that the client has not handed over yet
  absl::flat_hash_map<SegmentId, uint64_t> mapping;   // lengths of segments that are being mapped
  uint64_t segment_bytes = 0;                         // of reserved, mapping and mapped segments
  uint32_t memberships = 0;                           // ranks in groups
  uint32_t active_parts = 0;                          // parts of jobs that are not terminal
  bool closing = false;
  std::vector<Callback<absl::Status>> closed;  // called when no part is active and no segment is being mapped
};

// Owned by the engine's thread, except MemoryOf().
class SessionTable {
 public:
  // `limits`, `refused` and `tenants` outlive the table; limits may change.
  SessionTable(const AgentLimits& limits, LimitCounters* refused, TenantTable* tenants)
      : limits_(limits), refused_(*refused), tenants_(*tenants) {}

  absl::StatusOr<SessionId> Open(SessionInfo info);
  // Null for an unknown session or one that is closing.
  Session* Find(SessionId id);
  // Also finds one that is closing.
  Session* FindAny(SessionId id);
  // Null for an unknown session. Any thread.
  std::shared_ptr<SessionMemory> MemoryOf(SessionId id) const;
  // Takes the segment's room in limits and quotas before the client touches its pages. RemoveSegment() and the end of
  // the session give it back.
  absl::Status ReserveSegment(SessionId session, SegmentId id, uint64_t length_bytes);
  // Takes the segment's room, unless it is reserved, before the segment is mapped: mapped memory may be pinned.
  absl::Status BeginMapping(SessionId session, SegmentId id, uint64_t length_bytes);
  // Adds the segment that was mapped. After an error, or if the session is closing, gives its room back.
  absl::Status AddSegment(SessionId session, SegmentId id, absl::StatusOr<std::shared_ptr<const Segment>> segment);
  absl::Status RemoveSegment(SessionId session, SegmentId id);
  // Forgets the session and gives its room back to its tenant; its segments are unmapped with their last user.
  void Erase(SessionId id);
  const absl::flat_hash_map<SessionId, std::unique_ptr<Session>>& all() const { return sessions_; }

 private:
  absl::Status TakeRoom(Session& session, SegmentId id, uint64_t length_bytes);
  static void ReturnRoom(Session& session, uint64_t length_bytes);

  const AgentLimits& limits_;
  LimitCounters& refused_;
  TenantTable& tenants_;
  uint64_t next_id_ = 1;
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<SessionId, std::shared_ptr<SessionMemory>> memories_;  // of sessions_; guarded by mutex_
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_SESSIONS_H_
