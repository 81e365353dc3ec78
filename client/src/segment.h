// Segments (shared memory that the daemon knows by an id), and the table of the living segments.
#ifndef RAILS_CLIENT_SRC_SEGMENT_H_
#define RAILS_CLIENT_SRC_SEGMENT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/src/daemon_life.h"
#include "client/src/memory.h"
#include "client/src/owner_process.h"
#include "client/src/session.h"
#include "rails/client.h"

namespace rails::internal {

class SegmentTable;

// The memory of a segment. The caller's handle and every unfinished job that uses it hold a reference. Tells the daemon
// when the last reference is dropped. Thread-safe.
class SegmentCore {
 public:
  SegmentCore(uint32_t id, SharedMemory memory, std::shared_ptr<SegmentTable> table)
      : id_(id), memory_(std::move(memory)), table_(std::move(table)) {}
  ~SegmentCore();

  uint32_t id() const { return id_; }
  const SharedMemory& memory() const { return memory_; }
  const SegmentTable* table() const { return table_.get(); }

  // A job of `daemon` was lost: the daemon's process may use the memory until it ends.
  void Poison(std::shared_ptr<DaemonLife> daemon);
  // FAILED_PRECONDITION while a daemon may still use the memory for a lost job.
  absl::Status CheckUsable();

 private:
  const uint32_t id_;
  const SharedMemory memory_;
  const std::shared_ptr<SegmentTable> table_;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<DaemonLife>> poisoned_by_ ABSL_GUARDED_BY(mutex_);
};

// The caller's reference to a segment.
class SegmentHandle final : public Segment {
 public:
  explicit SegmentHandle(std::shared_ptr<SegmentCore> core) : core_(std::move(core)) {}
  absl::Span<std::byte> bytes() const override { return core_->memory().bytes(); }
  uint32_t id() const override { return core_->id(); }
  const std::shared_ptr<SegmentCore>& core() const { return core_; }

 private:
  const std::shared_ptr<SegmentCore> core_;
};

// The living segments of one client, over all its sessions. Thread-safe.
class SegmentTable : public std::enable_shared_from_this<SegmentTable> {
 public:
  // Gives `memory` an id and shares it with the session in use, which may take `timeout` for each answer. `prefault`:
  // first reserves the segment and then touches its pages.
  absl::StatusOr<std::shared_ptr<SegmentCore>> Add(SharedMemory memory, bool prefault, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(sharing_, mutex_);
  // Shares all living segments with `session` under their ids, then uses it. Changes nothing on an error.
  absl::Status Use(std::shared_ptr<Session> session) ABSL_LOCKS_EXCLUDED(sharing_, mutex_);
  // Stops using a session.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class SegmentCore;
  uint32_t TakeId() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PrefaultInReserve(uint32_t id, const SharedMemory& memory, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(sharing_, mutex_);
  absl::StatusOr<std::shared_ptr<SegmentCore>> Share(uint32_t id, SharedMemory memory, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(sharing_, mutex_);
  // The last reference was dropped: tells the daemon if it still runs.
  void Release(uint32_t id) ABSL_LOCKS_EXCLUDED(mutex_);
  std::shared_ptr<Session> session() const ABSL_LOCKS_EXCLUDED(mutex_);

  const OwnerProcess owner_{};
  absl::Mutex sharing_;  // taken first; held during a request to the daemon
  mutable absl::Mutex mutex_;
  uint32_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  // A null entry is a taken id whose segment is not shared yet.
  absl::flat_hash_map<uint32_t, std::weak_ptr<SegmentCore>> living_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_SEGMENT_H_
