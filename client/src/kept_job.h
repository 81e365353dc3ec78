// Jobs of a group that waits for restarts. Jobs lost when the daemon exits are submitted again as a new attempt.
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
#include "client/src/deadline.h"
#include "client/src/job.h"
#include "client/src/owner_process.h"
#include "client/src/session.h"
#include "client/src/submission.h"
#include "rails/client.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

// The group of a KeptJob.
class KeptJobOwner {
 public:
  virtual ~KeptJobOwner() = default;
  // An attempt was lost because the epoch of this generation ended. False: there will be no further epoch.
  virtual bool OnEpochEnd(uint64_t generation) = 0;
  virtual void OnJobEnd(uint64_t seq) = 0;
};

// Thread-safe.
class KeptJob : public std::enable_shared_from_this<KeptJob> {
 public:
  using Result = JobCore::Result;
  // The submission, kept until the job has ended. The request names the job of the latest attempt.
  struct Payload {
    google::protobuf::Arena arena;
    Submission submission;
  };

  KeptJob(std::shared_ptr<KeptJobOwner> owner, std::shared_ptr<Watcher> watcher, std::shared_ptr<Payload> payload,
          uint32_t rank, uint64_t seq);

  uint64_t seq() const { return seq_; }
  bool finished() const ABSL_LOCKS_EXCLUDED(mutex_);

  // As in Job.
  Result Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(std::function<void(Result)> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  // Follows the job to its end even if nobody waits.
  void StartWatch() ABSL_LOCKS_EXCLUDED(mutex_);

  // The group calls the methods below and makes one attempt at a time. True if no attempt is outstanding.
  bool idle() const ABSL_LOCKS_EXCLUDED(mutex_);
  // FAILED_PRECONDITION: an earlier daemon may still use the job's segments. OK if the job has ended.
  absl::Status CheckUsable() ABSL_LOCKS_EXCLUDED(mutex_);
  // Call before the request is sent: if the daemon dies then, it may have begun to write. Returns the request to
  // submit, or null if the job has ended meanwhile. Fails if the session is lost.
  absl::StatusOr<std::shared_ptr<Payload>> BeginAttempt(std::shared_ptr<Session> session, const v1::Epoch& epoch,
                                                        uint64_t generation) ABSL_LOCKS_EXCLUDED(mutex_);
  // The daemon has accepted the latest attempt.
  void Accepted() ABSL_LOCKS_EXCLUDED(mutex_);
  // The daemon has not accepted the latest attempt; unless `known`, it may have.
  void Withdraw(const absl::Status& why, bool known) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the job at this end; later calls change nothing.
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
  WaitQueue changed_;                                          // woken when the result or accepted_ is set
  std::shared_ptr<Payload> payload_ ABSL_GUARDED_BY(mutex_);   // null once the job has ended
  uint64_t attempts_ ABSL_GUARDED_BY(mutex_) = 0;              // number of the latest attempt; older ones are ignored
  std::shared_ptr<JobCore> offered_ ABSL_GUARDED_BY(mutex_);   // attempt that is not accepted yet
  std::shared_ptr<JobCore> accepted_ ABSL_GUARDED_BY(mutex_);  // accepted attempt
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;               // StartWatch() was called
  uint32_t acceptances_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<Result> result_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(Result)>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

// The caller's reference to a job.
class KeptJobHandle final : public Job {
 public:
  explicit KeptJobHandle(std::shared_ptr<KeptJob> job) : job_(std::move(job)) {}
  // Follows the job on, so that its segments are released at its end.
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
