#include "daemon/rpc/rpc_server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/lifecycle/readiness.h"

namespace railsd {
namespace {

constexpr int kMaxSyncThreads = 8;

int ToInt(uint64_t number) { return static_cast<int>(std::min<uint64_t>(number, std::numeric_limits<int>::max())); }

int Milliseconds(absl::Duration duration) { return ToInt(static_cast<uint64_t>(absl::ToInt64Milliseconds(duration))); }

void SetLimits(const RpcServerOptions& options, grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(options.handshake));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(options.idle));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, ToInt(options.max_calls_per_connection));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, ToInt(options.max_headers_bytes));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->SetMaxReceiveMessageSize(ToInt(options.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  // Bounds memory: gRPC receives a whole message before it checks the length that the message's header gives.
  grpc::ResourceQuota quota;
  quota.Resize(options.max_memory_bytes);
  quota.SetMaxThreads(kMaxSyncThreads);
  builder->SetResourceQuota(quota);
  // Only reflection uses these threads, one for each call.
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, 200);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
}

// Called before the first server starts, because plugins are process-wide.
void InitRpcPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Stops protobuf from printing about clients' malformed bytes to standard error. The answer reports them.
    google::protobuf::SetLogHandler(nullptr);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(const RpcServerOptions& options,
                                                            std::vector<std::shared_ptr<grpc::Service>> services) {
  InitRpcPlugins();
  grpc::ServerBuilder builder;
  SetLimits(options, &builder);
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials());
  for (const std::shared_ptr<grpc::Service>& service : services) builder.RegisterService(service.get());
  std::unique_ptr<grpc::Server> made = builder.BuildAndStart();
  if (made == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.address, ": it is in use or cannot be made; see gRPC's message"));
  }
  std::vector<std::string> names = options.service_names;
  names.emplace_back();  // the whole server
  std::unique_ptr<RpcServer> server(new RpcServer(std::move(names), std::move(services), std::move(made)));
  server->SetHealth(false, true);
  return server;
}

RpcServer::RpcServer(std::vector<std::string> names, std::vector<std::shared_ptr<grpc::Service>> services,
                     std::unique_ptr<grpc::Server> server)
    : names_(std::move(names)), services_(std::move(services)), server_(std::move(server)) {}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::SetHealth(bool serving, bool live) {
  // Does not set all names at once: clients that watch `live` would see it change for a moment.
  for (const std::string& name : names_) server_->GetHealthCheckService()->SetServingStatus(name, serving);
  server_->GetHealthCheckService()->SetServingStatus(std::string(kLiveService), live);
}

void RpcServer::Shutdown(absl::Duration grace) {
  if (std::exchange(stopped_, true)) return;
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
}

}  // namespace railsd
