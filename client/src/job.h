// Jobs: follow a job to its end, and hold its segments until then. A job that is lost when a daemon exits is submitted
// again as a new attempt, if its group can recover.
#ifndef RAILS_CLIENT_SRC_JOB_H_
#define RAILS_CLIENT_SRC_JOB_H_

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
#include "client/src/owner_process.h"
#include "client/src/session.h"
#include "client/src/waiter.h"
#include "rails/client.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

class PreparedCore;
class SegmentCore;

// The group of a job. Outlives it.
class JobOwner {
 public:
  virtual ~JobOwner() = default;
  // An attempt was lost because the epoch of this generation ended. False: there will be no further epoch.
  virtual bool OnEpochEnd(uint64_t generation) = 0;
  virtual void OnJobEnd(uint64_t seq) = 0;
};

// The state of one job. Thread-safe.
class JobCore : public std::enable_shared_from_this<JobCore> {
 public:
  using Result = absl::StatusOr<JobReport>;
  using Segments = std::vector<std::shared_ptr<SegmentCore>>;
  // The request names the job of the latest attempt.
  struct Request {
    google::protobuf::Arena arena;
    v1::SubmitAllToAllRequest* message = nullptr;  // on the arena; null: `again` is the request
    PreparedCore* prepared = nullptr;              // gives the ranges of `again`; lives as long as the job's segments
    v1::SubmitPreparedRequest again;
    v1::SubmitAllToAllRequest* MakeMessage() {
      return message = google::protobuf::Arena::CreateMessage<v1::SubmitAllToAllRequest>(&arena);
    }
    v1::JobId* mutable_job() { return message != nullptr ? message->mutable_job() : again.mutable_job(); }
  };

  // `replayable`: keeps the request until the job has ended, for further attempts.
  JobCore(std::shared_ptr<JobOwner> owner, std::shared_ptr<Watcher> watcher, std::shared_ptr<Request> request,
          std::shared_ptr<const Segments> segments, uint32_t rank, uint64_t seq, bool replayable);

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
  // The request of an attempt, and the segments that it uses. Both live at least as long as this.
  struct Submitted {
    std::shared_ptr<Request> request;  // null: the job has ended
    std::shared_ptr<const Segments> segments;
  };
  // Call before the request is sent, because a daemon that dies after that may have begun to write. Fails if the
  // session is lost.
  absl::StatusOr<Submitted> BeginAttempt(std::shared_ptr<Session> session, const v1::Epoch& epoch, uint64_t generation)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The daemon has accepted the attempt.
  void Accepted() ABSL_LOCKS_EXCLUDED(mutex_);
  // The daemon has not accepted the attempt; unless `known`, it may have, so the segments are poisoned.
  void Withdraw(bool known) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the job at this end; later calls change nothing.
  void Finish(Result result) ABSL_LOCKS_EXCLUDED(mutex_);

  // The session of the attempt calls the methods below.
  void OnReport(const v1::JobReport& report) ABSL_LOCKS_EXCLUDED(mutex_);
  // The report may be lost.
  void OnMissed() ABSL_LOCKS_EXCLUDED(mutex_);
  // The session is lost, and no more reports come.
  void OnSessionEnd(const Session& session, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // One submission of the job.
  struct Attempt {
    std::shared_ptr<Session> session;
    JobKey id;
    uint64_t generation = 0;  // of the group's epoch
  };

  // Evaluates a report, or the answer to a question for one.
  void Digest(const std::shared_ptr<const Attempt>& attempt, const absl::StatusOr<v1::JobReport>& answer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DigestReport(const std::shared_ptr<const Attempt>& attempt, const v1::JobReport& report)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks for the report until there is an answer, without waiting.
  void AskAsync(const std::shared_ptr<const Attempt>& attempt);
  // Unless `quiescent`, the daemon may still use the job's segments, so they are poisoned. `replayable`: a daemon has
  // exited and ended the epoch before the job ended.
  void EndAttempt(const std::shared_ptr<const Attempt>& attempt, Result result, bool quiescent, bool replayable)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void WakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FollowAttempt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<const Attempt> TakeAttempt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobReport Unfinished() const;

  const OwnerProcess process_{};
  const std::shared_ptr<JobOwner> owner_;
  const std::shared_ptr<Watcher> watcher_;
  const uint32_t rank_;
  const uint64_t seq_;
  const bool replayable_;
  mutable absl::Mutex mutex_;
  std::vector<Waiter*> waiters_ ABSL_GUARDED_BY(mutex_);  // woken when attempt_, accepted_ or result_ changes
  std::shared_ptr<Request> request_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Segments> segments_ ABSL_GUARDED_BY(mutex_);  // with a prepared exchange; null: the job ends
  std::shared_ptr<const Attempt> attempt_ ABSL_GUARDED_BY(mutex_);    // null: none is outstanding
  bool accepted_ ABSL_GUARDED_BY(mutex_) = false;                     // the daemon has accepted attempt_
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;                       // a thread is about to end attempt_
  bool missed_ ABSL_GUARDED_BY(mutex_) = false;     // the report of attempt_ may be lost: ask once it is accepted
  bool following_ ABSL_GUARDED_BY(mutex_) = false;  // Follow() was called for attempt_
  bool watched_ ABSL_GUARDED_BY(mutex_) = false;    // StartWatch() was called
  uint32_t acceptances_ ABSL_GUARDED_BY(mutex_) = 0;
  bool counted_ ABSL_GUARDED_BY(mutex_) = false;    // acceptances_ counts the latest attempt
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is about to set the result
  std::optional<Result> result_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(Result)>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

// The caller's reference to a job.
class JobHandle final : public Job {
 public:
  explicit JobHandle(std::shared_ptr<JobCore> core) : core_(std::move(core)) {}
  // Follows the job on, so that its segments are released at its end.
  ~JobHandle() override { core_->StartWatch(); }
  uint64_t seq() const override { return core_->seq(); }
  absl::StatusOr<JobReport> Wait(absl::Duration timeout) override { return core_->Wait(timeout); }
  void OnDone(std::function<void(absl::StatusOr<JobReport>)> callback) override { core_->OnDone(std::move(callback)); }
  std::future<absl::StatusOr<JobReport>> Future() override;
  absl::Status Cancel() override { return core_->Cancel(); }

 private:
  const std::shared_ptr<JobCore> core_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_JOB_H_
