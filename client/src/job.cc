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

JobCore::JobCore(std::shared_ptr<Session> session, v1::JobId id, std::vector<std::shared_ptr<SegmentCore>> segments,
                 OnEnd on_end)
    : session_(std::move(session)),
      id_(std::move(id)),
      on_end_(std::move(on_end)),
      segments_(std::move(segments)),
      pause_(kFirstWaitPause) {}

bool JobCore::Is(const v1::JobId& id) const {
  return id.seq() == id_.seq() && id.rank() == id_.rank() && id.epoch().boot_id() == id_.epoch().boot_id() &&
         id.epoch().counter() == id_.epoch().counter();
}

void JobCore::ExpectReport() {
  absl::MutexLock lock(&mutex_);
  told_ = true;
}

void JobCore::ExpectNoReport() {
  {
    absl::MutexLock lock(&mutex_);
    if (!told_) return;
    told_ = false;
    changed_.WakeAll();
    if (!watching_ || result_.has_value()) return;
  }
  AskAsync();
}

void JobCore::OnReport(const v1::JobReport& report) { Digest(report); }

bool JobCore::finished() const {
  absl::MutexLock lock(&mutex_);
  return result_.has_value();
}

JobCore::Result JobCore::Wait(absl::Duration timeout) {
  if (absl::Status status = session_->owner().Check(); !status.ok()) return status;
  const Deadline deadline = Deadline::After(timeout);
  {
    absl::MutexLock lock(&mutex_);
    const auto must_ask = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value() || !told_; };
    changed_.Await(mutex_, must_ask, std::min(deadline, Deadline::After(kPatience)));
  }
  Deadline silent_at = Deadline::Never();
  for (bool first = true;; first = false) {
    {
      absl::MutexLock lock(&mutex_);
      // One thread asks for all waiting threads. If it stops before the end, another takes over.
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return result_.has_value() || (!watching_ && asking_ == 0);
      };
      const bool take_over = changed_.Await(mutex_, ready, deadline);
      if (result_.has_value()) return *result_;
      if (!take_over && !first) return Unfinished();
      ++asking_;  // also after a timeout, because the caller wants the present state
    }
    if (std::optional<Result> result = Ask(deadline, &silent_at)) return *std::move(result);
  }
}

std::optional<JobCore::Result> JobCore::Ask(Deadline deadline, Deadline* silent_at) {
  const absl::Duration wait = std::clamp(deadline.left(), absl::ZeroDuration(), kWaitChunk);
  const absl::StatusOr<v1::JobReport> answer = session_->rpc().WaitJob(id_, wait, kCallTimeout);
  const Step step = Digest(answer);
  absl::MutexLock lock(&mutex_);
  const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return result_.has_value(); };
  // Another thread may be finishing the job, and releases its segments meanwhile. It never waits for this thread.
  if (step == Step::kFinished) mutex_.Await(absl::Condition(&ended));
  if (--asking_ == 0) changed_.WakeAll();
  if (result_.has_value()) return *result_;
  if (step == Step::kPending) {
    *silent_at = Deadline::Never();
    if (deadline.passed()) return FromProto(*answer);
    return std::nullopt;
  }
  const absl::Duration waited = absl::IsDeadlineExceeded(answer.status()) ? kCallTimeout : absl::ZeroDuration();
  *silent_at = std::min(*silent_at, Deadline::After(kSilence - waited));
  const bool silent = !absl::IsResourceExhausted(answer.status()) && silent_at->passed();
  if (silent || (deadline.passed() && absl::IsDeadlineExceeded(answer.status()))) {
    return absl::UnavailableError(absl::StrCat("railsd of node ", session_->hello().node,
                                               " lives but does not answer; job ", id_.seq(),
                                               " is unfinished: ", answer.status().message()));
  }
  if (deadline.passed()) return Unfinished();
  // If the daemon has exited, the watcher ends the job now.
  changed_.Await(mutex_, ended, std::min(deadline, Deadline::After(kFirstWaitPause * 4)));
  if (result_.has_value()) return *result_;
  return std::nullopt;
}

JobCore::Step JobCore::Digest(const absl::StatusOr<v1::JobReport>& answer) {
  if (answer.ok()) {
    if (answer->state() != v1::JOB_STATE_DONE && answer->state() != v1::JOB_STATE_FAILED) return Step::kPending;
    Finish(FromProto(*answer), /*quiescent=*/true, answer->replayable());
    return Step::kFinished;
  }
  if (absl::Status lost = session_->Usable(); !lost.ok()) {
    if (!session_->reports_ended()) return Step::kTrouble;  // this job's report may still come
    Finish(EndOfJobs(lost), /*quiescent=*/false, /*replayable=*/absl::IsUnavailable(lost));
    return Step::kFinished;
  }
  if (MayPass(answer.status().code())) return Step::kTrouble;
  // A job that the daemon has forgotten was terminal.
  Finish(answer.status(), /*quiescent=*/absl::IsNotFound(answer.status()));
  return Step::kFinished;
}

void JobCore::OnDone(std::function<void(Result)> callback) {
  if (absl::Status status = session_->owner().Check(); !status.ok()) return callback(status);
  {
    absl::MutexLock lock(&mutex_);
    if (!result_.has_value()) {
      callbacks_.push_back(std::move(callback));
      callback = nullptr;
    }
  }
  if (callback == nullptr) return StartWatch();
  session_->watcher()->Post(absl::ZeroDuration(), [self = shared_from_this(), callback = std::move(callback)] {
    std::optional<Result> result;
    {
      absl::MutexLock lock(&self->mutex_);
      result = self->result_;
    }
    callback(*std::move(result));
  });
}

void JobCore::StartWatch() {
  if (!session_->owner().IsThis()) return;
  {
    absl::MutexLock lock(&mutex_);
    if (watching_ || result_.has_value()) return;
    watching_ = true;
    if (told_) return;
  }
  AskAsync();
}

void JobCore::AskAsync() {
  session_->rpc().WaitJobAsync(
      id_, kWaitChunk, kCallTimeout, [self = shared_from_this()](absl::StatusOr<v1::JobReport> answer) {
        const Step step = self->Digest(answer);
        if (step == Step::kFinished) return;
        absl::Duration pause = absl::ZeroDuration();
        {
          absl::MutexLock lock(&self->mutex_);
          if (step == Step::kTrouble) pause = self->pause_;
          self->pause_ = step == Step::kTrouble ? std::min(2 * pause, kLongestWaitPause) : kFirstWaitPause;
        }
        if (step == Step::kPending) return self->AskAsync();
        self->session_->watcher()->Post(pause, [self] {
          if (!self->finished()) self->AskAsync();
        });
      });
}

absl::Status JobCore::Cancel() {
  if (absl::Status status = session_->owner().Check(); !status.ok()) return status;
  {
    absl::MutexLock lock(&mutex_);
    if (result_.has_value()) return result_->status();  // the job has ended, or its outcome is lost
  }
  if (absl::Status status = session_->Usable(); !status.ok()) return status;
  return session_->rpc().CancelJob(id_, kCallTimeout);
}

void JobCore::Finish(Result result, bool quiescent, bool replayable) {
  std::vector<std::shared_ptr<SegmentCore>> segments;
  std::vector<std::function<void(Result)>> callbacks;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(finishing_, true)) return;
    segments.swap(segments_);
  }
  if (!quiescent) {
    for (const auto& segment : segments) segment->Poison(session_->hello().daemon);
  }
  // Releases the segments before the result is visible. Not under the lock, because a release makes a call, in which
  // gRPC may run callbacks of other jobs.
  segments.clear();
  if (on_end_ != nullptr) on_end_(result, replayable);
  {
    absl::MutexLock lock(&mutex_);
    result_ = result;
    changed_.WakeAll();
    callbacks.swap(callbacks_);
  }
  const std::shared_ptr<JobCore> self = shared_from_this();  // ForgetJob() may drop the last other reference
  session_->ForgetJob(this);
  for (auto& callback : callbacks) callback(result);
}

JobReport JobCore::Unfinished() const {
  JobReport report;
  report.seq = id_.seq();
  report.rank = id_.rank();
  return report;
}

std::future<absl::StatusOr<JobReport>> JobHandle::Future() {
  auto promise = std::make_shared<std::promise<absl::StatusOr<JobReport>>>();
  std::future<absl::StatusOr<JobReport>> future = promise->get_future();
  core_->OnDone([promise](absl::StatusOr<JobReport> result) { promise->set_value(std::move(result)); });
  return future;
}

}  // namespace rails::internal
