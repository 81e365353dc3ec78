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

  // Counts the limits that a refused join exceeds.
  void CountLimits(const rails::v1::JoinGroupRequest& request) {
    const AgentLimits& limits = context_->limits;
    if (request.name().size() > limits.max_name_bytes) context_->refused->Count(Limit::kName);
    if (request.join_key().size() > limits.max_join_key_bytes) context_->refused->Count(Limit::kJoinKey);
    if (request.world_size() > limits.max_world_size) context_->refused->Count(Limit::kWorldSize);
  }

  ServerUnaryReactor* JoinGroup(CallbackServerContext* call_context, const rails::v1::JoinGroupRequest* request,
                                rails::v1::JoinGroupResponse* response) override {
    return ForSession(*context_, "GroupService/JoinGroup", *call_context, [&](const auto& call, const auto& caller) {
      absl::StatusOr<JoinRequest> join = JoinFrom(*request, caller.id, context_->limits);
      if (!join.ok()) {
        CountLimits(*request);
        call->Answer(join.status());
        return;
      }
      join->timeout = std::min(join->timeout, TimeLeft(*call_context));
      const Rank rank = join->rank;
      context_->agent->Join(*std::move(join), [call, response, session = caller.id, rank,
                                               context = context_](const absl::StatusOr<GroupView>& group) {
        if (!group.ok()) {
          call->Answer(group.status());
          return;
        }
        const auto leave = [context, session, rank, epoch = group->epoch] {
          context->agent->Leave(session, epoch, rank, [](const absl::Status&) {});
        };
        call->OnLostAnswer(leave);
        // If the client has left meanwhile, its rank must not stay a member.
        if (!call->Answer(absl::OkStatus(), [&] { JoinTo(*group, response); })) leave();
      });
    });
  }

  ServerUnaryReactor* LeaveGroup(CallbackServerContext* call_context, const rails::v1::LeaveGroupRequest* request,
                                 rails::v1::LeaveGroupResponse*) override {
    return ForSession(*context_, "GroupService/LeaveGroup", *call_context, [&](const auto& call, const auto& caller) {
      const absl::StatusOr<Epoch> epoch = EpochFrom(request->epoch(), "epoch");
      if (!epoch.ok()) {
        call->Answer(epoch.status());
        return;
      }
      context_->agent->Leave(caller.id, *epoch, Rank(request->rank()),
                             [call](const absl::Status& status) { call->Answer(status); });
    });
  }

 private:
  const std::shared_ptr<const ServiceContext> context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeGroupService(std::shared_ptr<const ServiceContext> context) {
  return std::make_shared<GroupService>(std::move(context));
}

}  // namespace railsd
