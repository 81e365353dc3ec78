// A unary call that the engine answers later, unless the client cancels it first. Private to the services: this header
// pulls in gRPC.
#ifndef RAILSD_DAEMON_RPC_DEFERRED_CALL_H_
#define RAILSD_DAEMON_RPC_DEFERRED_CALL_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>
#include <spdlog/logger.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "daemon/services/calls.h"
#include "daemon/services/services.h"
#include "daemon/session/session_registry.h"

namespace railsd {

inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

// The session of the call's token. Nullopt if there is none, or if it is of another tenant than the socket.
inline std::optional<SessionIdentity> CallerOf(grpc::CallbackServerContext& call, const ServiceContext& context) {
  const auto token = call.client_metadata().find("rails-session-token");
  if (token == call.client_metadata().end()) return std::nullopt;
  std::optional<SessionIdentity> caller =
      context.sessions->Find(absl::string_view(token->second.data(), token->second.size()));
  if (caller && !context.tenant.empty() && caller->info.tenant != context.tenant) {
    context.log->warn("session_of_another_tenant session={} tenant={} socket_of={}", caller->id.value(),
                      caller->info.tenant, context.tenant);
    return std::nullopt;
  }
  return caller;
}

inline absl::Status NoSession() {
  return absl::UnauthenticatedError(
      "metadata rails-session-token: missing or of no living session; open one on the descriptor socket");
}

// Time until the call's deadline.
inline absl::Duration TimeLeft(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteDuration();
  return std::max(absl::FromChrono(deadline) - absl::Now(), absl::ZeroDuration());
}

// Lives until gRPC and the last callback of the agent have released it. Only `fill` of Answer() may write the response:
// once the call is finished, gRPC has freed it.
class DeferredCall final : public Call, public grpc::ServerUnaryReactor {
 public:
  // `method`: a name of CallCounters; outlives the call.
  DeferredCall(const ServiceContext& context, absl::string_view method, google::protobuf::Message* response)
      : Call(context.calls, method), response_(response) {}
  static std::shared_ptr<DeferredCall> Make(const ServiceContext& context, absl::string_view method,
                                            google::protobuf::Message* response = nullptr) {
    auto call = std::make_shared<DeferredCall>(context, method, response);
    call->self_ = call;
    return call;
  }

  // Also runs `undo` if the call is cancelled after Answer(), because the client may then not have received the OK.
  void OnLostAnswer(absl::AnyInvocable<void() &&> undo) override {
    absl::MutexLock lock(&mutex_);
    undo_ = std::move(undo);
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    GiveUp();
  }

  void OnDone() override {
    absl::AnyInvocable<void() &&> undo;
    {
      absl::MutexLock lock(&mutex_);
      if (cancelled_) undo = std::move(undo_);
      undo_ = nullptr;
    }
    if (undo) std::move(undo)();
    const std::shared_ptr<DeferredCall> last = std::move(self_);
  }

 private:
  bool Deliver(const absl::Status& status, Fill fill) override {
    if (status.ok()) fill(response_);
    grpc::ServerUnaryReactor::Finish(ToGrpc(status));
    return true;
  }

  google::protobuf::Message* const response_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::AnyInvocable<void() &&> undo_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DeferredCall> self_;  // until OnDone()
};

// Begins a call that needs a session: runs `then(call, caller)`, or answers NoSession(). Returns the call's reactor.
template <typename Then>
grpc::ServerUnaryReactor* ForSession(const ServiceContext& context, absl::string_view method,
                                     grpc::CallbackServerContext* call_context, google::protobuf::Message* response,
                                     Then then) {
  const std::shared_ptr<DeferredCall> call = DeferredCall::Make(context, method, response);
  if (const std::optional<SessionIdentity> caller = CallerOf(*call_context, context)) {
    then(call, *caller);
  } else {
    call->Answer(NoSession());
  }
  return call.get();
}

// Runs a trainer's call.
template <typename Kind>
grpc::ServerUnaryReactor* Run(const Kind& kind, const std::shared_ptr<const ServiceContext>& context,
                              grpc::CallbackServerContext* call_context, const typename Kind::Request* request,
                              typename Kind::Response* response) {
  return ForSession(*context, kind.method, call_context, response, [&](const auto& call, const auto& caller) {
    kind.run(context, caller.id, *request, TimeLeft(*call_context), call);
  });
}

}  // namespace railsd

#endif  // RAILSD_DAEMON_RPC_DEFERRED_CALL_H_
