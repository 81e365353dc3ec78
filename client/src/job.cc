#include "client/src/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/failed_ranks.h"
#include "client/src/prepared.h"
#include "client/src/segment.h"

namespace rails::internal {
namespace {

// A waiting thread asks for the report after kPatience, although it should come unasked, then every kAskAgain.
constexpr absl::Duration kPatience = absl::Seconds(5);
constexpr absl::Duration kAskAgain = absl::Seconds(30);
// Pause before a question that was answered with an error is repeated.
constexpr absl::Duration kRepeat = absl::Seconds(1);
// A daemon that runs but does not answer the question for so long is reported as silent.
constexpr absl::Duration kSilence = absl::Seconds(60);

JobReport FromProto(const v1::JobReport& from) {
  JobReport report;
  report.seq = from.job().seq();
  report.rank = from.job().rank();
  report.terminal = from.state() == v1::JOB_STATE_DONE || from.state() == v1::JOB_STATE_FAILED;
  if (from.state() == v1::JOB_STATE_FAILED) {
    const auto code = from.code() == 0 ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(from.code());
    report.status = WithFailedRanks(absl::Status(code, from.message()), from.failed_ranks());
  }
  report.bytes_sent = from.bytes_sent();
  report.bytes_received = from.bytes_received();
  report.received_by_rank.assign(from.received_by_rank().begin(), from.received_by_rank().end());
  report.elapsed = absl::Seconds(from.elapsed_seconds());
  report.waiting_for_ranks = absl::Seconds(from.waiting_for_ranks_seconds());
  report.waiting_for_peers = absl::Seconds(from.waiting_for_peers_seconds());
  report.to_first_chunk = absl::Seconds(from.to_first_chunk_seconds());
  report.node_bound = absl::Seconds(from.node_bound_seconds());
  report.ratio_to_bound = from.ratio_to_bound();
  report.rail_tx_bytes.assign(from.rail_tx_bytes().begin(), from.rail_tx_bytes().end());
  report.rail_rx_bytes.assign(from.rail_rx_bytes().begin(), from.rail_rx_bytes().end());
  report.eager_sent_bytes = from.eager_sent_bytes();
  report.eager_received_bytes = from.eager_received_bytes();
  report.highest_vote = from.highest_vote();
  report.lost_ranks.assign(from.lost_ranks().begin(), from.lost_ranks().end());
  return report;
}

}  // namespace

JobCore::JobCore(std::shared_ptr<JobOwner> owner, std::shared_ptr<Watcher> watcher, std::shared_ptr<Request> request,
                 std::shared_ptr<const Segments> segments, uint32_t rank, uint64_t seq, bool replayable)
    : owner_(std::move(owner)),
      watcher_(std::move(watcher)),
      rank_(rank),
      seq_(seq),
      replayable_(replayable),
      request_(std::move(request)),
      segments_(std::move(segments)) {}

bool JobCore::finished() const {
  absl::MutexLock lock(&mutex_);
  return result_.has_value();
}

bool JobCore::idle() const {
  absl::MutexLock lock(&mutex_);
  return attempt_ == nullptr;
}

absl::Status JobCore::CheckUsable() {
  std::shared_ptr<const Segments> segments;
  {
    absl::MutexLock lock(&mutex_);
    segments = segments_;
  }
  if (segments == nullptr) return absl::OkStatus();
  for (const auto& segment : *segments) {
    if (absl::Status status = segment->CheckUsable(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<JobCore::Submitted> JobCore::BeginAttempt(std::shared_ptr<Session> session, const v1::Epoch& epoch,
                                                         uint64_t generation) {
  auto attempt = std::make_shared<Attempt>();
  attempt->id = {epoch.boot_id(), epoch.counter(), seq_, rank_};
  attempt->session = std::move(session);
  attempt->generation = generation;
  Submitted submitted;
  {
    absl::MutexLock lock(&mutex_);
    if (finishing_) return submitted;
    submitted = {request_, segments_};
    IdOf(attempt->id, request_->mutable_job());
    attempt_ = attempt;
    counted_ = false;
    if (watched_) FollowAttempt();
    WakeAll();
  }
  if (absl::Status status = attempt->session->AddJob(attempt->id, shared_from_this()); !status.ok()) {
    absl::MutexLock lock(&mutex_);
    TakeAttempt();
    return status;
  }
  return submitted;
}

void JobCore::Accepted() {
  std::shared_ptr<const Attempt> ask;
  {
    absl::MutexLock lock(&mutex_);
    if (!replayable_) request_ = nullptr;
    if (!std::exchange(counted_, true)) ++acceptances_;
    if (attempt_ == nullptr) return;  // it has already ended
    accepted_ = true;
    WakeAll();
    if (missed_) ask = attempt_;
  }
  if (ask != nullptr) AskAsync(ask);
}

void JobCore::Withdraw(bool known) {
  std::shared_ptr<const Attempt> attempt;
  std::shared_ptr<const Segments> segments;
  {
    absl::MutexLock lock(&mutex_);
    attempt = TakeAttempt();
    if (attempt == nullptr) return;
    segments = segments_;
  }
  if (!known && segments != nullptr) {
    for (const auto& segment : *segments) segment->Poison(attempt->session->hello().daemon);
  }
  attempt->session->ForgetJob(attempt->id);
}

void JobCore::WakeAll() {
  for (Waiter* waiter : waiters_) waiter->Wake();
}

void JobCore::FollowAttempt() {
  if (!std::exchange(following_, true)) attempt_->session->Follow();
}

std::shared_ptr<const JobCore::Attempt> JobCore::TakeAttempt() {
  if (std::exchange(following_, false)) attempt_->session->Unfollow();
  accepted_ = ending_ = missed_ = false;
  WakeAll();
  return std::exchange(attempt_, nullptr);
}

void JobCore::EndAttempt(const std::shared_ptr<const Attempt>& attempt, Result result, bool quiescent,
                         bool replayable) {
  std::shared_ptr<const Segments> segments;
  {
    absl::MutexLock lock(&mutex_);
    if (attempt_ != attempt || std::exchange(ending_, true)) return;
    // If the job ends before its submission is answered, the daemon has accepted it.
    if (!replayable && !std::exchange(counted_, true)) ++acceptances_;
    segments = segments_;
  }
  if (!quiescent && segments != nullptr) {
    for (const auto& segment : *segments) segment->Poison(attempt->session->hello().daemon);
  }
  segments.reset();
  if (replayable) {
    {
      absl::MutexLock lock(&mutex_);
      TakeAttempt();
    }
    attempt->session->ForgetJob(attempt->id);
    if (owner_->OnEpochEnd(attempt->generation)) return;
  }
  Finish(std::move(result));
}

void JobCore::Finish(Result result) {
  std::shared_ptr<const Segments> segments;
  std::shared_ptr<Request> request;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(finishing_, true)) return;
    segments.swap(segments_);
    request.swap(request_);
    if (result.ok() && acceptances_ > 1) result->replays = acceptances_ - 1;
  }
  // Releases the segments before the result is visible. Not under the lock, because a release makes a call.
  request.reset();
  segments.reset();
  std::shared_ptr<const Attempt> attempt;
  std::vector<std::function<void(Result)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    attempt = TakeAttempt();
    callbacks.swap(callbacks_);
    if (callbacks.empty()) {
      result_ = std::move(result);
    } else {
      result_ = result;
    }
  }
  const std::shared_ptr<JobCore> self = shared_from_this();  // others may drop the last reference
  if (attempt != nullptr) attempt->session->ForgetJob(attempt->id);
  owner_->OnJobEnd(seq_);
  if (callbacks.empty()) return;
  watcher_->Post(absl::ZeroDuration(), [callbacks = std::move(callbacks), result = std::move(result)] {
    for (const auto& callback : callbacks) callback(result);
  });
}

void JobCore::OnReport(const v1::JobReport& report) {
  std::shared_ptr<const Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    attempt = attempt_;
  }
  if (attempt != nullptr && attempt->id == KeyOf(report.job())) DigestReport(attempt, report);
}

void JobCore::OnMissed() {
  std::shared_ptr<const Attempt> ask;
  {
    absl::MutexLock lock(&mutex_);
    missed_ = true;
    if (accepted_) ask = attempt_;
  }
  if (ask != nullptr) AskAsync(ask);
}

void JobCore::AskAsync(const std::shared_ptr<const Attempt>& attempt) {
  const auto done = [weak = weak_from_this(), attempt](const absl::StatusOr<v1::JobReport>& answer) {
    const std::shared_ptr<JobCore> self = weak.lock();
    if (self == nullptr) return;
    self->Digest(attempt, answer);
    if (answer.ok()) return;
    self->watcher_->Post(kRepeat, [self, attempt] {
      {
        absl::MutexLock lock(&self->mutex_);
        if (self->attempt_ != attempt) return;
      }
      self->AskAsync(attempt);
    });
  };
  attempt->session->AskForJobAsync(attempt->id, done);
}

void JobCore::OnSessionEnd(const Session& session, const absl::Status& why) {
  std::shared_ptr<const Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    attempt = attempt_;
  }
  if (attempt == nullptr || attempt->session.get() != &session) return;
  EndAttempt(attempt, EndOfJobs(why), /*quiescent=*/false, /*replayable=*/absl::IsUnavailable(why));
}

JobCore::Result JobCore::Wait(absl::Duration timeout) {
  if (absl::Status status = process_.Check(); !status.ok()) return status;
  const Deadline deadline = Deadline::After(timeout);
  Deadline ask_at = Deadline::After(kPatience);
  for (bool looked = false;; looked = true) {
    Waiter waiter;
    std::shared_ptr<const Attempt> attempt;
    bool accepted = false;
    {
      absl::MutexLock lock(&mutex_);
      if (result_.has_value()) return *result_;
      if (looked && deadline.passed()) return Unfinished();
      attempt = attempt_;
      accepted = accepted_;
      waiters_.push_back(&waiter);
    }
    if (attempt == nullptr) {
      waiter.Sleep(deadline);
    } else {
      attempt->session->Wait(waiter, accepted ? std::min(deadline, ask_at) : deadline);
    }
    {
      absl::MutexLock lock(&mutex_);
      std::erase(waiters_, &waiter);
    }
    if (waiter.done() || !accepted || !ask_at.passed() || deadline.passed()) continue;
    const absl::StatusOr<v1::JobReport> answer =
        attempt->session->AskForJob(attempt->id, std::min(deadline, Deadline::After(kSilence)));
    Digest(attempt, answer);
    ask_at = Deadline::After(kAskAgain);
    if (absl::IsDeadlineExceeded(answer.status()) && !deadline.passed() && !finished()) {
      return absl::UnavailableError(absl::StrCat("railsd of node ", attempt->session->hello().node,
                                                 " runs but does not answer; job ", seq_, " is unfinished"));
    }
  }
}

void JobCore::Digest(const std::shared_ptr<const Attempt>& attempt, const absl::StatusOr<v1::JobReport>& answer) {
  if (answer.ok()) return DigestReport(attempt, *answer);
  // The daemon forgets only terminal jobs. After another error the job may go on.
  if (!absl::IsNotFound(answer.status())) return;
  EndAttempt(attempt, answer.status(), /*quiescent=*/true, /*replayable=*/false);
}

void JobCore::DigestReport(const std::shared_ptr<const Attempt>& attempt, const v1::JobReport& report) {
  if (report.state() != v1::JOB_STATE_DONE && report.state() != v1::JOB_STATE_FAILED) return;
  JobReport result = FromProto(report);
  EndAttempt(attempt, std::move(result), /*quiescent=*/true, report.replayable());
}

void JobCore::OnDone(std::function<void(Result)> callback) {
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

void JobCore::StartWatch() {
  if (!process_.IsThis()) return;
  absl::MutexLock lock(&mutex_);
  watched_ = true;
  if (attempt_ != nullptr) FollowAttempt();
}

absl::Status JobCore::Cancel() {
  if (absl::Status status = process_.Check(); !status.ok()) return status;
  std::shared_ptr<const Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    if (result_.has_value()) return result_->status();  // the job has ended, or its outcome is lost
    if (accepted_) attempt = attempt_;
  }
  if (attempt == nullptr) {
    return absl::UnavailableError(absl::StrCat(
        "job ", seq_, " ended with its daemon, and a new daemon does not have it yet: cancel it again later"));
  }
  if (absl::Status status = attempt->session->Usable(); !status.ok()) return status;
  return attempt->session->CancelJob(attempt->id);
}

JobReport JobCore::Unfinished() const {
  JobReport report;
  report.seq = seq_;
  report.rank = rank_;
  return report;
}

std::future<absl::StatusOr<JobReport>> JobHandle::Future() {
  auto promise = std::make_shared<std::promise<absl::StatusOr<JobReport>>>();
  std::future<absl::StatusOr<JobReport>> future = promise->get_future();
  core_->OnDone([promise](absl::StatusOr<JobReport> result) { promise->set_value(std::move(result)); });
  return future;
}

}  // namespace rails::internal
