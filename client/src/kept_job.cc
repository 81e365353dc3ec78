#include "client/src/kept_job.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::internal {

KeptJob::KeptJob(std::shared_ptr<KeptJobOwner> owner, std::shared_ptr<Watcher> watcher,
                 std::shared_ptr<Payload> payload, uint32_t rank, uint64_t seq)
    : owner_(std::move(owner)), watcher_(std::move(watcher)), rank_(rank), seq_(seq), payload_(std::move(payload)) {}

bool KeptJob::finished() const {
  absl::MutexLock lock(&mutex_);
  return result_.has_value();
}

bool KeptJob::idle() const {
  absl::MutexLock lock(&mutex_);
  return offered_ == nullptr && accepted_ == nullptr;
}

absl::Status KeptJob::CheckUsable() {
  std::shared_ptr<Payload> payload;
  {
    absl::MutexLock lock(&mutex_);
    payload = payload_;
  }
  if (payload == nullptr) return absl::OkStatus();
  for (const auto& segment : payload->submission.segments) {
    if (absl::Status status = segment->CheckUsable(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<KeptJob::Payload>> KeptJob::BeginAttempt(std::shared_ptr<Session> session,
                                                                        const v1::Epoch& epoch, uint64_t generation) {
  std::shared_ptr<Payload> payload;
  std::shared_ptr<JobCore> core;
  {
    absl::MutexLock lock(&mutex_);
    if (payload_ == nullptr) return payload;
    payload = payload_;
    v1::JobId id;
    *id.mutable_epoch() = epoch;
    id.set_seq(seq_);
    id.set_rank(rank_);
    *payload->submission.request->mutable_job() = id;
    const uint64_t attempt = ++attempts_;
    core = std::make_shared<JobCore>(session, std::move(id), payload->submission.segments,
                                     [self = shared_from_this(), attempt, generation](const Result& result, bool lost) {
                                       self->OnAttemptEnd(attempt, generation, result, lost);
                                     });
    offered_ = core;
  }
  absl::Status status = session->AddJob(std::move(core));
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    offered_ = nullptr;
    return status;
  }
  return payload;
}

void KeptJob::Accepted() {
  std::shared_ptr<JobCore> core;
  {
    absl::MutexLock lock(&mutex_);
    if (offered_ == nullptr) return;  // the attempt has already ended
    accepted_ = std::exchange(offered_, nullptr);
    changed_.WakeAll();
    // Waiting callers, and a dropped handle, now depend on this attempt.
    if (++acceptances_ > 1 || watched_) core = accepted_;
  }
  if (core != nullptr) core->StartWatch();
}

void KeptJob::Withdraw(const absl::Status& why, bool known) {
  std::shared_ptr<JobCore> core;
  {
    absl::MutexLock lock(&mutex_);
    core.swap(offered_);
    ++attempts_;  // OnAttemptEnd() ignores the old attempt from now on
  }
  if (core != nullptr) core->Finish(why, /*quiescent=*/known);
}

void KeptJob::OnAttemptEnd(uint64_t attempt, uint64_t generation, const Result& result, bool replayable) {
  {
    absl::MutexLock lock(&mutex_);
    if (attempt != attempts_ || result_.has_value()) return;
    if (replayable) {
      offered_ = accepted_ = nullptr;
    } else if (offered_ != nullptr) {
      // An end before the acceptance implies the acceptance. Accepted() must not count the attempt again.
      accepted_ = std::exchange(offered_, nullptr);
      changed_.WakeAll();
      ++acceptances_;
    }
  }
  if (!replayable || !owner_->OnEpochEnd(generation)) Finish(result);
}

void KeptJob::Finish(Result result) {
  std::shared_ptr<Payload> payload;
  std::shared_ptr<JobCore> offered, accepted;
  std::vector<std::function<void(Result)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    if (payload_ == nullptr) return;
    payload.swap(payload_);
    if (result.ok() && acceptances_ > 1) result->replays = acceptances_ - 1;
  }
  payload.reset();  // releases the segments before the result is visible
  {
    absl::MutexLock lock(&mutex_);
    ++attempts_;
    offered.swap(offered_);
    accepted.swap(accepted_);
    result_ = result;
    changed_.WakeAll();
    callbacks.swap(callbacks_);
  }
  owner_->OnJobEnd(seq_);
  if (callbacks.empty()) return;
  // Runs on the watcher's thread: this may be the group's thread, and a callback may drop the group.
  watcher_->Post(absl::ZeroDuration(), [callbacks = std::move(callbacks), result = std::move(result)] {
    for (const auto& callback : callbacks) callback(result);
  });
}

KeptJob::Result KeptJob::Wait(absl::Duration timeout) {
  if (absl::Status status = process_.Check(); !status.ok()) return status;
  const Deadline deadline = Deadline::After(timeout);
  for (;;) {
    std::shared_ptr<JobCore> attempt;
    {
      absl::MutexLock lock(&mutex_);
      const auto known = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return result_.has_value() || accepted_ != nullptr;
      };
      const bool in_time = changed_.Await(mutex_, known, deadline);
      if (result_.has_value()) return *result_;
      if (!in_time) return Unfinished();
      attempt = accepted_;
    }
    Result result = attempt->Wait(deadline.left());
    if (!attempt->finished()) return result;  // timeout, or the daemon does not answer
    absl::MutexLock lock(&mutex_);
    const auto digested = [&, this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return result_.has_value() || accepted_ != attempt;
    };
    mutex_.Await(absl::Condition(&digested));
    if (result_.has_value()) return *result_;
  }
}

void KeptJob::OnDone(std::function<void(Result)> callback) {
  if (absl::Status status = process_.Check(); !status.ok()) return callback(status);
  {
    absl::MutexLock lock(&mutex_);
    if (!result_.has_value()) {
      callbacks_.push_back(std::move(callback));
      callback = nullptr;
    }
  }
  if (callback == nullptr) return StartWatch();
  watcher_->Post(absl::ZeroDuration(), [self = shared_from_this(), callback = std::move(callback)] {
    std::optional<Result> result;
    {
      absl::MutexLock lock(&self->mutex_);
      result = self->result_;
    }
    callback(*std::move(result));
  });
}

void KeptJob::StartWatch() {
  if (!process_.IsThis()) return;
  std::shared_ptr<JobCore> attempt;
  {
    absl::MutexLock lock(&mutex_);
    watched_ = true;
    attempt = accepted_;
  }
  if (attempt != nullptr) attempt->StartWatch();
}

absl::Status KeptJob::Cancel() {
  if (absl::Status status = process_.Check(); !status.ok()) return status;
  std::shared_ptr<JobCore> attempt;
  {
    absl::MutexLock lock(&mutex_);
    if (result_.has_value()) return result_->status();
    attempt = accepted_;
  }
  if (attempt != nullptr) return attempt->Cancel();
  return absl::UnavailableError(
      absl::StrCat("job ", seq_, " waits for a daemon that has ended, to be handed over again: cancel it then"));
}

JobReport KeptJob::Unfinished() const {
  JobReport report;
  report.seq = seq_;
  report.rank = rank_;
  return report;
}

std::future<absl::StatusOr<JobReport>> KeptJobHandle::Future() {
  auto promise = std::make_shared<std::promise<absl::StatusOr<JobReport>>>();
  std::future<absl::StatusOr<JobReport>> future = promise->get_future();
  job_->OnDone([promise](absl::StatusOr<JobReport> result) { promise->set_value(std::move(result)); });
  return future;
}

}  // namespace rails::internal
