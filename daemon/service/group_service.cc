#include "daemon/service/conversion.h"
#include "daemon/service/deferred_call.h"
#include "daemon/service/services.h"
#include "rails/v1/group.grpc.pb.h"

namespace railsd {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

class GroupService final : public rails::v1::GroupService::CallbackService {
 public:
  explicit GroupService(std::shared_ptr<const ServiceContext> context) : context_(std::move(context)) {}

  // Of a join that was refused.
  void CountLimits(const rails::v1::JoinGroupRequest& request) {
    const AgentLimits& limits = context_->limits;
    if (request.name().size() > limits.max_name_bytes) context_->refused->Count(Limit::kName);
    if (request.join_key().size() > limits.max_join_key_bytes) context_->refused->Count(Limit::kJoinKey);
    if (request.world_size() > limits.max_world_size) context_->refused->Count(Limit::kWorldSize);
  }

  ServerUnaryReactor* JoinGroup(CallbackServerContext* call_context, const rails::v1::JoinGroupRequest* request,
                                rails::v1::JoinGroupResponse* response) override {
    const auto call = DeferredCall::Make(*context_, "GroupService/JoinGroup");
    const auto caller = CallerOf(*call_context, *context_);
    absl::StatusOr<JoinRequest> join =
        caller ? JoinFrom(*request, caller->id, context_->limits) : absl::StatusOr<JoinRequest>(NoSession());
    if (!join.ok()) {
      if (caller) CountLimits(*request);
      call->Answer(join.status());
      return call.get();
    }
    join->timeout = std::min(join->timeout, TimeLeft(*call_context));
    const SessionId session = join->session;
    const Rank rank = join->rank;
    context_->agent->Join(*std::move(join),
                          [call, response, session, rank, context = context_](absl::StatusOr<GroupView> group) {
                            if (!group.ok()) {
                              call->Answer(group.status());
                              return;
                            }
                            const auto leave = [context, session, rank, epoch = group->epoch] {
                              context->agent->Leave(session, epoch, rank, [](absl::Status) {});
                            };
                            call->OnLostAnswer(leave);
                            // A client that went away meanwhile must not stay a member.
                            if (!call->Answer(absl::OkStatus(), [&] { JoinTo(*group, response); })) leave();
                          });
    return call.get();
  }

  ServerUnaryReactor* LeaveGroup(CallbackServerContext* call_context, const rails::v1::LeaveGroupRequest* request,
                                 rails::v1::LeaveGroupResponse*) override {
    const auto call = DeferredCall::Make(*context_, "GroupService/LeaveGroup");
    const auto caller = CallerOf(*call_context, *context_);
    const absl::StatusOr<Epoch> epoch =
        caller ? EpochFrom(request->epoch(), "epoch") : absl::StatusOr<Epoch>(NoSession());
    if (!epoch.ok()) {
      call->Answer(epoch.status());
      return call.get();
    }
    const Rank rank(request->rank());
    context_->agent->Leave(caller->id, *epoch, rank, [call](absl::Status status) { call->Answer(status); });
    return call.get();
  }

 private:
  const std::shared_ptr<const ServiceContext> context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeGroupService(std::shared_ptr<const ServiceContext> context) {
  return std::make_shared<GroupService>(std::move(context));
}

}  // namespace railsd
