// Jobs of a group that waits for restarts: one that a daemon took along is handed over again, as a further attempt.
#ifndef RAILS_CLIENT_SRC_KEPT_JOB_H_
#define RAILS_CLIENT_SRC_KEPT_JOB_H_

#include <google/protobuf/arena.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/job.h"
#include "client/src/owner_process.h"
#include "client/src/session.h"
#include "client/src/submission.h"
#include "rails/client.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

// Its group.
class KeptJobOwner {
 public:
  virtual ~KeptJobOwner() = default;
  // An attempt in the group's epoch of that generation was lost with it. False: there will be no other.
  virtual bool OnEpochEnd(uint64_t generation) = 0;
  virtual void OnJobEnd(uint64_t seq) = 0;
};

// Thread-safe.
class KeptJob : public std::enable_shared_from_this<KeptJob> {
 public:
  using Result = JobCore::Result;
  // What is handed over, kept until the job has ended. Its request's job is of the latest attempt.
  struct Payload {
    google::protobuf::Arena arena;
    Submission submission;
  };

  KeptJob(std::shared_ptr<KeptJobOwner> owner, std::shared_ptr<Watcher> watcher, std::shared_ptr<Payload> payload,
          uint32_t rank, uint64_t seq);

  uint64_t seq() const { return seq_; }
  bool finished() const ABSL_LOCKS_EXCLUDED(mutex_);

  // As Job's.
  Result Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(std::function<void(Result)> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  // Follows the job to its end, whoever waits.
  void StartWatch() ABSL_LOCKS_EXCLUDED(mutex_);

  // For the group, which makes one attempt at a time. No attempt of the job may still be answered.
  bool idle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // FAILED_PRECONDITION: an earlier daemon may still touch its segments. OK when the job has ended.
  absl::Status CheckUsable() ABSL_LOCKS_EXCLUDED(mutex_);
  // Before the daemon hears of it: if it dies now, it may have begun to write. The request to hand over; null when the
  // job has ended meanwhile. Fails when the session is lost.
  absl::StatusOr<std::shared_ptr<Payload>> BeginAttempt(std::shared_ptr<Session> session, const v1::Epoch& epoch,
                                                        uint64_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  // The daemon has taken the attempt that was begun last.
  void Accepted() ABSL_LOCKS_EXCLUDED(mutex_);
  // It has not; unless `known`, it may have.
  void Withdraw(const absl::Status& why, bool known) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the job here, once.
  void Finish(Result result) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void OnAttemptEnd(uint64_t attempt, uint64_t generation, const Result& result, bool replayable)
      ABSL_LOCKS_EXCLUDED(mutex_);
  JobReport Unfinished() const;

  const OwnerProcess process_{};
  const std::shared_ptr<KeptJobOwner> owner_;
  const std::shared_ptr<Watcher> watcher_;
  const uint32_t rank_;
  const uint64_t seq_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<Payload> payload_ ABSL_GUARDED_BY(mutex_);   // null when the job has ended
  uint64_t attempts_ ABSL_GUARDED_BY(mutex_) = 0;              // begun; the last one counts
  std::shared_ptr<JobCore> offered_ ABSL_GUARDED_BY(mutex_);   // begun, not accepted
  std::shared_ptr<JobCore> accepted_ ABSL_GUARDED_BY(mutex_);  // the daemon can be asked about it
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;               // each attempt is followed to its end
  uint32_t acceptances_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<Result> result_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(Result)>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

// What the caller holds.
class KeptJobHandle final : public Job {
 public:
  explicit KeptJobHandle(std::shared_ptr<KeptJob> job) : job_(std::move(job)) {}
  // Somebody must see the end of the job, to let go of its segments.
  ~KeptJobHandle() override { job_->StartWatch(); }
  uint64_t seq() const override { return job_->seq(); }
  absl::StatusOr<JobReport> Wait(absl::Duration timeout) override { return job_->Wait(timeout); }
  void OnDone(std::function<void(absl::StatusOr<JobReport>)> callback) override { job_->OnDone(std::move(callback)); }
  std::future<absl::StatusOr<JobReport>> Future() override;
  absl::Status Cancel() override { return job_->Cancel(); }

 private:
  const std::shared_ptr<KeptJob> job_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_KEPT_JOB_H_
