// Prepared exchanges: a layout that is checked once, and the daemon's copy of it in the group's present epoch.
#ifndef RAILS_CLIENT_SRC_PREPARED_H_
#define RAILS_CLIENT_SRC_PREPARED_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "client/src/deadline.h"
#include "client/src/job.h"
#include "client/src/owner_process.h"
#include "client/src/segment.h"
#include "client/src/session.h"
#include "rails/client.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

// The group of a prepared exchange. May end before it.
class PreparedOwner {
 public:
  virtual ~PreparedOwner() = default;
  // True if the epoch of that generation is the present one and is not known to have ended.
  virtual bool Lasts(uint64_t generation) const = 0;
};

// The caller's handle and every unfinished job hold a reference. The last one that is dropped releases the daemon's
// copy, and then the segments. Thread-safe.
class PreparedCore {
 public:
  using Segments = std::vector<std::shared_ptr<SegmentCore>>;
  // Errors as of BuildSubmission().
  static absl::StatusOr<std::shared_ptr<PreparedCore>> Build(const AllToAllv& layout, const SegmentTable* table,
                                                             uint32_t world_size, uint32_t rank,
                                                             std::weak_ptr<const PreparedOwner> owner);
  ~PreparedCore();

  // True if `group` has prepared it.
  bool OfGroup(const PreparedOwner* group) const { return owner_.lock().get() == group; }
  const Segments& segments() const { return segments_; }
  // FAILED_PRECONDITION: an earlier daemon may still use a segment.
  absl::Status CheckUsable() const;

  // Hands the layout to the daemon, unless the daemon has it in that epoch. Returns its id. One call at a time.
  // DEADLINE_EXCEEDED: the daemon does not answer.
  absl::StatusOr<uint64_t> PrepareIn(const std::shared_ptr<Session>& session, const v1::Epoch& epoch,
                                     uint64_t generation, Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);

  // Writes lengths, tag and timeout. INVALID_ARGUMENT names the flow, its rank and both values.
  absl::Status Fill(const Lengths& lengths, v1::SubmitPreparedRequest* request) const;
  // A request for one job. Uses a request of an earlier job again, with its allocated memory.
  std::shared_ptr<JobCore::Request> TakeRequest();

 private:
  struct Flow {
    uint32_t rank = 0;
    uint64_t capacity_bytes = 0;
    bool sent = false;  // PrepareAllToAllRequest has the flow
  };
  // Requests that jobs no longer need. Lives on if a job outlives this object.
  struct IdleRequests {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<JobCore::Request>> all ABSL_GUARDED_BY(mutex);
  };
  struct Flows {
    std::string field;  // "sends"
    std::vector<Flow> all = {};
  };

  explicit PreparedCore(std::weak_ptr<const PreparedOwner> owner) : owner_(std::move(owner)) {}
  static void Note(const std::vector<FlowRanges>& flows, Flows* out);
  // Checks the lengths of one direction, and adds them to `message` unless it is null.
  absl::Status FillDirection(const Flows& flows, const std::vector<uint64_t>& lengths,
                             v1::SubmitPreparedRequest* message) const;

  const OwnerProcess process_{};
  const std::weak_ptr<const PreparedOwner> owner_;
  Segments segments_;
  Flows sends_{"sends"}, receives_{"receives"};
  v1::PrepareAllToAllRequest request_;
  const std::shared_ptr<IdleRequests> idle_ = std::make_shared<IdleRequests>();
  absl::Mutex mutex_;
  // The session, epoch and id under which the daemon has its copy; null session: it has none.
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t id_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The caller's reference.
class PreparedHandle final : public Prepared {
 public:
  explicit PreparedHandle(std::shared_ptr<PreparedCore> core) : core_(std::move(core)) {}
  const std::shared_ptr<PreparedCore>& core() const { return core_; }

 private:
  const std::shared_ptr<PreparedCore> core_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_PREPARED_H_
