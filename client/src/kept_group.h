// Groups that wait for restarts (GroupOptions::restart_limit): when a daemon has ended, and the epoch with it, the rank
// joins again by itself and hands over what had not ended.
#ifndef RAILS_CLIENT_SRC_KEPT_GROUP_H_
#define RAILS_CLIENT_SRC_KEPT_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/connection.h"
#include "client/src/kept_job.h"
#include "client/src/owner_process.h"
#include "client/src/session.h"
#include "rails/client.h"
#include "rails/v1/group.pb.h"

namespace rails::internal {

// The rank's memberships, one after the other, and its jobs. Thread-safe; outlived by no job.
class GroupKeeper final : public KeptJobOwner, public std::enable_shared_from_this<GroupKeeper> {
 public:
  GroupKeeper(GroupOptions options, std::shared_ptr<Connection> connection)
      : options_(std::move(options)), connection_(std::move(connection)) {}

  // Joins for the first time; the node of each rank.
  absl::StatusOr<std::vector<std::string>> Start();
  // Returns when the group is over. On a thread of its own.
  void Run();
  // Leaves, and returns when Run() does.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  absl::Status Leave() ABSL_LOCKS_EXCLUDED(mutex_);

  bool OnEpochEnd(uint64_t generation) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnJobEnd(uint64_t seq) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One epoch of the group, as this rank has joined it.
  struct Membership {
    std::shared_ptr<Session> session;
    v1::Epoch epoch;
    uint64_t generation = 0;  // how many there were before it, plus 1
  };

  bool Live() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_.ok() && ready_ && ended_ < present_.generation;
  }
  // The epoch is the present one, and as far as is known it has not ended.
  bool Lasts(uint64_t generation) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until jobs can be handed over; why there is no hope, else.
  absl::Status AwaitLive(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // UNAVAILABLE when another epoch must come first; the job is then as it was.
  absl::Status SubmitNow(const AllToAllv& exchange, absl::Duration timeout, absl::Time deadline,
                         std::shared_ptr<KeptJob>* job) ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  // As HandOver(), and again while the daemon drains or, when `patient`, is over a quota: as long as the epoch lasts,
  // until `deadline`. The answer to each may take `timeout`.
  absl::Status HandOverInTime(const Membership& in, v1::SubmitAllToAllRequest& request, bool patient,
                              absl::Duration timeout, absl::Time deadline, bool* known);

  void Recover();
  absl::Status TryRecover(absl::Time deadline) ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  // What was handed over has come back, or has ended.
  absl::Status AwaitAttempts(absl::Time deadline);
  absl::Status JoinAgain(absl::Time deadline);
  absl::Status Replay(absl::Time deadline);
  std::vector<std::shared_ptr<KeptJob>> Unfinished() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes up an epoch; false when the group is over, and the epoch was left again.
  bool Begin(std::shared_ptr<Session> session, const v1::Epoch& epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  // The group is over: its jobs end.
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LeaveEpoch(Session& session, const v1::Epoch& epoch);

  const GroupOptions options_;
  const std::shared_ptr<Connection> connection_;
  absl::Mutex submitting_;  // taken first; held while Submit() hands a job over: numbers are consumed in order
  mutable absl::Mutex mutex_;
  Membership present_ ABSL_GUARDED_BY(mutex_);
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;  // the latest generation whose epoch is known to have ended
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;  // everything unfinished was handed over in the present epoch
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;  // Run() has returned, or is about to
  absl::Status over_ ABSL_GUARDED_BY(mutex_);     // why there can be no more jobs
  uint64_t next_seq_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::shared_ptr<KeptJob>> jobs_ ABSL_GUARDED_BY(mutex_);  // unfinished, by number
};

// What the caller holds.
class KeptGroup final : public Group {
 public:
  // Blocks until every rank has joined. `options` have been checked.
  static absl::StatusOr<std::unique_ptr<Group>> Join(const GroupOptions& options,
                                                     std::shared_ptr<Connection> connection);
  ~KeptGroup() override;

  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return static_cast<uint32_t>(members_.size()); }
  const std::vector<std::string>& members() const override { return members_; }
  absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, absl::Duration timeout) override {
    return keeper_->Submit(exchange, timeout);
  }
  absl::Status Leave() override { return keeper_->Leave(); }

 private:
  KeptGroup(uint32_t rank, std::vector<std::string> members, std::shared_ptr<GroupKeeper> keeper);

  const OwnerProcess owner_{};
  const uint32_t rank_;
  const std::vector<std::string> members_;
  const std::shared_ptr<GroupKeeper> keeper_;
  std::thread thread_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_KEPT_GROUP_H_
