// The calls of trainers. gRPC's services and the ring read a request, run the call here and carry its answer back.
#ifndef RAILSD_DAEMON_SERVICES_CALLS_H_
#define RAILSD_DAEMON_SERVICES_CALLS_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/rpc/call_counters.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/session.pb.h"

namespace railsd {

struct ServiceContext;

// One call, which the engine answers later unless the client gives it up first. Any thread.
class Call {
 public:
  using Fill = absl::FunctionRef<void(google::protobuf::Message*)>;

  virtual ~Call() = default;

  // Answers once. `fill` writes the response, if the answer is OK. False: the call had its answer before, or the answer
  // cannot reach the client.
  bool Answer(
      const absl::Status& status, Fill fill = [](google::protobuf::Message*) {});
  void GiveUp() { Answer(absl::CancelledError("the client cancelled the call")); }
  bool finished() const;
  // `undo` runs if the client gives the call up at the same time as Answer() finishes it. Only for carriers whose
  // client cannot tell that it has been answered.
  virtual void OnLostAnswer(absl::AnyInvocable<void() &&>) {}

 protected:
  // `method`: a literal, "JobService/WaitJob".
  Call(std::shared_ptr<CallCounters> counters, absl::string_view method)
      : counters_(std::move(counters)), method_(method) {}

 private:
  // Called once. False: the answer cannot reach the client.
  virtual bool Deliver(const absl::Status& status, Fill fill) = 0;

  const std::shared_ptr<CallCounters> counters_;
  const absl::string_view method_;
  mutable absl::Mutex mutex_;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// A kind of call. `run` uses the request until it returns. `time_left`: until the carrier's deadline.
template <typename RequestType, typename ResponseType>
struct CallKind {
  using Request = RequestType;
  using Response = ResponseType;
  absl::string_view method;
  void (*run)(const std::shared_ptr<const ServiceContext>& context, SessionId session, const Request& request,
              absl::Duration time_left, const std::shared_ptr<Call>& call);
};

extern const CallKind<rails::v1::RemoveSegmentRequest, rails::v1::RemoveSegmentResponse> kRemoveSegment;
extern const CallKind<rails::v1::JoinGroupRequest, rails::v1::JoinGroupResponse> kJoinGroup;
extern const CallKind<rails::v1::LeaveGroupRequest, rails::v1::LeaveGroupResponse> kLeaveGroup;
extern const CallKind<rails::v1::SubmitAllToAllRequest, rails::v1::SubmitAllToAllResponse> kSubmitAllToAll;
extern const CallKind<rails::v1::PrepareAllToAllRequest, rails::v1::PrepareAllToAllResponse> kPrepareAllToAll;
extern const CallKind<rails::v1::SubmitPreparedRequest, rails::v1::SubmitPreparedResponse> kSubmitPrepared;
extern const CallKind<rails::v1::ReleasePreparedRequest, rails::v1::ReleasePreparedResponse> kReleasePrepared;
extern const CallKind<rails::v1::WaitJobRequest, rails::v1::WaitJobResponse> kWaitJob;
extern const CallKind<rails::v1::CancelJobRequest, rails::v1::CancelJobResponse> kCancelJob;

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICES_CALLS_H_
