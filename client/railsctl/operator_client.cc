#include "client/railsctl/operator_client.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rails/v1/operator.grpc.pb.h"

namespace rails::ctl {
namespace {

// Longest drain limit that a daemon accepts.
constexpr absl::Duration kLongestDrain = absl::Hours(24);

}  // namespace

struct OperatorClient::Impl {
  std::string socket;
  absl::Duration timeout;
  std::unique_ptr<v1::OperatorService::Stub> stub;
  absl::Mutex mutex;
  bool cancelled ABSL_GUARDED_BY(mutex) = false;
  absl::flat_hash_set<grpc::ClientContext*> under_way ABSL_GUARDED_BY(mutex);

  // An error of the socket file says more than gRPC's "failed to connect".
  absl::Status CheckSocket() const {
    if (access(socket.c_str(), R_OK | W_OK) == 0) return absl::OkStatus();
    if (errno == EACCES || errno == EPERM) {
      return absl::PermissionDeniedError(
          absl::StrCat("may not open ", socket, "; operator calls need its owner or group"));
    }
    return absl::UnavailableError(absl::StrCat(socket, ": ", std::strerror(errno),
                                               "; is railsd running, and is --socket-dir its socket directory?"));
  }

  void Begin(grpc::ClientContext* context) {
    const absl::MutexLock lock(&mutex);
    under_way.insert(context);
    if (cancelled) context->TryCancel();
  }
  void End(grpc::ClientContext* context) {
    const absl::MutexLock lock(&mutex);
    under_way.erase(context);
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (v1::OperatorService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                  Response*),
                                const Request& request) {
    return Call(method, request, timeout);
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (v1::OperatorService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                                  Response*),
                                const Request& request, absl::Duration patience) {
    if (absl::Status status = CheckSocket(); !status.ok()) return status;
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + patience));
    Response response;
    Begin(&context);
    const grpc::Status status = (stub.get()->*method)(&context, request, &response);
    End(&context);
    if (status.ok()) return response;
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(
          absl::StrCat("no daemon answers on ", socket, " (", status.error_message(), "); is railsd running?"));
    }
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
        std::chrono::system_clock::now() >= context.deadline()) {
      return absl::DeadlineExceededError(
          absl::StrCat("the daemon on ", socket, " did not answer within ", absl::FormatDuration(patience)));
    }
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat(socket, ": ", status.error_message()));
  }
};

OperatorClient::OperatorClient(const std::string& socket_dir, absl::Duration timeout)
    : impl_(std::make_unique<Impl>()) {
  std::error_code ignored;  // CheckSocket() reports a path that cannot be made absolute
  const auto path = std::filesystem::absolute(std::filesystem::path(socket_dir) / "operator.sock", ignored);
  impl_->socket = path.lexically_normal().string();
  impl_->timeout = timeout;
  // Sets an authority, because HTTP/2 does not accept the path of a Unix socket. Ignores proxies of the environment.
  grpc::ChannelArguments arguments;
  arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, "localhost");
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  // Short, so that a live view reaches a restarted daemon soon.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  impl_->stub = v1::OperatorService::NewStub(
      grpc::CreateCustomChannel("unix://" + impl_->socket, grpc::InsecureChannelCredentials(), arguments));
}

OperatorClient::~OperatorClient() = default;

void OperatorClient::Cancel() {
  const absl::MutexLock lock(&impl_->mutex);
  impl_->cancelled = true;
  for (grpc::ClientContext* context : impl_->under_way) context->TryCancel();
}

absl::StatusOr<v1::GetStatusResponse> OperatorClient::GetStatus() {
  return impl_->Call(&v1::OperatorService::Stub::GetStatus, v1::GetStatusRequest());
}

absl::StatusOr<v1::ListRailsResponse> OperatorClient::ListRails() {
  return impl_->Call(&v1::OperatorService::Stub::ListRails, v1::ListRailsRequest());
}

absl::StatusOr<v1::ListPeersResponse> OperatorClient::ListPeers() {
  return impl_->Call(&v1::OperatorService::Stub::ListPeers, v1::ListPeersRequest());
}

absl::StatusOr<v1::ListJobsResponse> OperatorClient::ListJobs(uint32_t finished_limit) {
  v1::ListJobsRequest request;
  request.set_finished_limit(finished_limit);
  return impl_->Call(&v1::OperatorService::Stub::ListJobs, request);
}

absl::StatusOr<v1::GetOverviewResponse> OperatorClient::GetOverview(uint32_t finished_limit) {
  v1::GetOverviewRequest request;
  request.set_finished_limit(finished_limit);
  return impl_->Call(&v1::OperatorService::Stub::GetOverview, request);
}

absl::StatusOr<v1::ExplainJobResponse> OperatorClient::ExplainJob(const v1::ExplainJobRequest& request) {
  return impl_->Call(&v1::OperatorService::Stub::ExplainJob, request);
}

absl::Status OperatorClient::DrainNode(absl::Duration limit) {
  v1::DrainNodeRequest request;
  request.set_timeout_seconds(absl::ToDoubleSeconds(limit));
  // The daemon ends the call at the limit. This side waits longer, so that the answer arrives.
  const absl::Duration patience = (limit > absl::ZeroDuration() ? limit : kLongestDrain) + impl_->timeout;
  return impl_->Call(&v1::OperatorService::Stub::DrainNode, request, patience).status();
}

absl::Status OperatorClient::UndrainNode() {
  return impl_->Call(&v1::OperatorService::Stub::UndrainNode, v1::UndrainNodeRequest()).status();
}

absl::StatusOr<v1::ReloadResponse> OperatorClient::Reload() {
  return impl_->Call(&v1::OperatorService::Stub::Reload, v1::ReloadRequest());
}

absl::StatusOr<v1::RailStatus> OperatorClient::DrainRail(const std::string& rail) {
  v1::DrainRailRequest request;
  request.set_rail(rail);
  absl::StatusOr<v1::DrainRailResponse> response = impl_->Call(&v1::OperatorService::Stub::DrainRail, request);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_rail());
}

absl::StatusOr<v1::RailStatus> OperatorClient::UndrainRail(const std::string& rail) {
  v1::UndrainRailRequest request;
  request.set_rail(rail);
  absl::StatusOr<v1::UndrainRailResponse> response = impl_->Call(&v1::OperatorService::Stub::UndrainRail, request);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_rail());
}

absl::Status OperatorClient::RedialPeer(const std::string& node) {
  v1::RedialPeerRequest request;
  request.set_node(node);
  return impl_->Call(&v1::OperatorService::Stub::RedialPeer, request).status();
}

absl::StatusOr<std::string> OperatorClient::SetLogLevel(const std::string& level) {
  v1::SetLogLevelRequest request;
  request.set_level(level);
  absl::StatusOr<v1::SetLogLevelResponse> response = impl_->Call(&v1::OperatorService::Stub::SetLogLevel, request);
  if (!response.ok()) return response.status();
  return response->level_before();
}

}  // namespace rails::ctl
