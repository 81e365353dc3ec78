// Jobs: waits for their end, and holds their segments until then.
#ifndef RAILS_CLIENT_SRC_JOB_H_
#define RAILS_CLIENT_SRC_JOB_H_

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/src/deadline.h"
#include "client/src/session.h"
#include "rails/client.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

class SegmentCore;

// The state of one submitted job. The session holds it, and with it the segments, until it is finished. Thread-safe.
class JobCore : public std::enable_shared_from_this<JobCore> {
 public:
  using Result = absl::StatusOr<JobReport>;
  // Called once by the thread that ends the job, before its result is visible. `replayable`: a daemon exited and ended
  // the epoch before the job ended.
  using OnEnd = std::function<void(const Result& result, bool replayable)>;

  // `on_end` may be null.
  JobCore(std::shared_ptr<Session> session, v1::JobId id, std::vector<std::shared_ptr<SegmentCore>> segments,
          OnEnd on_end = nullptr);

  const v1::JobId& id() const { return id_; }
  bool Is(const v1::JobId& id) const;
  bool finished() const ABSL_LOCKS_EXCLUDED(mutex_);

  // As in Job.
  Result Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(std::function<void(Result)> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Cancel();

  // Follows the job to its end without its own thread.
  void StartWatch() ABSL_LOCKS_EXCLUDED(mutex_);
  // Tell whether the daemon will report the end unasked, through OnReport().
  void ExpectReport() ABSL_LOCKS_EXCLUDED(mutex_);
  void ExpectNoReport() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReport(const v1::JobReport& report) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the job at this end; later calls change nothing. Unless `quiescent`, the daemon may still use the job's
  // segments, so they are poisoned.
  void Finish(Result result, bool quiescent, bool replayable = false) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Step { kFinished, kPending, kTrouble };

  // Evaluates one answer of WaitJob. Finishes the job if the answer is terminal.
  Step Digest(const absl::StatusOr<v1::JobReport>& answer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Asks on the calling thread, so that the answer wakes it without another thread. Nullopt: ask again. At `silent_at`
  // the daemon, which lives, has not answered for too long.
  std::optional<Result> Ask(Deadline deadline, Deadline* silent_at) ABSL_LOCKS_EXCLUDED(mutex_);
  void AskAsync();
  JobReport Unfinished() const;

  const std::shared_ptr<Session> session_;
  const v1::JobId id_;
  const OnEnd on_end_;
  mutable absl::Mutex mutex_;
  WaitQueue changed_;  // woken when the result is set, when no report will come, and when nobody asks any more
  std::vector<std::shared_ptr<SegmentCore>> segments_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is about to set the result
  std::optional<Result> result_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(Result)>> callbacks_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;      // the daemon will report the end unasked
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // a report that will come, or AskAsync(), follows the job to its end
  uint32_t asking_ ABSL_GUARDED_BY(mutex_) = 0;    // threads in Ask()
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);   // before AskAsync() retries after an error
};

// The caller's reference to a job.
class JobHandle final : public Job {
 public:
  explicit JobHandle(std::shared_ptr<JobCore> core) : core_(std::move(core)) {}
  // Follows the job on, so that its segments are released at its end.
  ~JobHandle() override { core_->StartWatch(); }
  uint64_t seq() const override { return core_->id().seq(); }
  absl::StatusOr<JobReport> Wait(absl::Duration timeout) override { return core_->Wait(timeout); }
  void OnDone(std::function<void(absl::StatusOr<JobReport>)> callback) override { core_->OnDone(std::move(callback)); }
  std::future<absl::StatusOr<JobReport>> Future() override;
  absl::Status Cancel() override { return core_->Cancel(); }

 private:
  const std::shared_ptr<JobCore> core_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_JOB_H_
