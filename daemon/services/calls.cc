#include "daemon/services/calls.h"

#include <algorithm>
#include <utility>

#include "agent/base/steady_now.h"
#include "daemon/services/conversion.h"
#include "daemon/services/services.h"

namespace railsd {
namespace {

using Context = std::shared_ptr<const ServiceContext>;
using CallPtr = std::shared_ptr<Call>;
using google::protobuf::Message;

// A wait at the agent cannot be cancelled. WaitJob waits in slices, so that waits of clients that left end.
constexpr absl::Duration kWaitSlice = absl::Seconds(20);

bool IsTerminal(JobState state) { return state == JobState::kDone || state == JobState::kFailed; }

// Passes the agent's status on.
auto AnswerTo(const CallPtr& call) {
  return [call](const absl::Status& status) { call->Answer(status); };
}

void RemoveSegment(const Context& context, SessionId session, const rails::v1::RemoveSegmentRequest& request,
                   absl::Duration, const CallPtr& call) {
  context->agent->RemoveSegment(session, SegmentId(request.segment_id()), AnswerTo(call));
}

// Counts the limits that a refused join exceeds.
void CountLimits(const ServiceContext& context, const rails::v1::JoinGroupRequest& request) {
  const AgentLimits& limits = context.limits;
  if (request.name().size() > limits.max_name_bytes) context.refused->Count(Limit::kName);
  if (request.join_key().size() > limits.max_join_key_bytes) context.refused->Count(Limit::kJoinKey);
  if (request.world_size() > limits.max_world_size) context.refused->Count(Limit::kWorldSize);
}

void JoinGroup(const Context& context, SessionId session, const rails::v1::JoinGroupRequest& request,
               absl::Duration time_left, const CallPtr& call) {
  absl::StatusOr<JoinRequest> join = JoinFrom(request, session, context->limits);
  if (!join.ok()) {
    CountLimits(*context, request);
    call->Answer(join.status());
    return;
  }
  join->timeout = std::min(join->timeout, time_left);
  const Rank rank = join->rank;
  context->agent->Join(*std::move(join), [context, session, rank, call](const absl::StatusOr<GroupView>& group) {
    if (!group.ok()) {
      call->Answer(group.status());
      return;
    }
    const auto leave = [context, session, rank, epoch = group->epoch] {
      context->agent->Leave(session, epoch, rank, [](const absl::Status&) {});
    };
    call->OnLostAnswer(leave);
    const auto fill = [&](Message* response) { JoinTo(*group, static_cast<rails::v1::JoinGroupResponse*>(response)); };
    // If the client has left meanwhile, its rank must not stay a member.
    if (!call->Answer(absl::OkStatus(), fill)) leave();
  });
}

void LeaveGroup(const Context& context, SessionId session, const rails::v1::LeaveGroupRequest& request, absl::Duration,
                const CallPtr& call) {
  const absl::StatusOr<Epoch> epoch = EpochFrom(request.epoch(), "epoch");
  if (!epoch.ok()) {
    call->Answer(epoch.status());
    return;
  }
  context->agent->Leave(session, *epoch, Rank(request.rank()), AnswerTo(call));
}

// Counts the limit that the flows of a submission, or of ranges to be prepared, exceed.
template <typename Request>
void CountFlowLimits(const ServiceContext& context, const Request& request) {
  const int flows = std::max(request.sends_size(), request.receives_size());
  const bool world = static_cast<uint64_t>(flows) > context.limits.max_world_size;
  context.refused->Count(world ? Limit::kWorldSize : Limit::kRangesPerSubmission);
}

// Submits a submission that was read from a request.
void Submit(const Context& context, absl::StatusOr<Submission> submission, const CallPtr& call) {
  const absl::Status queued =
      submission.ok() ? context->agent->Submit(*std::move(submission), AnswerTo(call)) : submission.status();
  if (!queued.ok()) call->Answer(queued);
}

void SubmitAllToAll(const Context& context, SessionId session, const rails::v1::SubmitAllToAllRequest& request,
                    absl::Duration, const CallPtr& call) {
  absl::StatusOr<Submission> submission = SubmissionFrom(request, session, context->limits);
  if (absl::IsResourceExhausted(submission.status())) CountFlowLimits(*context, request);
  Submit(context, std::move(submission), call);
}

void SubmitPrepared(const Context& context, SessionId session, const rails::v1::SubmitPreparedRequest& request,
                    absl::Duration, const CallPtr& call) {
  Submit(context, PreparedSubmissionFrom(request, session), call);
}

void PrepareAllToAll(const Context& context, SessionId session, const rails::v1::PrepareAllToAllRequest& request,
                     absl::Duration, const CallPtr& call) {
  absl::StatusOr<Submission> layout = LayoutFrom(request, session, context->limits);
  if (absl::IsResourceExhausted(layout.status())) CountFlowLimits(*context, request);
  const absl::Status queued =
      layout.ok() ? context->agent->Prepare(*std::move(layout), AnswerTo(call)) : layout.status();
  if (!queued.ok()) call->Answer(queued);
}

void ReleasePrepared(const Context& context, SessionId session, const rails::v1::ReleasePreparedRequest& request,
                     absl::Duration, const CallPtr& call) {
  context->agent->ReleasePrepared(session, PreparedId(request.prepared_id()), AnswerTo(call));
}

// Runs `then(job)`. If the request names no valid job, answers with the error.
template <typename Request, typename Then>
void ForJob(const Request& request, const CallPtr& call, Then then) {
  const absl::StatusOr<JobOfRank> job = JobFrom(request.job(), request.has_job());
  if (job.ok()) {
    then(*job);
  } else {
    call->Answer(job.status());
  }
}

void WaitOn(Agent* agent, const CallPtr& call, SessionId session, JobOfRank job, absl::Time until) {
  const absl::Duration left = std::max(until - SteadyNow(), absl::ZeroDuration());
  agent->Wait(session, job.job, job.rank, std::min(left, kWaitSlice), [=](absl::StatusOr<JobReport> report) {
    if (!report.ok()) {
      call->Answer(report.status());
    } else if (IsTerminal(report->state) || SteadyNow() >= until) {
      call->Answer(absl::OkStatus(), [&](Message* response) {
        ReportTo(*report, static_cast<rails::v1::WaitJobResponse*>(response)->mutable_report());
      });
    } else if (!call->finished()) {
      WaitOn(agent, call, session, job, until);
    }
  });
}

void WaitJob(const Context& context, SessionId session, const rails::v1::WaitJobRequest& request,
             absl::Duration time_left, const CallPtr& call) {
  const absl::Duration timeout = std::min(FromMilliseconds(request.timeout_milliseconds()), time_left);
  ForJob(request, call,
         [&](const JobOfRank& job) { WaitOn(context->agent, call, session, job, SteadyNow() + timeout); });
}

void CancelJob(const Context& context, SessionId session, const rails::v1::CancelJobRequest& request, absl::Duration,
               const CallPtr& call) {
  ForJob(request, call,
         [&](const JobOfRank& job) { context->agent->Cancel(session, job.job, job.rank, AnswerTo(call)); });
}

}  // namespace

bool Call::Answer(const absl::Status& status, Fill fill) {
  absl::MutexLock lock(&mutex_);
  if (finished_) return false;
  finished_ = true;
  counters_->Count(method_, status.code());
  return Deliver(status, fill);
}

bool Call::finished() const {
  absl::MutexLock lock(&mutex_);
  return finished_;
}

const CallKind<rails::v1::RemoveSegmentRequest, rails::v1::RemoveSegmentResponse> kRemoveSegment = {
    "SessionService/RemoveSegment", RemoveSegment};
const CallKind<rails::v1::JoinGroupRequest, rails::v1::JoinGroupResponse> kJoinGroup = {"GroupService/JoinGroup",
                                                                                        JoinGroup};
const CallKind<rails::v1::LeaveGroupRequest, rails::v1::LeaveGroupResponse> kLeaveGroup = {"GroupService/LeaveGroup",
                                                                                           LeaveGroup};
const CallKind<rails::v1::SubmitAllToAllRequest, rails::v1::SubmitAllToAllResponse> kSubmitAllToAll = {
    "JobService/SubmitAllToAll", SubmitAllToAll};
const CallKind<rails::v1::PrepareAllToAllRequest, rails::v1::PrepareAllToAllResponse> kPrepareAllToAll = {
    "JobService/PrepareAllToAll", PrepareAllToAll};
const CallKind<rails::v1::SubmitPreparedRequest, rails::v1::SubmitPreparedResponse> kSubmitPrepared = {
    "JobService/SubmitPrepared", SubmitPrepared};
const CallKind<rails::v1::ReleasePreparedRequest, rails::v1::ReleasePreparedResponse> kReleasePrepared = {
    "JobService/ReleasePrepared", ReleasePrepared};
const CallKind<rails::v1::WaitJobRequest, rails::v1::WaitJobResponse> kWaitJob = {"JobService/WaitJob", WaitJob};
const CallKind<rails::v1::CancelJobRequest, rails::v1::CancelJobResponse> kCancelJob = {"JobService/CancelJob",
                                                                                        CancelJob};

}  // namespace railsd
