#include "client/src/session.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/src/job.h"

namespace rails::internal {
namespace {

constexpr absl::Duration kFirstRetry = absl::Milliseconds(20);
constexpr absl::Duration kLastRetry = absl::Milliseconds(500);
// Time to read the last reports of an exited daemon from the socket's buffer.
constexpr absl::Duration kLastReports = absl::Seconds(1);
// How long an ending client waits for the removals of its segments. They take a moment, unless the daemon hangs.
constexpr absl::Duration kLastRemovals = absl::Seconds(1);
// How long a process may take to end after its sockets have closed.
constexpr absl::Duration kExit = absl::Milliseconds(250);

// The process that used gRPC first. gRPC does not survive a fork: a child shares epoll descriptors with its parent and
// would crash the parent by registering in them.
std::atomic<pid_t> grpc_process{0};

absl::Status CheckNotForked() {
  const pid_t first = grpc_process.load();
  if (first == 0 || first == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("process ", first, " had connected before process ", getpid(),
                   " was forked from it, and gRPC does not survive that: fork before the first Connect(), or exec"));
}

// True if a retry may help: the daemon may be starting, or its sockets may not have their modes yet.
bool RetryMayConnect(const absl::Status& status) {
  if (absl::IsPermissionDenied(status)) return !status.GetPayload(kSaidByDaemon).has_value();
  return absl::IsUnavailable(status) || absl::IsUnauthenticated(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const ClientOptions& options, std::shared_ptr<Watcher> watcher) {
  if (absl::Status status = CheckNotForked(); !status.ok()) return status;
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
  const std::string path = absl::StrCat(directory, "/client.sock");
  grpc_process = getpid();
  std::unique_ptr<Rpc> rpc = Rpc::Create(path, (*channel)->hello().token);
  const absl::Duration left = std::max(deadline.left(), absl::Milliseconds(100));
  if (!rpc->WaitConnected(left)) {
    return absl::UnavailableError(absl::StrCat("cannot connect to the gRPC socket ", path,
                                               ", though descriptors.sock beside it answers: is railsd still starting, "
                                               "and may this user (uid ",
                                               geteuid(), ") write to the socket?"));
  }
  absl::StatusOr<v1::GetSessionResponse> known = rpc->GetSession(std::max(deadline.left(), absl::Seconds(1)));
  if (!known.ok()) {
    return absl::Status(known.status().code(),
                        absl::StrCat("opening the session on ", path, ": ", known.status().message()));
  }
  if (known->boot_id() != (*channel)->hello().boot_id) {
    return absl::UnavailableError(
        absl::StrCat("client.sock and descriptors.sock in ", directory, " belong to different daemons"));
  }
  return std::make_shared<Session>(*std::move(channel), std::move(rpc), std::move(watcher));
}

Session::Session(std::unique_ptr<DescriptorChannel> channel, std::unique_ptr<Rpc> rpc, std::shared_ptr<Watcher> watcher)
    : watcher_(std::move(watcher)), channel_(std::move(channel)), rpc_(std::move(rpc)) {}

Session::~Session() {
  // gRPC's threads do not exist in a forked child, so nothing would ever end its calls.
  if (!owner_.IsThis()) (void)rpc_.release();
  rpc_.reset();  // its callbacks use the other members
}

absl::Status Session::Usable() const {
  if (absl::Status status = owner_.Check(); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  return lost_;
}

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("timeout ", absl::FormatDuration(timeout), " is not positive"));
}

absl::Status EndOfJobs(const absl::Status& lost) {
  return absl::IsUnavailable(lost) ? absl::AbortedError(lost.message()) : lost;
}

std::string Session::HowItEnded() const {
  const SessionHello& hello = channel_->hello();
  const std::string process =
      absl::StrCat("process ", hello.daemon_pid > 0 ? absl::StrCat(hello.daemon_pid, " ") : "", "of node ", hello.node);
  if (const absl::Status why = channel_->GivenUp(); !why.ok()) {
    return absl::StrCat("this client closed its session with the railsd ", process, ": ", why.message());
  }
  if (hello.daemon->EndedWithin(kExit)) return absl::StrCat("the railsd ", process, " has ended");
  return absl::StrCat("the railsd ", process, " closed the session, and has not ended");
}

void Session::Watch() {
  watcher_->Watch(channel_->fd(), hello().daemon->fd(), [self = shared_from_this()] {
    self->Lose(absl::UnavailableError(
        absl::StrCat(self->HowItEnded(), ": groups and jobs are lost; Reconnect() and join again")));
  });
  // Drain() runs before this object is destroyed.
  rpc_->WatchJobs({.on_live =
                       [this] {
                         absl::MutexLock lock(&mutex_);
                         told_unasked_ = true;
                       },
                   .on_report = [this](const v1::WatchJobsResponse& message) { OnReport(message); },
                   .on_end = [this] { OnFeedEnd(); }});
}

void Session::OnFeedEnd() {
  bool lost = false;
  {
    absl::MutexLock lock(&mutex_);
    told_unasked_ = false;
    lost = !lost_.ok();
  }
  if (lost) return EndJobs();
  AskForJobs();
}

void Session::OnReport(const v1::WatchJobsResponse& message) {
  std::shared_ptr<JobCore> job;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = jobs_.find(KeyOf(message.report().job())); found != jobs_.end()) job = found->second;
  }
  if (job != nullptr) job->OnReport(message.report());
  if (message.missed() > 0) AskForJobs();
}

void Session::AskForJobs() {
  for (const std::shared_ptr<JobCore>& job : UnfinishedJobs()) job->ExpectNoReport();
}

std::vector<std::shared_ptr<JobCore>> Session::UnfinishedJobs() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<JobCore>> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [key, job] : jobs_) jobs.push_back(job);
  return jobs;
}

void Session::Lose(absl::Status why) {
  bool reports_come = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!lost_.ok()) return;
    lost_ = why;
    lost_flag_.store(true, std::memory_order_release);
    reports_come = told_unasked_ && !jobs_.empty() && absl::IsUnavailable(why);
  }
  channel_->Shutdown();
  // Waits for reports that may still come: a job whose end is known need not be replayed. The watcher's thread ends the
  // jobs, because their callbacks must not run under the caller's locks.
  watcher_->Post(reports_come ? kLastReports : absl::ZeroDuration(), [weak = weak_from_this()] {
    if (const std::shared_ptr<Session> self = weak.lock()) self->EndJobs();
  });
}

void Session::EndJobs() {
  if (reports_ended_.exchange(true, std::memory_order_acq_rel)) return;
  absl::Status why;
  std::vector<std::function<void()>> on_lost;
  {
    absl::MutexLock lock(&mutex_);
    why = lost_;
  }
  for (const std::shared_ptr<JobCore>& job : UnfinishedJobs()) job->OnSessionEnd(*this, why);
  rpc_->CancelAll();
  {
    absl::MutexLock lock(&mutex_);
    on_lost.swap(on_lost_);
  }
  for (const auto& call : on_lost) call();
}

void Session::OnLost(std::function<void()> on_lost) {
  {
    absl::MutexLock lock(&mutex_);
    if (!reports_ended()) return on_lost_.push_back(std::move(on_lost));
  }
  on_lost();
}

void Session::Close() {
  {
    // Waits for removals under way: late or cancelled ones would count as callers' errors at the daemon.
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return removals_ == 0; };
    if (lost_.ok()) no_removals_.Await(mutex_, none, Deadline::After(kLastRemovals));
  }
  Lose(absl::CancelledError("the client was closed"));
  EndJobs();
  rpc_->Drain();
}

absl::Status Session::AddJob(const v1::JobId& id, std::shared_ptr<JobCore> job) {
  absl::MutexLock lock(&mutex_);
  if (!lost_.ok()) return lost_;
  if (told_unasked_) job->ExpectReport();
  jobs_[KeyOf(id)] = std::move(job);
  return absl::OkStatus();
}

void Session::ForgetJob(const v1::JobId& id) {
  std::shared_ptr<JobCore> dropped;
  absl::MutexLock lock(&mutex_);
  if (const auto found = jobs_.find(KeyOf(id)); found != jobs_.end()) {
    dropped = std::move(found->second);
    jobs_.erase(found);
  }
}

absl::Status Session::AskForSegment(uint32_t id, absl::Duration timeout,
                                    absl::FunctionRef<absl::Status(absl::Duration)> ask) {
  if (absl::Status status = Usable(); !status.ok()) return status;
  const Deadline deadline = Deadline::After(timeout);
  {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return removals_ == 0; };
    if (!no_removals_.Await(mutex_, none, deadline)) {
      return absl::UnavailableError(absl::StrCat("railsd of node ", hello().node, " has not let go of ", removals_,
                                                 " dropped segments within ", absl::FormatDuration(timeout)));
    }
  }
  absl::Status status = ask(deadline.left());
  if (absl::IsDeadlineExceeded(status) && channel_->out_of_step()) {
    Lose(absl::UnavailableError(absl::StrCat("segment ", id, " (timeout ", absl::FormatDuration(timeout),
                                             "): ", status.message(),
                                             ": groups and jobs are lost; Reconnect() and join again")));
  }
  const bool gone = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  if (gone && !connected()) return Usable();
  return status;
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
  rpc_->RemoveSegmentAsync(id, kCallTimeout, [this](absl::Status) {
    absl::MutexLock lock(&mutex_);
    if (--removals_ == 0) no_removals_.WakeAll();
  });
}

}  // namespace rails::internal
