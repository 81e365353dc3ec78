#include "client/src/session.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/src/failed_ranks.h"
#include "client/src/job.h"
#include "rails/v1/session.pb.h"

namespace rails::internal {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(20);
constexpr absl::Duration kLastRetry = absl::Milliseconds(500);
// How long an ending client waits for the removals of its segments. They take a moment, unless the daemon hangs.
constexpr absl::Duration kLastRemovals = absl::Seconds(1);
// How long a process may take to end after its sockets have closed.
constexpr absl::Duration kExit = absl::Milliseconds(250);

// True if a retry may help: the daemon may be starting, or its sockets may not have their modes yet.
bool RetryMayConnect(const absl::Status& status) {
  if (absl::IsPermissionDenied(status)) return !status.GetPayload(kSaidByDaemon).has_value();
  return absl::IsUnavailable(status) || absl::IsUnauthenticated(status) || absl::IsDeadlineExceeded(status);
}

absl::Status StatusOf(const v1::RingAnswer& answer) {
  return answer.code() == 0
             ? absl::OkStatus()
             : WithFailedRanks(absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message()),
                               answer.failed_ranks());
}

template <typename Response>
absl::StatusOr<Response> Unwrap(const v1::RingAnswer& answer) {
  if (absl::Status status = StatusOf(answer); !status.ok()) return status;
  Response response;
  if (!response.ParseFromString(answer.response())) {
    return absl::InternalError(absl::StrCat("railsd's answer is no ", response.GetTypeName()));
  }
  return response;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const ClientOptions& options, std::shared_ptr<Watcher> watcher) {
  if (options.socket_dir.empty()) return absl::InvalidArgumentError("socket_dir is empty");
  std::error_code error;
  const std::string directory = std::filesystem::absolute(options.socket_dir, error).string();
  if (error) return absl::InvalidArgumentError(absl::StrCat("socket_dir ", options.socket_dir, ": ", error.message()));
  const Deadline deadline = Deadline::After(options.connect_timeout);
  absl::Duration pause = kFirstRetry;
  for (;;) {
    const absl::Duration left = std::max(deadline.left(), absl::Milliseconds(100));
    absl::StatusOr<std::shared_ptr<Session>> session = TryOpen(options, directory, left, watcher);
    if (session.ok()) return session;
    if (!RetryMayConnect(session.status())) return absl::Status(session.status().code(), session.status().message());
    if (pause >= deadline.left()) {
      return absl::Status(session.status().code(), absl::StrCat(session.status().message(), " (tried for ",
                                                                absl::FormatDuration(options.connect_timeout), ")"));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLastRetry);
  }
}

absl::StatusOr<std::shared_ptr<Session>> Session::TryOpen(const ClientOptions& options, const std::string& directory,
                                                          absl::Duration timeout, std::shared_ptr<Watcher> watcher) {
  const Deadline deadline = Deadline::After(timeout);
  auto channel = DescriptorChannel::Open(absl::StrCat(directory, "/descriptors.sock"), options.client_name, timeout);
  if (!channel.ok()) return channel.status();
  absl::StatusOr<RingDescriptors> ring = (*channel)->OpenRing(std::max(deadline.left(), absl::Milliseconds(100)));
  if (!ring.ok()) return ring.status();
  auto session = std::make_shared<Session>(*std::move(channel), watcher);
  absl::StatusOr<std::shared_ptr<RingCalls>> calls =
      RingCalls::Create(*std::move(ring), options.spin, std::move(watcher), session.get());
  if (!calls.ok()) return calls.status();
  session->calls_ = *std::move(calls);
  return session;
}

absl::Status Session::Usable() const {
  if (absl::Status status = owner_.Check(); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  return lost_;
}

void IdOf(const JobKey& key, v1::JobId* id) {
  id->mutable_epoch()->set_boot_id(std::get<0>(key));
  id->mutable_epoch()->set_counter(std::get<1>(key));
  id->set_seq(std::get<2>(key));
  id->set_rank(std::get<3>(key));
}

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("timeout ", absl::FormatDuration(timeout), " is not positive"));
}

absl::Status EndOfJobs(const absl::Status& lost) {
  return absl::IsUnavailable(lost) ? absl::AbortedError(lost.message()) : lost;
}

absl::Status Session::HowItEnded(const absl::Status& broken) const {
  const SessionHello& hello = channel_->hello();
  const std::string process =
      absl::StrCat("process", hello.daemon_pid > 0 ? absl::StrCat(" ", hello.daemon_pid) : "", " of node ", hello.node);
  const absl::Status why = broken.ok() ? channel_->GivenUp() : broken;
  std::string how;
  if (!why.ok()) {
    how = absl::StrCat("this client closed its session with the railsd ", process, ": ", why.message());
  } else if (hello.daemon->EndedWithin(kExit)) {
    how = absl::StrCat("the railsd ", process, " has ended");
  } else {
    how = absl::StrCat("the railsd ", process, " closed the session and still runs");
  }
  return absl::UnavailableError(absl::StrCat(how, ": groups and jobs are lost; reconnect and join again"));
}

void Session::Watch() {
  watcher_->Watch(channel_->fd(), hello().daemon->fd(),
                  [self = shared_from_this()] { self->Lose(self->HowItEnded(absl::OkStatus())); });
}

void Session::OnHangUp(const absl::Status& why) {
  watcher_->Post(absl::ZeroDuration(), [weak = weak_from_this(), why] {
    if (const std::shared_ptr<Session> self = weak.lock(); self != nullptr && self->connected()) {
      self->Lose(self->HowItEnded(why));
    }
  });
}

void Session::OnReport(const v1::JobReport& report) {
  std::shared_ptr<JobCore> job;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = jobs_.find(KeyOf(report.job())); found != jobs_.end()) job = found->second;
  }
  if (job != nullptr) job->OnReport(report);
}

void Session::OnMissed() {
  for (const std::shared_ptr<JobCore>& job : UnfinishedJobs()) job->OnMissed();
}

std::vector<std::shared_ptr<JobCore>> Session::UnfinishedJobs() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<JobCore>> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [key, job] : jobs_) jobs.push_back(job);
  return jobs;
}

void Session::Lose(absl::Status why) {
  {
    absl::MutexLock lock(&mutex_);
    if (!lost_.ok()) return;
    lost_ = why;
    lost_flag_.store(true, std::memory_order_release);
  }
  channel_->Shutdown();
  calls_->Shutdown();
  calls_->Drain();  // a job whose report is in the ring need not be replayed
  for (const std::shared_ptr<JobCore>& job : UnfinishedJobs()) job->OnSessionEnd(*this, why);
  calls_->End(why);
  std::vector<std::function<void()>> on_lost;
  {
    absl::MutexLock lock(&mutex_);
    jobs_ended_ = true;
    on_lost.swap(on_lost_);
    for (Waiter* waiter : removal_waiters_) waiter->Wake();
  }
  for (const auto& call : on_lost) call();
}

void Session::OnLost(std::function<void()> on_lost) {
  {
    absl::MutexLock lock(&mutex_);
    if (!jobs_ended_) return on_lost_.push_back(std::move(on_lost));
  }
  on_lost();
}

void Session::Close() {
  // Late or cancelled removals would count as callers' errors at the daemon.
  if (connected()) AwaitRemovals(Deadline::After(kLastRemovals));
  Lose(absl::CancelledError("the client was closed"));
}

template <typename Response>
absl::StatusOr<Response> Session::Call(ring::Kind kind, const google::protobuf::MessageLite& request, Deadline deadline,
                                       RingCalls::CallOptions options) {
  const absl::StatusOr<v1::RingAnswer> answer = calls_->Call(kind, request, deadline, std::move(options));
  if (!answer.ok()) return answer.status();
  return Unwrap<Response>(*answer);
}

absl::StatusOr<v1::JoinGroupResponse> Session::Join(const v1::JoinGroupRequest& request, Deadline deadline,
                                                    const void* caller) {
  const auto leave = [weak = weak_from_this(), rank = request.rank()](const v1::RingAnswer& answer) {
    const absl::StatusOr<v1::JoinGroupResponse> joined = Unwrap<v1::JoinGroupResponse>(answer);
    const std::shared_ptr<Session> self = weak.lock();
    if (!joined.ok() || self == nullptr) return;
    v1::LeaveGroupRequest leaving;
    *leaving.mutable_epoch() = joined->epoch();
    leaving.set_rank(rank);
    self->calls_->Post(ring::Kind::kLeaveGroup, leaving, nullptr);
  };
  return Call<v1::JoinGroupResponse>(ring::Kind::kJoinGroup, request, deadline, {.caller = caller, .on_late = leave});
}

absl::Status Session::Leave(const v1::Epoch& epoch, uint32_t rank) {
  v1::LeaveGroupRequest request;
  *request.mutable_epoch() = epoch;
  request.set_rank(rank);
  return Call<v1::LeaveGroupResponse>(ring::Kind::kLeaveGroup, request, Deadline::After(kCallTimeout), {}).status();
}

absl::Status Session::Submit(const v1::SubmitAllToAllRequest& request, Deadline deadline, bool* known) {
  return SubmitAs(ring::Kind::kSubmit, request, deadline, known);
}

absl::Status Session::Submit(const v1::SubmitPreparedRequest& request, Deadline deadline, bool* known) {
  return SubmitAs(ring::Kind::kSubmitPrepared, request, deadline, known);
}

absl::Status Session::Prepare(const v1::PrepareAllToAllRequest& request, Deadline deadline) {
  return Call<v1::PrepareAllToAllResponse>(ring::Kind::kPrepare, request, deadline, {}).status();
}

void Session::ReleasePrepared(uint64_t id) {
  if (!Usable().ok()) return;
  v1::ReleasePreparedRequest request;
  request.set_prepared_id(id);
  calls_->Post(ring::Kind::kReleasePrepared, request, nullptr);
}

absl::Status Session::SubmitAs(ring::Kind kind, const google::protobuf::MessageLite& request, Deadline deadline,
                               bool* known) {
  const absl::StatusOr<v1::RingAnswer> answer = calls_->Call(kind, request, deadline, {});
  *known = answer.ok();
  return answer.ok() ? StatusOf(*answer) : answer.status();
}

absl::Status Session::CancelJob(const JobKey& job) {
  v1::CancelJobRequest request;
  IdOf(job, request.mutable_job());
  return Call<v1::CancelJobResponse>(ring::Kind::kCancelJob, request, Deadline::After(kCallTimeout), {}).status();
}

absl::StatusOr<v1::JobReport> Session::AskForJob(const JobKey& job, Deadline deadline) {
  v1::WaitJobRequest request;
  IdOf(job, request.mutable_job());
  absl::StatusOr<v1::WaitJobResponse> response = Call<v1::WaitJobResponse>(ring::Kind::kWaitJob, request, deadline, {});
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_report());
}

void Session::AskForJobAsync(const JobKey& job, std::function<void(absl::StatusOr<v1::JobReport>)> done) {
  v1::WaitJobRequest request;
  IdOf(job, request.mutable_job());
  calls_->Post(ring::Kind::kWaitJob, request, [done = std::move(done)](const v1::RingAnswer& answer) {
    absl::StatusOr<v1::WaitJobResponse> response = Unwrap<v1::WaitJobResponse>(answer);
    if (!response.ok()) return done(response.status());
    done(std::move(*response->mutable_report()));
  });
}

absl::Status Session::AddJob(const JobKey& id, std::shared_ptr<JobCore> job) {
  absl::MutexLock lock(&mutex_);
  if (!lost_.ok()) return lost_;
  jobs_[id] = std::move(job);
  return absl::OkStatus();
}

void Session::ForgetJob(const JobKey& id) {
  std::shared_ptr<JobCore> dropped;
  absl::MutexLock lock(&mutex_);
  if (const auto found = jobs_.find(id); found != jobs_.end()) {
    dropped = std::move(found->second);
    jobs_.erase(found);
  }
}

absl::Status Session::AskForSegment(uint32_t id, absl::Duration timeout,
                                    absl::FunctionRef<absl::Status(absl::Duration)> ask) {
  if (absl::Status status = Usable(); !status.ok()) return status;
  const Deadline deadline = Deadline::After(timeout);
  if (!AwaitRemovals(deadline)) {
    return absl::UnavailableError(absl::StrCat(
        "railsd of node ", hello().node, " has not released dropped segments within ", absl::FormatDuration(timeout)));
  }
  absl::Status status = ask(deadline.left());
  if (absl::IsDeadlineExceeded(status) && channel_->out_of_step()) {
    Lose(absl::UnavailableError(absl::StrCat("segment ", id, " (timeout ", absl::FormatDuration(timeout),
                                             "): ", status.message(),
                                             ": groups and jobs are lost; reconnect and join again")));
  }
  const bool gone = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  if (gone && !connected()) return Usable();
  return status;
}

bool Session::AwaitRemovals(Deadline deadline) {
  Waiter waiter;
  {
    absl::MutexLock lock(&mutex_);
    if (removals_ == 0 || jobs_ended_) return true;
    removal_waiters_.push_back(&waiter);
  }
  const bool in_time = calls_->Wait(waiter, deadline);
  absl::MutexLock lock(&mutex_);
  std::erase(removal_waiters_, &waiter);
  return in_time;
}

absl::Status Session::ReserveSegment(uint32_t id, uint64_t length_bytes, absl::Duration timeout) {
  return AskForSegment(id, timeout,
                       [&](absl::Duration left) { return channel_->ReserveSegment(id, length_bytes, left); });
}

absl::Status Session::ShareSegment(uint32_t id, int fd, uint64_t length_bytes, absl::Duration timeout) {
  return AskForSegment(id, timeout,
                       [&](absl::Duration left) { return channel_->AddSegment(id, fd, length_bytes, left); });
}

void Session::DropSegment(uint32_t id) {
  if (!Usable().ok()) return;
  {
    absl::MutexLock lock(&mutex_);
    ++removals_;
  }
  v1::RemoveSegmentRequest request;
  request.set_segment_id(id);
  calls_->Post(ring::Kind::kRemoveSegment, request, [this](const v1::RingAnswer&) {
    absl::MutexLock lock(&mutex_);
    if (--removals_ > 0) return;
    for (Waiter* waiter : removal_waiters_) waiter->Wake();
  });
}

}  // namespace rails::internal
