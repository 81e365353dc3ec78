#include "client/src/group.h"

#include <google/protobuf/arena.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/submission.h"

namespace rails::internal {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(5);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);
constexpr absl::Duration kGiveUp = absl::Seconds(30);

// After such an answer nobody knows whether the daemon took the job. UNAVAILABLE may also be a refusal.
bool LeavesAcceptanceOpen(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status) ||
         absl::IsInternal(status) || absl::IsUnknown(status);
}

uint64_t WholeMilliseconds(absl::Duration duration) {
  return static_cast<uint64_t>(absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1))));
}

absl::Status CheckOptions(const GroupOptions& options) {
  if (options.name.empty()) return absl::InvalidArgumentError("name is empty");
  if (options.world_size == 0) return absl::InvalidArgumentError("world_size is 0");
  if (options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is outside world_size ", options.world_size));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout ", absl::FormatDuration(options.timeout), " is not positive"));
  }
  const bool waits = options.recovery == Recovery::kWait;
  if (waits ? options.wait_limit <= absl::ZeroDuration() : options.wait_limit != absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("wait_limit ", absl::FormatDuration(options.wait_limit),
                                                   waits ? " is not positive" : ": only Recovery::kWait has one"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> GroupImpl::Join(const GroupOptions& options, std::shared_ptr<Session> session,
                                                       std::shared_ptr<SegmentTable> segments) {
  if (absl::Status status = CheckOptions(options); !status.ok()) return status;
  if (absl::Status status = session->Usable(); !status.ok()) return status;
  v1::JoinGroupRequest request;
  request.set_name(options.name);
  request.set_join_key(options.join_key);
  request.set_world_size(options.world_size);
  request.set_rank(options.rank);
  request.set_recovery(static_cast<v1::RecoveryPolicy>(options.recovery));
  request.set_wait_limit_milliseconds(WholeMilliseconds(std::min(options.wait_limit, absl::Hours(24))));
  // Without a limit of the caller's own, the daemon's counts; the call ends when either does.
  const absl::Duration timeout = std::min(options.timeout, absl::Hours(24));
  if (options.timeout != absl::InfiniteDuration()) {
    request.set_timeout_milliseconds(WholeMilliseconds(timeout));
  }
  absl::StatusOr<v1::JoinGroupResponse> joined = session->rpc().Join(request, timeout + kCallTimeout);
  if (!joined.ok()) {
    if (absl::Status lost = session->Usable(); !lost.ok()) return lost;
    return joined.status();
  }
  if (static_cast<uint32_t>(joined->members_size()) != options.world_size) {
    return absl::InternalError(absl::StrCat("railsd names ", joined->members_size(), " members of group ", options.name,
                                            ", which has ", options.world_size, " ranks"));
  }
  return std::unique_ptr<Group>(
      new GroupImpl(options.name, options.rank, *joined, std::move(session), std::move(segments)));
}

GroupImpl::GroupImpl(std::string name, uint32_t rank, const v1::JoinGroupResponse& joined,
                     std::shared_ptr<Session> session, std::shared_ptr<SegmentTable> segments)
    : name_(std::move(name)),
      rank_(rank),
      epoch_(joined.epoch()),
      members_(joined.members().begin(), joined.members().end()),
      session_(std::move(session)),
      segments_(std::move(segments)) {}

GroupImpl::~GroupImpl() { Leave().IgnoreError(); }  // the session may be gone, and the membership with it

absl::StatusOr<std::shared_ptr<Job>> GroupImpl::Submit(const AllToAllv& exchange) {
  if (absl::Status status = session_->Usable(); !status.ok()) return status;
  google::protobuf::Arena arena;
  Submission submission;
  submission.request = google::protobuf::Arena::CreateMessage<v1::SubmitAllToAllRequest>(&arena);
  absl::Status status = BuildSubmission(exchange, segments_.get(), world_size(), rank_, &submission);
  if (!status.ok()) return status;

  absl::MutexLock lock(&mutex_);
  if (!broken_.ok()) return broken_;
  v1::JobId id;
  *id.mutable_epoch() = epoch_;
  id.set_seq(next_seq_);
  id.set_rank(rank_);
  *submission.request->mutable_job() = id;
  // Before the daemon hears of it: if it dies now, it may have started to write.
  auto core = std::make_shared<JobCore>(session_, std::move(id), std::move(submission.segments));
  if (status = session_->AddJob(core); !status.ok()) return status;
  bool known = true;
  status = HandOver(*submission.request, &known);
  if (!status.ok()) {
    core->Finish(status, /*quiescent=*/known);
    if (!known) broken_ = status;
    return status;
  }
  ++next_seq_;
  submission.self.Run();
  return std::make_shared<JobHandle>(std::move(core));
}

absl::Status GroupImpl::HandOver(const v1::SubmitAllToAllRequest& request, bool* known) {
  const absl::Time give_up = absl::Now() + kGiveUp;
  absl::Duration pause = kFirstPause;
  *known = true;
  for (int refusals = 0;;) {
    const absl::Status status = session_->rpc().Submit(request, kCallTimeout);
    if (!LeavesAcceptanceOpen(status)) return status;
    *known = false;
    if (absl::Status lost = session_->Usable(); !lost.ok()) return lost;
    // The same number again is the same job. Twice UNAVAILABLE is more likely a daemon that drains: ask for the job.
    refusals = absl::IsUnavailable(status) ? refusals + 1 : 0;
    if (refusals >= 2) {
      const auto report = session_->rpc().WaitJob(request.job(), absl::ZeroDuration(), kCallTimeout);
      if (report.ok() || absl::IsNotFound(report.status())) {
        *known = true;
        return report.ok() ? absl::OkStatus() : status;
      }
    }
    if (absl::Now() >= give_up) {
      return absl::UnavailableError(absl::StrCat("whether railsd accepted job ", request.job().seq(), " of group ",
                                                 name_, " is not known (", status.message(),
                                                 "): leave the group and join again"));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::Status GroupImpl::Leave() {
  absl::MutexLock lock(&mutex_);
  if (absl::IsFailedPrecondition(broken_)) return absl::OkStatus();  // left before
  broken_ = absl::FailedPreconditionError(absl::StrCat("this client has left group ", name_));
  if (absl::Status status = session_->Usable(); !status.ok()) return status;
  v1::LeaveGroupRequest request;
  *request.mutable_epoch() = epoch_;
  request.set_rank(rank_);
  return session_->rpc().Leave(request, kCallTimeout);
}

}  // namespace rails::internal
