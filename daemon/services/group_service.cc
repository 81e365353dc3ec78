#include "daemon/rpc/deferred_call.h"
#include "daemon/services/services.h"
#include "rails/v1/group.grpc.pb.h"

namespace railsd {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

class GroupService final : public rails::v1::GroupService::CallbackService {
 public:
  explicit GroupService(std::shared_ptr<const ServiceContext> context) : context_(std::move(context)) {}

  ServerUnaryReactor* JoinGroup(CallbackServerContext* call_context, const rails::v1::JoinGroupRequest* request,
                                rails::v1::JoinGroupResponse* response) override {
    return Run(kJoinGroup, context_, call_context, request, response);
  }

  ServerUnaryReactor* LeaveGroup(CallbackServerContext* call_context, const rails::v1::LeaveGroupRequest* request,
                                 rails::v1::LeaveGroupResponse* response) override {
    return Run(kLeaveGroup, context_, call_context, request, response);
  }

 private:
  const std::shared_ptr<const ServiceContext> context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeGroupService(std::shared_ptr<const ServiceContext> context) {
  return std::make_shared<GroupService>(std::move(context));
}

}  // namespace railsd
