#include "client/src/job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/segment.h"

namespace rails::internal {
namespace {

constexpr absl::Duration kFirstWaitPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestWaitPause = absl::Seconds(1);
// After this time a waiting thread asks for the report, although the report should come unasked.
constexpr absl::Duration kPatience = absl::Seconds(5);
// A daemon that runs but does not answer for so long is reported as silent.
constexpr absl::Duration kSilence = absl::Seconds(60);

// True for errors that may pass while the job goes on.
bool MayPass(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnauthenticated:  // from a restarted daemon: the watcher soon ends the session
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

JobReport FromProto(const v1::JobReport& from) {
  JobReport report;
  report.seq = from.job().seq();
  report.rank = from.job().rank();
  report.terminal = from.state() == v1::JOB_STATE_DONE || from.state() == v1::JOB_STATE_FAILED;
  if (from.state() == v1::JOB_STATE_FAILED) {
    const auto code = from.code() == 0 ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(from.code());
    report.status = absl::Status(code, from.message());
  }
  report.bytes_sent = from.bytes_sent();
  report.bytes_received = from.bytes_received();
  report.elapsed = absl::Seconds(from.elapsed_seconds());
  report.waiting_for_ranks = absl::Seconds(from.waiting_for_ranks_seconds());
  report.waiting_for_peers = absl::Seconds(from.waiting_for_peers_seconds());
  report.to_first_chunk = absl::Seconds(from.to_first_chunk_seconds());
  report.node_bound = absl::Seconds(from.node_bound_seconds());
  report.ratio_to_bound = from.ratio_to_bound();
  report.rail_tx_bytes.assign(from.rail_tx_bytes().begin(), from.rail_tx_bytes().end());
  report.rail_rx_bytes.assign(from.rail_rx_bytes().begin(), from.rail_rx_bytes().end());
  report.lost_ranks.assign(from.lost_ranks().begin(), from.lost_ranks().end());
  return report;
}

}  // namespace

JobCore::JobCore(std::shared_ptr<JobOwner> owner, std::shared_ptr<Watcher> watcher, std::shared_ptr<Request> request,
                 std::vector<std::shared_ptr<SegmentCore>> segments, uint32_t rank, uint64_t seq, bool replayable)
    : owner_(std::move(owner)),
      watcher_(std::move(watcher)),
      rank_(rank),
      seq_(seq),
      replayable_(replayable),
      request_(std::move(request)),
      segments_(std::move(segments)),
      pause_(kFirstWaitPause) {}

bool JobCore::finished() const {
  absl::MutexLock lock(&mutex_);
  return result_.has_value();
}

bool JobCore::idle() const {
  absl::MutexLock lock(&mutex_);
  return attempt_ == nullptr;
}

absl::Status JobCore::CheckUsable() {
  std::vector<std::shared_ptr<SegmentCore>> segments;
  {
    absl::MutexLock lock(&mutex_);
    segments = segments_;
  }
  for (const auto& segment : segments) {
    if (absl::Status status = segment->CheckUsable(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<JobCore::Request>> JobCore::BeginAttempt(std::shared_ptr<Session> session,
                                                                        const v1::Epoch& epoch, uint64_t generation) {
  auto attempt = std::make_shared<Attempt>();
  *attempt->id.mutable_epoch() = epoch;
  attempt->id.set_seq(seq_);
  attempt->id.set_rank(rank_);
  attempt->session = std::move(session);
  attempt->generation = generation;
  std::shared_ptr<Request> request;
  {
    absl::MutexLock lock(&mutex_);
    if (finishing_) return request;
    request = request_;
    *request->message->mutable_job() = attempt->id;
    attempt_ = attempt;
  }
  if (absl::Status status = attempt->session->AddJob(attempt->id, shared_from_this()); !status.ok()) {
    absl::MutexLock lock(&mutex_);
    TakeAttempt();
    return status;
  }
  return request;
}

void JobCore::Accepted() {
  bool follow = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!replayable_) request_ = nullptr;
    if (attempt_ == nullptr || std::exchange(accepted_, true)) return;  // the attempt has already ended
    changed_.WakeAll();
    // Waiting callers, and a dropped handle, now depend on this attempt.
    follow = ++acceptances_ > 1 || watched_;
  }
  if (follow) StartWatch();
}

void JobCore::Withdraw(bool known) {
  std::shared_ptr<const Attempt> attempt;
  std::vector<std::shared_ptr<SegmentCore>> segments;
  {
    absl::MutexLock lock(&mutex_);
    attempt = TakeAttempt();
    if (attempt == nullptr) return;
    segments = segments_;
  }
  if (!known) {
    for (const auto& segment : segments) segment->Poison(attempt->session->hello().daemon);
  }
  attempt->session->ForgetJob(attempt->id);
}

std::shared_ptr<const JobCore::Attempt> JobCore::TakeAttempt() {
  accepted_ = ending_ = told_ = following_ = false;
  changed_.WakeAll();
  return std::exchange(attempt_, nullptr);
}

void JobCore::EndAttempt(const std::shared_ptr<const Attempt>& attempt, Result result, bool quiescent,
                         bool replayable) {
  std::vector<std::shared_ptr<SegmentCore>> segments;
  {
    absl::MutexLock lock(&mutex_);
    if (attempt_ != attempt || std::exchange(ending_, true)) return;
    // An end before the acceptance implies the acceptance. Accepted() must not count the attempt again.
    if (!replayable && !std::exchange(accepted_, true)) ++acceptances_;
    segments = segments_;
  }
  if (!quiescent) {
    for (const auto& segment : segments) segment->Poison(attempt->session->hello().daemon);
  }
  segments.clear();
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
  std::vector<std::shared_ptr<SegmentCore>> segments;
  std::shared_ptr<Request> request;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(finishing_, true)) return;
    segments.swap(segments_);
    request.swap(request_);
    if (result.ok() && acceptances_ > 1) result->replays = acceptances_ - 1;
  }
  // Releases the segments before the result is visible. Not under the lock, because a release makes a call.
  segments.clear();
  std::shared_ptr<const Attempt> attempt;
  std::vector<std::function<void(Result)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    attempt = TakeAttempt();
    result_ = result;
    callbacks.swap(callbacks_);
  }
  const std::shared_ptr<JobCore> self = shared_from_this();  // others may drop the last reference
  if (attempt != nullptr) attempt->session->ForgetJob(attempt->id);
  owner_->OnJobEnd(seq_);
  if (callbacks.empty()) return;
  watcher_->Post(absl::ZeroDuration(), [callbacks = std::move(callbacks), result = std::move(result)] {
    for (const auto& callback : callbacks) callback(result);
  });
}

void JobCore::ExpectReport() {
  absl::MutexLock lock(&mutex_);
  told_ = true;
}

void JobCore::ExpectNoReport() {
  std::shared_ptr<const Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    if (!std::exchange(told_, false)) return;
    changed_.WakeAll();
    if (following_) attempt = attempt_;
  }
  if (attempt != nullptr) AskAsync(std::move(attempt));
}

void JobCore::OnReport(const v1::JobReport& report) {
  std::shared_ptr<const Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    attempt = attempt_;
  }
  if (attempt != nullptr && KeyOf(attempt->id) == KeyOf(report.job())) Digest(attempt, report);
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
  const Deadline deadline = Deadline::After(timeout), patience = Deadline::After(kPatience);
  Deadline silent_at = Deadline::Never();
  for (bool asked = false;;) {
    std::shared_ptr<const Attempt> attempt;
    {
      absl::MutexLock lock(&mutex_);
      // One thread asks for all waiting threads. If it stops before the end, another takes over.
      const auto ready = [&, this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return result_.has_value() || (accepted_ && !following_ && asking_ == 0 && (!told_ || patience.passed()));
      };
      const bool in_time = changed_.Await(mutex_, ready, patience.passed() ? deadline : std::min(deadline, patience));
      if (result_.has_value()) return *result_;
      if (!in_time && !deadline.passed()) continue;
      // After a timeout the caller wants the present state.
      if (!accepted_ || (!in_time && asked)) return Unfinished();
      attempt = attempt_;
      ++asking_;
    }
    asked = true;
    if (std::optional<Result> result = Ask(attempt, deadline, &silent_at)) return *std::move(result);
  }
}

std::optional<JobCore::Result> JobCore::Ask(const std::shared_ptr<const Attempt>& attempt, Deadline deadline,
                                            Deadline* silent_at) {
  Session& session = *attempt->session;
  const absl::Duration wait = std::clamp(deadline.left(), absl::ZeroDuration(), kWaitChunk);
  const absl::StatusOr<v1::JobReport> answer = session.rpc().WaitJob(attempt->id, wait, kCallTimeout);
  const Step step = Digest(attempt, answer);
  absl::MutexLock lock(&mutex_);
  const auto ended = [&, this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value() || attempt_ != attempt; };
  // Another thread may be ending the attempt, and releases segments meanwhile. It never waits for this thread.
  if (step == Step::kFinished) mutex_.Await(absl::Condition(&ended));
  if (--asking_ == 0) changed_.WakeAll();
  if (result_.has_value()) return *result_;
  if (step == Step::kFinished) return std::nullopt;  // the job will be submitted again
  if (step == Step::kPending) {
    *silent_at = Deadline::Never();
    if (deadline.passed()) return FromProto(*answer);
    return std::nullopt;
  }
  const absl::Duration waited = absl::IsDeadlineExceeded(answer.status()) ? kCallTimeout : absl::ZeroDuration();
  *silent_at = std::min(*silent_at, Deadline::After(kSilence - waited));
  const bool silent = !absl::IsResourceExhausted(answer.status()) && silent_at->passed();
  if (silent || (deadline.passed() && absl::IsDeadlineExceeded(answer.status()))) {
    return absl::UnavailableError(absl::StrCat("railsd of node ", session.hello().node,
                                               " lives but does not answer; job ", seq_,
                                               " is unfinished: ", answer.status().message()));
  }
  if (deadline.passed()) return Unfinished();
  // If the daemon has exited, the watcher ends the attempt now.
  changed_.Await(mutex_, ended, std::min(deadline, Deadline::After(kFirstWaitPause * 4)));
  if (result_.has_value()) return *result_;
  return std::nullopt;
}

JobCore::Step JobCore::Digest(const std::shared_ptr<const Attempt>& attempt,
                              const absl::StatusOr<v1::JobReport>& answer) {
  if (answer.ok()) {
    if (answer->state() != v1::JOB_STATE_DONE && answer->state() != v1::JOB_STATE_FAILED) return Step::kPending;
    EndAttempt(attempt, FromProto(*answer), /*quiescent=*/true, answer->replayable());
    return Step::kFinished;
  }
  const Session& session = *attempt->session;
  if (absl::Status lost = session.Usable(); !lost.ok()) {
    if (!session.reports_ended()) return Step::kTrouble;  // this job's report may still come
    EndAttempt(attempt, EndOfJobs(lost), /*quiescent=*/false, /*replayable=*/absl::IsUnavailable(lost));
    return Step::kFinished;
  }
  if (MayPass(answer.status().code())) return Step::kTrouble;
  // A job that the daemon has forgotten was terminal.
  EndAttempt(attempt, answer.status(), /*quiescent=*/absl::IsNotFound(answer.status()), /*replayable=*/false);
  return Step::kFinished;
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
  std::shared_ptr<const Attempt> attempt;
  {
    absl::MutexLock lock(&mutex_);
    watched_ = true;
    if (!accepted_ || result_.has_value() || std::exchange(following_, true) || told_) return;
    attempt = attempt_;
  }
  AskAsync(std::move(attempt));
}

void JobCore::AskAsync(std::shared_ptr<const Attempt> attempt) {
  Session& session = *attempt->session;
  const v1::JobId& id = attempt->id;
  session.rpc().WaitJobAsync(
      id, kWaitChunk, kCallTimeout,
      [self = shared_from_this(), attempt = std::move(attempt)](absl::StatusOr<v1::JobReport> answer) {
        const Step step = self->Digest(attempt, answer);
        if (step == Step::kFinished) return;
        absl::Duration pause = absl::ZeroDuration();
        {
          absl::MutexLock lock(&self->mutex_);
          if (step == Step::kTrouble) pause = self->pause_;
          self->pause_ = step == Step::kTrouble ? std::min(2 * pause, kLongestWaitPause) : kFirstWaitPause;
        }
        if (step == Step::kPending) return self->AskAsync(attempt);
        self->watcher_->Post(pause, [self, attempt] {
          {
            absl::MutexLock lock(&self->mutex_);
            if (self->attempt_ != attempt) return;
          }
          self->AskAsync(attempt);
        });
      });
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
    return absl::UnavailableError(
        absl::StrCat("job ", seq_, " waits for a daemon that has ended, to be handed over again: cancel it then"));
  }
  if (absl::Status status = attempt->session->Usable(); !status.ok()) return status;
  return attempt->session->rpc().CancelJob(attempt->id, kCallTimeout);
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
