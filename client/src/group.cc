#include "client/src/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/membership.h"
#include "client/src/submission.h"

namespace rails::internal {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(200);
// Time limits of one attempt to connect and of one attempt to join. A connect slice is short, so that it ends soon
// after the group. Joins can be cancelled and are long, because ranks that wait for each other should rarely be absent.
constexpr absl::Duration kConnectSlice = absl::Milliseconds(500);
constexpr absl::Duration kJoinSlice = absl::Seconds(30);
constexpr absl::Duration kReplayTimeout = absl::Seconds(30);  // for the daemon to accept one replayed job

// True if joining again may help. After FAILED_PRECONDITION it does not: ranks have finished different jobs.
bool MayPass(const absl::Status& status) {
  return !absl::IsFailedPrecondition(status) && !absl::IsInvalidArgument(status) && !absl::IsCancelled(status) &&
         !absl::IsUnimplemented(status);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> GroupCore::Start() {
  std::shared_ptr<Session> session = connection_->session();
  if (absl::Status status = session->Usable(); !status.ok()) return status;
  absl::StatusOr<v1::JoinGroupResponse> joined = JoinGroup(*session, options_, /*next_seq=*/1, options_.timeout, this);
  if (!joined.ok()) return joined.status();
  Begin(std::move(session), joined->epoch());
  absl::MutexLock lock(&mutex_);
  ready_ = true;
  return std::vector<std::string>(joined->members().begin(), joined->members().end());
}

bool GroupCore::Begin(std::shared_ptr<Session> session, const v1::Epoch& epoch) {
  uint64_t generation = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (over_.ok()) {
      generation = present_.generation + 1;
      present_ = {session, epoch, generation};
      ready_ = false;
    }
  }
  if (generation == 0) {
    LeaveEpoch(*session, epoch).IgnoreError();
    return false;
  }
  if (!recovers()) return true;
  session->OnLost([weak = weak_from_this(), generation] {
    if (const std::shared_ptr<GroupCore> self = weak.lock()) self->OnEpochEnd(generation);
  });
  return true;
}

bool GroupCore::OnEpochEnd(uint64_t generation) {
  if (!recovers()) return false;
  absl::MutexLock lock(&mutex_);
  ended_ = std::max(ended_, generation);
  return over_.ok();
}

void GroupCore::OnJobEnd(uint64_t seq) {
  std::shared_ptr<JobCore> dropped;
  absl::MutexLock lock(&mutex_);
  const auto found = jobs_.find(seq);
  if (found == jobs_.end()) return;
  dropped = std::move(found->second);
  jobs_.erase(found);
}

bool GroupCore::Lasts(uint64_t generation) const {
  absl::MutexLock lock(&mutex_);
  return over_.ok() && generation == present_.generation && ended_ < generation;
}

absl::Status GroupCore::AwaitLive(Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  if (!recovers()) {
    absl::Status lost = present_.session->Usable();
    return lost.ok() ? over_ : lost;
  }
  const auto decided = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Live() || !over_.ok(); };
  if (!changed_.Await(mutex_, decided, deadline)) {
    return absl::UnavailableError(absl::StrCat("group ", options_.name, " has waited ",
                                               absl::FormatDuration(restart_limit_),
                                               " for a new daemon (restart_limit)"));
  }
  return over_;
}

absl::Status GroupCore::HandOverInTime(const Membership& in, JobCore::Request& request, bool patient,
                                       absl::Duration timeout, Deadline deadline, bool* known) {
  absl::Duration pause = kFirstPause;
  for (;;) {
    *known = true;
    absl::Status status;
    if (request.message != nullptr) {
      status = HandOver(*in.session, options_.name, *request.message, timeout, known);
    } else {
      uint64_t id = 0;
      status = PrepareNow(in, *request.prepared, timeout, &id);
      request.again.set_prepared_id(id);
      if (status.ok()) status = HandOver(*in.session, options_.name, request.again, timeout, known);
    }
    const bool passes = absl::IsUnavailable(status) || (patient && absl::IsResourceExhausted(status));
    if (status.ok() || !*known || !passes || !Lasts(in.generation) || deadline.passed()) return status;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::Status GroupCore::InTime(absl::FunctionRef<absl::Status(Deadline)> attempt) {
  const Deadline deadline = Deadline::After(restart_limit_);
  absl::Duration pause = kFirstPause;
  for (;;) {
    if (absl::Status status = AwaitLive(deadline); !status.ok()) return status;
    absl::Status status = attempt(deadline);
    if (!absl::IsUnavailable(status) || deadline.passed()) return status;
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::StatusOr<std::shared_ptr<Job>> GroupCore::Submit(const AllToAllv& exchange, absl::Duration timeout) {
  return SubmitDraft(timeout, [&](Draft* draft) {
    draft->request = std::make_shared<JobCore::Request>();
    Submission submission;
    submission.request = draft->request->MakeMessage();
    const absl::Status status =
        BuildSubmission(exchange, connection_->segments().get(), options_.world_size, &submission);
    draft->segments = std::make_shared<JobCore::Segments>(std::move(submission.segments));
    return status;
  });
}

absl::StatusOr<std::shared_ptr<Job>> GroupCore::Submit(const std::shared_ptr<Prepared>& prepared,
                                                       const Lengths& lengths, absl::Duration timeout) {
  const auto* const handle = dynamic_cast<const PreparedHandle*>(prepared.get());
  if (handle == nullptr || !handle->core()->OfGroup(this)) {
    return absl::InvalidArgumentError(
        absl::StrCat("prepared: ", prepared == nullptr ? "null" : "made for another group"));
  }
  const std::shared_ptr<PreparedCore>& core = handle->core();
  return SubmitDraft(timeout, [&](Draft* draft) {
    if (absl::Status status = core->CheckUsable(); !status.ok()) return status;
    draft->request = core->TakeRequest();
    draft->segments = {core, &core->segments()};
    return core->Fill(lengths, &draft->request->again);
  });
}

absl::StatusOr<std::shared_ptr<Job>> GroupCore::SubmitDraft(absl::Duration timeout,
                                                            absl::FunctionRef<absl::Status(Draft*)> draft) {
  if (absl::Status status = connection_->owner().Check(); !status.ok()) return status;
  if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
  std::shared_ptr<JobCore> job;
  const absl::Status status = InTime([&](Deadline deadline) {
    Draft made;
    if (absl::Status s = draft(&made); !s.ok()) return s;
    return SubmitNow(std::move(made), timeout, deadline, &job);
  });
  if (!status.ok()) return status;
  return std::make_shared<JobHandle>(std::move(job));
}

absl::StatusOr<GroupCore::Membership> GroupCore::Present() const {
  absl::MutexLock lock(&mutex_);
  if (!over_.ok()) return over_;
  if (!Live()) return absl::UnavailableError("the epoch of the group has just ended");
  return present_;
}

absl::Status GroupCore::OnRefusal(const Membership& in, const absl::Status& status) {
  if (!recovers()) return status;
  if (absl::IsAborted(status) || !in.session->Usable().ok()) OnEpochEnd(in.generation);
  return absl::IsAborted(status) ? absl::UnavailableError(status.message()) : status;
}

absl::Status GroupCore::PrepareNow(const Membership& in, PreparedCore& prepared, absl::Duration timeout, uint64_t* id) {
  const absl::StatusOr<uint64_t> made =
      prepared.PrepareIn(in.session, in.epoch, in.generation, Deadline::After(timeout));
  if (made.ok()) {
    if (id != nullptr) *id = *made;
    return absl::OkStatus();
  }
  if (absl::Status lost = in.session->Usable(); !lost.ok()) return lost;
  if (!absl::IsDeadlineExceeded(made.status())) return made.status();
  return absl::UnavailableError(absl::StrCat("railsd does not answer whether it has prepared ranges of group ",
                                             options_.name, " (", absl::FormatDuration(timeout), ")"));
}

absl::StatusOr<std::shared_ptr<Prepared>> GroupCore::Prepare(const AllToAllv& layout, absl::Duration timeout) {
  if (absl::Status status = connection_->owner().Check(); !status.ok()) return status;
  if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<PreparedCore>> core =
      PreparedCore::Build(layout, connection_->segments().get(), options_.world_size, options_.rank, weak_from_this());
  if (!core.ok()) return core.status();
  const absl::Status status = InTime([&](Deadline) {
    absl::MutexLock submitting(&submitting_);
    const absl::StatusOr<Membership> in = Present();
    if (!in.ok()) return in.status();
    const absl::Status prepared = PrepareNow(*in, **core, timeout);
    return prepared.ok() ? prepared : OnRefusal(*in, prepared);
  });
  if (!status.ok()) return status;
  return std::make_shared<PreparedHandle>(*std::move(core));
}

absl::Status GroupCore::SubmitNow(Draft draft, absl::Duration timeout, Deadline deadline,
                                  std::shared_ptr<JobCore>* out) {
  absl::MutexLock submitting(&submitting_);
  const absl::StatusOr<Membership> in = Present();
  if (!in.ok()) return in.status();
  uint64_t seq = 0;
  {
    absl::MutexLock lock(&mutex_);
    seq = next_seq_;
  }
  auto job = std::make_shared<JobCore>(shared_from_this(), connection_->watcher(), draft.request, draft.segments,
                                       options_.rank, seq, recovers());
  bool known = true;
  absl::Status status = job->BeginAttempt(in->session, in->epoch, in->generation).status();
  if (status.ok()) status = HandOverInTime(*in, *draft.request, /*patient=*/false, timeout, deadline, &known);
  if (!status.ok()) {
    job->Withdraw(known);
    if (!known && in->session->Usable().ok()) {
      absl::MutexLock lock(&mutex_);
      if (over_.ok()) over_ = status;
      changed_.WakeAll();
    }
    return OnRefusal(*in, status);
  }
  {
    absl::MutexLock lock(&mutex_);
    ++next_seq_;
    if (recovers() && !job->finished()) jobs_[seq] = job;
  }
  job->Accepted();
  *out = std::move(job);
  return absl::OkStatus();
}

void GroupCore::Run() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      const auto needed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !Live(); };
      mutex_.Await(absl::Condition(&needed));
      if (!over_.ok()) {
        stopped_ = true;
        changed_.WakeAll();
        return;
      }
    }
    Recover();
  }
}

void GroupCore::Stop() {
  Leave().IgnoreError();  // a lost session has already ended the membership
  while (recovers()) {
    {
      absl::MutexLock lock(&mutex_);
      const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_; };
      if (changed_.Await(mutex_, stopped, Deadline::After(kFirstPause))) return;
    }
    connection_->session()->GiveUpJoins(this);
  }
}

void GroupCore::Recover() {
  const Deadline deadline = Deadline::After(restart_limit_);
  absl::Duration pause = kFirstPause;
  for (;;) {
    const absl::Status status = TryRecover(deadline);
    if (status.ok()) return;
    if (!MayPass(status)) return GiveUp(status);
    if (absl::IsDeadlineExceeded(status)) pause = absl::ZeroDuration();  // other ranks wait in their joins
    if (deadline.passed()) {
      return GiveUp(absl::AbortedError(
          absl::StrCat(status.message(), " (restart_limit ", absl::FormatDuration(restart_limit_), " has passed)")));
    }
    absl::MutexLock lock(&mutex_);
    const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !over_.ok(); };
    if (changed_.Await(mutex_, over, Deadline::After(pause))) return;
    pause = std::clamp(2 * pause, kFirstPause, kLongestPause);
  }
}

absl::Status GroupCore::TryRecover(Deadline deadline) {
  {
    // Waits for the end of a submission under way. A later submission sees that the epoch has ended and waits for the
    // next epoch until its own deadline. It must not wait for this mutex: joining may take much longer.
    absl::MutexLock submitting(&submitting_);
  }
  bool joined = false;
  {
    absl::MutexLock lock(&mutex_);
    joined = ended_ < present_.generation;  // an earlier attempt joined; only the jobs are left to submit
  }
  if (!joined) {
    absl::Status status = AwaitAttempts(deadline);
    if (status.ok()) status = JoinAgain(deadline);
    if (!status.ok()) return status;
  }
  return Replay(deadline);
}

std::vector<std::shared_ptr<JobCore>> GroupCore::Unfinished() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<JobCore>> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [seq, job] : jobs_) jobs.push_back(job);
  return jobs;
}

absl::Status GroupCore::AwaitAttempts(Deadline deadline) {
  for (const std::shared_ptr<JobCore>& job : Unfinished()) {
    job->StartWatch();
    while (!job->idle()) {
      {
        absl::MutexLock lock(&mutex_);
        if (!over_.ok()) return over_;
      }
      if (deadline.passed()) {
        return absl::UnavailableError(absl::StrCat("job ", job->seq(), " of the ended epoch does not end"));
      }
      absl::SleepFor(kFirstPause);
    }
  }
  return absl::OkStatus();
}

absl::Status GroupCore::JoinAgain(Deadline deadline) {
  const auto left = [&] { return std::max(deadline.left(), absl::Milliseconds(1)); };
  const absl::Status gone = absl::CancelledError(absl::StrCat("this client has left group ", options_.name));
  if (absl::Status status = connection_->Reconnect(std::min(kConnectSlice, left())); !status.ok()) return status;
  std::shared_ptr<Session> session = connection_->session();
  uint64_t next_seq = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!over_.ok()) return gone;
    next_seq = next_seq_;
    // Jobs take numbers in order, and the daemon takes them in order. Therefore only the latest jobs can be replayed.
    for (auto it = jobs_.rbegin(); it != jobs_.rend(); ++it) {
      if (it->second->finished()) continue;  // about to be erased
      if (it->first + 1 != next_seq) {
        return absl::FailedPreconditionError(absl::StrCat("job ", it->first + 1, " has ended, and job ", it->first,
                                                          " has not: only the latest jobs can be replayed"));
      }
      next_seq = it->first;
    }
  }
  for (const std::shared_ptr<JobCore>& job : Unfinished()) {
    // The old daemon must have stopped writing before the new one begins.
    if (absl::Status status = job->CheckUsable(); !status.ok()) return absl::UnavailableError(status.message());
  }
  absl::StatusOr<v1::JoinGroupResponse> joined =
      JoinGroup(*session, options_, next_seq, std::min(kJoinSlice, left()), this);
  if (!joined.ok()) return joined.status();
  if (Begin(std::move(session), joined->epoch())) return absl::OkStatus();
  return gone;
}

absl::Status GroupCore::Replay(Deadline deadline) {
  Membership in;
  {
    absl::MutexLock lock(&mutex_);
    in = present_;
  }
  for (const std::shared_ptr<JobCore>& job : Unfinished()) {
    if (!job->idle()) continue;  // already submitted by an earlier attempt
    const auto attempt = job->BeginAttempt(in.session, in.epoch, in.generation);
    if (!attempt.ok()) {
      OnEpochEnd(in.generation);
      return attempt.status();
    }
    if (attempt->request == nullptr) continue;
    bool known = true;
    const absl::Status status =
        HandOverInTime(in, *attempt->request, /*patient=*/true, kReplayTimeout, deadline, &known);
    if (status.ok()) {
      job->Accepted();
      continue;
    }
    job->Withdraw(known);
    if (absl::IsAborted(status) || !known) OnEpochEnd(in.generation);
    return status;
  }
  absl::MutexLock lock(&mutex_);
  ready_ = true;
  changed_.WakeAll();
  return absl::OkStatus();
}

void GroupCore::GiveUp(const absl::Status& why) {
  Membership last;
  bool joined = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!over_.ok()) return;
    over_ = why;
    changed_.WakeAll();
    last = present_;
    joined = std::exchange(ended_, last.generation) < last.generation;
  }
  if (joined) LeaveEpoch(*last.session, last.epoch).IgnoreError();
  for (const std::shared_ptr<JobCore>& job : Unfinished()) {
    if (!job->idle()) continue;  // the daemon reports its end
    job->Finish(absl::IsCancelled(why) ? why
                                       : absl::AbortedError(absl::StrCat(
                                             "job ", job->seq(), " of group ", options_.name,
                                             " was lost with a daemon and cannot be replayed: ", why.message())));
  }
}

absl::Status GroupCore::LeaveEpoch(Session& session, const v1::Epoch& epoch) {
  if (absl::Status status = session.Usable(); !status.ok()) return status;
  return session.Leave(epoch, options_.rank);
}

absl::Status GroupCore::Leave() {
  if (absl::Status status = connection_->owner().Check(); !status.ok()) return status;
  Membership last;
  bool joined = false;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(left_, true)) return absl::OkStatus();
    joined = ended_ < present_.generation;
    over_ = absl::FailedPreconditionError(absl::StrCat("this client has left group ", options_.name));
    changed_.WakeAll();
    last = present_;
  }
  for (const std::shared_ptr<JobCore>& job : Unfinished()) {
    if (job->idle()) job->Finish(absl::AbortedError(absl::StrCat("this client has left group ", options_.name)));
  }
  if (absl::Status status = last.session->Usable(); !status.ok() || !joined) return status;
  return LeaveEpoch(*last.session, last.epoch);
}

absl::StatusOr<std::unique_ptr<Group>> GroupHandle::Join(const GroupOptions& options,
                                                         std::shared_ptr<Connection> connection) {
  auto core = std::make_shared<GroupCore>(options, std::move(connection));
  absl::StatusOr<std::vector<std::string>> members = core->Start();
  if (!members.ok()) return members.status();
  return std::unique_ptr<Group>(new GroupHandle(options.rank, *std::move(members), std::move(core)));
}

GroupHandle::GroupHandle(uint32_t rank, std::vector<std::string> members, std::shared_ptr<GroupCore> core)
    : rank_(rank), members_(std::move(members)), core_(std::move(core)) {
  if (core_->recovers()) thread_.Start("rails-core", [core = core_] { core->Run(); });
}

GroupHandle::~GroupHandle() {
  if (owner_.IsThis()) core_->Stop();
  if (thread_.running()) thread_.Join();
}

}  // namespace rails::internal
