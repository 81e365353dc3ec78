#include "client/src/group.h"

#include <google/protobuf/arena.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/src/membership.h"
#include "client/src/submission.h"

namespace rails::internal {
absl::StatusOr<std::unique_ptr<Group>> GroupImpl::Join(const GroupOptions& options, std::shared_ptr<Session> session,
                                                       std::shared_ptr<SegmentTable> segments) {
  if (absl::Status status = session->Usable(); !status.ok()) return status;
  absl::StatusOr<v1::JoinGroupResponse> joined = JoinGroup(*session, options, /*next_seq=*/1, options.timeout);
  if (!joined.ok()) return joined.status();
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

GroupImpl::~GroupImpl() { Leave().IgnoreError(); }  // a lost session has already ended the membership

absl::StatusOr<std::shared_ptr<Job>> GroupImpl::Submit(const AllToAllv& exchange, absl::Duration timeout) {
  if (absl::Status status = session_->Usable(); !status.ok()) return status;
  if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
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
  // The session must know the job before the daemon does: if the daemon then dies, it may have begun to write.
  auto core = std::make_shared<JobCore>(session_, std::move(id), std::move(submission.segments));
  if (status = session_->AddJob(core); !status.ok()) return status;
  bool known = true;
  status = HandOver(*session_, name_, *submission.request, timeout, &known);
  if (!status.ok()) {
    core->Finish(status, /*quiescent=*/known);
    if (!known) broken_ = status;
    return status;
  }
  ++next_seq_;
  submission.self.Run();
  return std::make_shared<JobHandle>(std::move(core));
}

absl::Status GroupImpl::Leave() {
  if (absl::Status status = session_->owner().Check(); !status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (absl::IsFailedPrecondition(broken_)) return absl::OkStatus();  // this client has already left
  broken_ = absl::FailedPreconditionError(absl::StrCat("this client has left group ", name_));
  if (absl::Status status = session_->Usable(); !status.ok()) return status;
  v1::LeaveGroupRequest request;
  *request.mutable_epoch() = epoch_;
  request.set_rank(rank_);
  return session_->rpc().Leave(request, kCallTimeout);
}

}  // namespace rails::internal
