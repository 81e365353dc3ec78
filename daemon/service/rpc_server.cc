#include "daemon/service/rpc_server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/readiness.h"

namespace railsd {
namespace {

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<int>::max()));
}

// Counts one call when its status is sent; says whose connection has spoken.
class CountingInterceptor final : public grpc::experimental::Interceptor {
 public:
  CountingInterceptor(grpc::experimental::ServerRpcInfo* info, CallCounters* calls, ConnectionLedger* ledger)
      : info_(*info), calls_(calls), ledger_(*ledger) {}
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Points = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Points::POST_RECV_INITIAL_METADATA)) {
      ledger_.Spoke(info_.server_context()->peer());
    }
    if (calls_ != nullptr && methods->QueryInterceptionHookPoint(Points::PRE_SEND_STATUS)) {
      calls_->Count(info_.method(), static_cast<int>(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo& info_;  // gRPC's own
  CallCounters* const calls_;
  ConnectionLedger& ledger_;
};

class CountingFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CountingFactory(CallCounters* calls, ConnectionLedger* ledger) : calls_(calls), ledger_(*ledger) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    // Whose call it is gRPC knows here already but of streams that it serves by threads. The fewer have an interceptor,
    // which sees each message, the better.
    const std::string caller = info->server_context()->peer();
    if (!caller.empty()) ledger_.Spoke(caller);
    if (calls_ == nullptr && !caller.empty()) return nullptr;
    return new CountingInterceptor(info, calls_, &ledger_);  // gRPC owns it
  }

 private:
  CallCounters* const calls_;
  ConnectionLedger& ledger_;
};

class Server final : public RpcServer {
 public:
  Server(std::vector<std::shared_ptr<grpc::Service>> services, std::shared_ptr<grpc::ServerCredentials> credentials)
      : services_(std::move(services)),
        credentials_(credentials != nullptr ? std::move(credentials) : grpc::InsecureServerCredentials()) {}
  ~Server() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const RpcServerOptions& options) {
    absl::StatusOr<Listeners> listeners = ListenOn(options.address);
    if (!listeners.ok()) return listeners.status();
    port_ = listeners->port;
    grpc::ServerBuilder builder;
    // The gate ends what is late before, and counts it; this is for what it cannot tell apart.
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               Milliseconds(2 * options.gate.handshake + absl::Seconds(2)));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(options.idle));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options.max_calls_per_connection));
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options.max_headers_bytes));
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
    builder.SetMaxSendMessageSize(-1);
    // gRPC takes a message in whole before it looks whether it is too long, whatever its beginning says.
    grpc::ResourceQuota memory;
    memory.Resize(options.max_memory_bytes);
    builder.SetResourceQuota(memory);
    // Only health and reflection are served by threads of their own.
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, 200);
    builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
    builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
    const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
        builder.experimental().AddExternalConnectionAcceptor(
            grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_);
    for (const std::shared_ptr<grpc::Service>& service : services_) builder.RegisterService(service.get());
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(std::make_unique<CountingFactory>(options.calls, &ledger_));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options.address, ": gRPC cannot start there"));
    }
    for (const std::string& name : options.service_names) {
      server_->GetHealthCheckService()->SetServingStatus(name, false);
    }
    server_->GetHealthCheckService()->SetServingStatus(std::string(kLiveService), false);
    SetHealth(false, true);
    absl::StatusOr<std::unique_ptr<ConnectionGate>> gate = ConnectionGate::Start(
        *std::move(listeners), options.credentials != nullptr, options.gate, &ledger_, [acceptor](UniqueFd connection) {
          grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
          parameters.fd = connection.Release();
          acceptor->HandleNewConnection(&parameters);
        });
    if (!gate.ok()) return gate.status();
    gate_ = *std::move(gate);
    return absl::OkStatus();
  }

  void SetHealth(bool serving, bool live) override {
    server_->GetHealthCheckService()->SetServingStatus(serving);  // of all names
    server_->GetHealthCheckService()->SetServingStatus(std::string(kLiveService), live);
  }

  void Shutdown(absl::Duration grace) override {
    if (server_ == nullptr || stopped_) return;
    stopped_ = true;
    gate_.reset();
    server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
    server_->Wait();
  }

  int port() const override { return port_; }

 private:
  const std::vector<std::shared_ptr<grpc::Service>> services_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // asked at each connection, to the server's end
  ConnectionLedger ledger_;                                     // told by calls
  std::unique_ptr<grpc::Server> server_;                        // goes before the services
  std::unique_ptr<ConnectionGate> gate_;                        // goes before the server
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
