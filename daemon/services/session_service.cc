#include "daemon/rpc/deferred_call.h"
#include "daemon/services/services.h"
#include "rails/v1/session.grpc.pb.h"

namespace railsd {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

class SessionService final : public rails::v1::SessionService::CallbackService {
 public:
  explicit SessionService(std::shared_ptr<const ServiceContext> context) : context_(std::move(context)) {}

  ServerUnaryReactor* GetSession(CallbackServerContext* call_context, const rails::v1::GetSessionRequest*,
                                 rails::v1::GetSessionResponse* response) override {
    return ForSession(
        *context_, "SessionService/GetSession", call_context, response, [&](const auto& call, const auto& caller) {
          context_->agent->Snapshot([call, response, caller, context = context_](const AgentSnapshot& snapshot) {
            call->Answer(absl::OkStatus(), [&](auto*) {
              response->set_session_id(caller.id.value());
              response->set_pid(caller.info.pid);
              response->set_uid(caller.info.uid);
              response->set_gid(caller.info.gid);
              response->set_tenant(caller.info.tenant);
              response->set_node(context->node);
              response->set_boot_id(context->boot.value());
              for (const SessionView& session : snapshot.sessions) {
                if (session.id != caller.id) continue;
                response->set_segments(session.segments);
                response->set_segment_bytes(session.segment_bytes);
              }
            });
          });
        });
  }

  ServerUnaryReactor* RemoveSegment(CallbackServerContext* call_context, const rails::v1::RemoveSegmentRequest* request,
                                    rails::v1::RemoveSegmentResponse* response) override {
    return Run(kRemoveSegment, context_, call_context, request, response);
  }

 private:
  const std::shared_ptr<const ServiceContext> context_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeSessionService(std::shared_ptr<const ServiceContext> context) {
  return std::make_shared<SessionService>(std::move(context));
}

}  // namespace railsd
