// Jobs: waiting for their end, and what is held until then.
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
#include "client/src/session.h"
#include "rails/client.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

class SegmentCore;

// The state of one submitted job. The session holds it until it is finished, and so its segments. Thread-safe.
class JobCore : public std::enable_shared_from_this<JobCore> {
 public:
  using Result = absl::StatusOr<JobReport>;
  // Called once, by the thread that ends the job and before anybody else sees its end. `replayable`: the epoch ended
  // with a daemon, before the job did.
  using OnEnd = std::function<void(const Result& result, bool replayable)>;

  // `on_end` may be null.
  JobCore(std::shared_ptr<Session> session, v1::JobId id, std::vector<std::shared_ptr<SegmentCore>> segments,
          OnEnd on_end = nullptr);

  const v1::JobId& id() const { return id_; }
  bool Is(const v1::JobId& id) const;
  bool finished() const ABSL_LOCKS_EXCLUDED(mutex_);

  // As Job's.
  Result Wait(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(std::function<void(Result)> callback) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Cancel();

  // Follows the job to its end without a thread of its own.
  void StartWatch() ABSL_LOCKS_EXCLUDED(mutex_);
  // The daemon will tell the end unasked (OnReport), or will not any more.
  void ExpectReport() ABSL_LOCKS_EXCLUDED(mutex_);
  void ExpectNoReport() ABSL_LOCKS_EXCLUDED(mutex_);
  void OnReport(const v1::JobReport& report) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the job here, once; later calls change nothing. Unless `quiescent`, the daemon may still touch the job's
  // segments, which are poisoned.
  void Finish(Result result, bool quiescent, bool replayable = false) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Step { kFinished, kPending, kTrouble };

  // Looks at one answer of WaitJob; finishes the job if that is what it says.
  Step Digest(const absl::StatusOr<v1::JobReport>& answer) ABSL_LOCKS_EXCLUDED(mutex_);
  // The calling thread asks, so that the answer wakes it and no other thread first. nullopt: ask again.
  std::optional<Result> Ask(absl::Time deadline, absl::Time* trouble_since) ABSL_LOCKS_EXCLUDED(mutex_);
  void AskAsync();
  JobReport Unfinished() const;

  const std::shared_ptr<Session> session_;
  const v1::JobId id_;
  const OnEnd on_end_;
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<SegmentCore>> segments_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;  // by one thread, which sets the result
  std::optional<Result> result_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void(Result)>> callbacks_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;      // a report comes unasked
  bool watching_ ABSL_GUARDED_BY(mutex_) = false;  // to the end: by the report that comes, or AskAsync()
  uint32_t asking_ ABSL_GUARDED_BY(mutex_) = 0;    // threads in Ask()
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);   // of AskAsync() after trouble
};

// What the caller holds.
class JobHandle final : public Job {
 public:
  explicit JobHandle(std::shared_ptr<JobCore> core) : core_(std::move(core)) {}
  // Somebody must see the end of the job, to let go of its segments.
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
