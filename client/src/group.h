// Groups: a rank's membership in one epoch after the other, and the numbers of its jobs. When a daemon exits, the epoch
// ends. A group that can recover (GroupOptions::restart_limit) then joins again by itself and submits its unfinished
// jobs again, on its own thread. Other groups have no thread; their jobs are lost with the epoch.
#ifndef RAILS_CLIENT_SRC_GROUP_H_
#define RAILS_CLIENT_SRC_GROUP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/connection.h"
#include "client/src/deadline.h"
#include "client/src/job.h"
#include "client/src/own_thread.h"
#include "client/src/owner_process.h"
#include "client/src/prepared.h"
#include "client/src/session.h"
#include "rails/client.h"
#include "rails/v1/group.pb.h"

namespace rails::internal {

// The rank's memberships and its jobs. Thread-safe. Outlives its jobs.
class GroupCore final : public JobOwner, public PreparedOwner, public std::enable_shared_from_this<GroupCore> {
 public:
  GroupCore(const GroupOptions& options, std::shared_ptr<Connection> connection)
      : options_(options),
        restart_limit_(options.recovery == Recovery::kWait ? options.restart_limit : absl::ZeroDuration()),
        connection_(std::move(connection)) {}

  // Joins for the first time. Returns the node of each rank.
  absl::StatusOr<std::vector<std::string>> Start();
  // True if the group needs a thread that calls Run().
  bool recovers() const { return restart_limit_ > absl::ZeroDuration(); }
  // Recovers whenever the epoch ends. Returns when the group is over.
  void Run();
  // Leaves the group. Waits until Run() has returned, if the group recovers.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  absl::StatusOr<std::shared_ptr<Prepared>> Prepare(const AllToAllv& layout, absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  absl::StatusOr<std::shared_ptr<Job>> Submit(const std::shared_ptr<Prepared>& prepared, const Lengths& lengths,
                                              absl::Duration timeout) ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  absl::Status Leave() ABSL_LOCKS_EXCLUDED(mutex_);

  bool OnEpochEnd(uint64_t generation) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnJobEnd(uint64_t seq) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool Lasts(uint64_t generation) const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A job before it has a number.
  struct Draft {
    std::shared_ptr<JobCore::Request> request;
    std::shared_ptr<const JobCore::Segments> segments;
  };
  // This rank's membership in one epoch of the group.
  struct Membership {
    std::shared_ptr<Session> session;
    v1::Epoch epoch;
    uint64_t generation = 0;  // counts the memberships from 1
  };

  // True if jobs can be submitted, as far as this client knows.
  bool Live() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return over_.ok() && ready_ && ended_ < present_.generation;
  }
  // Waits until jobs can be submitted. Error: why they never can, or that `deadline` has passed.
  absl::Status AwaitLive(Deadline deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `attempt` in the present epoch, and again in the next one while it returns UNAVAILABLE, within
  // `restart_limit`.
  absl::Status InTime(absl::FunctionRef<absl::Status(Deadline)> attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  // Submits what `draft` makes, anew for each epoch.
  absl::StatusOr<std::shared_ptr<Job>> SubmitDraft(absl::Duration timeout,
                                                   absl::FunctionRef<absl::Status(Draft*)> draft)
      ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  // UNAVAILABLE, if the group recovers: the next epoch must begin first; the job is unchanged.
  absl::Status SubmitNow(Draft draft, absl::Duration timeout, Deadline deadline, std::shared_ptr<JobCore>* job)
      ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  // UNAVAILABLE: the epoch has just ended.
  absl::StatusOr<Membership> Present() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Translates an error of the daemon in the epoch for the caller; ends the epoch if the daemon has.
  absl::Status OnRefusal(const Membership& in, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  // Prepares ranges that the daemon does not have in this epoch.
  absl::Status PrepareNow(const Membership& in, PreparedCore& prepared, absl::Duration timeout, uint64_t* id = nullptr);
  // Like HandOver(), but retries while the daemon drains, or if `patient` while a quota is exhausted, until the epoch
  // ends or `deadline`. Each answer may take `timeout`.
  absl::Status HandOverInTime(const Membership& in, JobCore::Request& request, bool patient, absl::Duration timeout,
                              Deadline deadline, bool* known);

  void Recover();
  absl::Status TryRecover(Deadline deadline) ABSL_LOCKS_EXCLUDED(submitting_, mutex_);
  // Waits until all attempts have ended.
  absl::Status AwaitAttempts(Deadline deadline);
  absl::Status JoinAgain(Deadline deadline);
  absl::Status Replay(Deadline deadline);
  std::vector<std::shared_ptr<JobCore>> Unfinished() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes an epoch the present one. False: the group is over, and this rank has left the epoch again.
  bool Begin(std::shared_ptr<Session> session, const v1::Epoch& epoch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the group and its lost jobs, and leaves.
  void GiveUp(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status LeaveEpoch(Session& session, const v1::Epoch& epoch);

  const GroupOptions options_;
  const absl::Duration restart_limit_;  // zero: the group does not recover
  const std::shared_ptr<Connection> connection_;
  absl::Mutex submitting_;  // taken first; held during a submission: jobs take numbers in order, and only when accepted
  mutable absl::Mutex mutex_;
  WaitQueue changed_;  // woken when ready_, over_ or stopped_ is set
  Membership present_ ABSL_GUARDED_BY(mutex_);
  uint64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;  // latest generation whose epoch is known to have ended, or was left
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;  // all unfinished jobs are submitted in the present epoch
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;  // Run() has returned, or is about to
  absl::Status over_ ABSL_GUARDED_BY(mutex_);     // why the group takes no more jobs
  uint64_t next_seq_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, std::shared_ptr<JobCore>> jobs_ ABSL_GUARDED_BY(mutex_);  // unfinished, by number
};

// The caller's group.
class GroupHandle final : public Group {
 public:
  // Blocks until every rank has joined. `options` have been checked.
  static absl::StatusOr<std::unique_ptr<Group>> Join(const GroupOptions& options,
                                                     std::shared_ptr<Connection> connection);
  ~GroupHandle() override;

  uint32_t rank() const override { return rank_; }
  uint32_t world_size() const override { return static_cast<uint32_t>(members_.size()); }
  const std::vector<std::string>& members() const override { return members_; }
  absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, absl::Duration timeout) override {
    return core_->Submit(exchange, timeout);
  }
  absl::StatusOr<std::shared_ptr<Prepared>> Prepare(const AllToAllv& layout, absl::Duration timeout) override {
    return core_->Prepare(layout, timeout);
  }
  absl::StatusOr<std::shared_ptr<Job>> Submit(const std::shared_ptr<Prepared>& prepared, const Lengths& lengths,
                                              absl::Duration timeout) override {
    return core_->Submit(prepared, lengths, timeout);
  }
  absl::Status Leave() override { return core_->Leave(); }

 private:
  GroupHandle(uint32_t rank, std::vector<std::string> members, std::shared_ptr<GroupCore> core);

  const OwnerProcess owner_{};
  const uint32_t rank_;
  const std::vector<std::string> members_;
  const std::shared_ptr<GroupCore> core_;
  OwnThread thread_;  // if the group recovers
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_GROUP_H_
