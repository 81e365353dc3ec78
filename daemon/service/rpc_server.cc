#include "daemon/service/rpc_server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/readiness.h"

namespace railsd {
namespace {

// Counts one call when its status is sent.
class CountingInterceptor final : public grpc::experimental::Interceptor {
 public:
  CountingInterceptor(const char* method, CallCounters* calls) : method_(method), calls_(*calls) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      calls_.Count(method_, static_cast<int>(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  const char* const method_;  // gRPC's own
  CallCounters& calls_;
};

class CountingFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CountingFactory(CallCounters* calls) : calls_(calls) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new CountingInterceptor(info->method(), calls_);  // gRPC owns it
  }

 private:
  CallCounters* const calls_;
};

class Server final : public RpcServer {
 public:
  Server(std::vector<std::shared_ptr<grpc::Service>> services, std::shared_ptr<grpc::ServerCredentials> credentials)
      : services_(std::move(services)),
        credentials_(credentials != nullptr ? std::move(credentials) : grpc::InsecureServerCredentials()) {}
  ~Server() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const RpcServerOptions& options) {
    grpc::ServerBuilder builder;
    // Two daemons on one address must not share its connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
    builder.SetMaxSendMessageSize(-1);
    // Only health and reflection are served by threads of their own.
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, 200);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
    builder.AddListeningPort(options.address, credentials_, &port_);
    for (const std::shared_ptr<grpc::Service>& service : services_) builder.RegisterService(service.get());
    if (options.calls != nullptr) {
      std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
      interceptors.push_back(std::make_unique<CountingFactory>(options.calls));
      builder.experimental().SetInterceptorCreators(std::move(interceptors));
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options.address, ": the address is not this node's or is in use"));
    }
    for (const std::string& name : options.service_names) {
      server_->GetHealthCheckService()->SetServingStatus(name, false);
    }
    server_->GetHealthCheckService()->SetServingStatus(std::string(kLiveService), false);
    SetHealth(false, true);
    return absl::OkStatus();
  }

  void SetHealth(bool serving, bool live) override {
    server_->GetHealthCheckService()->SetServingStatus(serving);  // of all names
    server_->GetHealthCheckService()->SetServingStatus(std::string(kLiveService), live);
  }

  void Shutdown(absl::Duration grace) override {
    if (server_ == nullptr || stopped_) return;
    stopped_ = true;
    server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
    server_->Wait();
  }

  int port() const override { return port_; }

 private:
  const std::vector<std::shared_ptr<grpc::Service>> services_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // asked at each connection, to the server's end
  std::unique_ptr<grpc::Server> server_;                        // goes before the services
  int port_ = 0;
  bool stopped_ = false;
};

}  // namespace

void InitRpcPlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    // A client's malformed bytes are answered, not printed by the library onto standard error.
    google::protobuf::SetLogHandler(nullptr);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcServerOptions options,
                                                            std::vector<std::shared_ptr<grpc::Service>> services) {
  InitRpcPlugins();
  auto server = std::make_unique<Server>(std::move(services), options.credentials);
  if (absl::Status status = server->Listen(options); !status.ok()) return status;
  return server;
}

}  // namespace railsd
