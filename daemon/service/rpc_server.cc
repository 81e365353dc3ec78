#include "daemon/service/rpc_server.h"

#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/readiness.h"
#include "daemon/service/calls_begun.h"

namespace railsd {
namespace {

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::min<int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<int>::max()));
}

// Of services that are ours the message is one of protobuf; health and reflection have other kinds.
constexpr absl::string_view kOwnServices = "/rails.";

// Holds one call to its limits, and counts it when its status is sent; says whose connection has spoken.
class CallInterceptor final : public grpc::experimental::Interceptor {
 public:
  CallInterceptor(grpc::experimental::ServerRpcInfo* info, CallCounters* calls, std::shared_ptr<CallGuard> guard,
                  ConnectionLedger* ledger)
      : info_(*info), calls_(calls), guard_(std::move(guard)), ledger_(*ledger) {
    // gRPC knows the call here already, but of streams that it serves by threads.
    if (info_.server_context()->c_call() != nullptr) Begin();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Points = grpc::experimental::InterceptionHookPoints;
    if (!call_ && methods->QueryInterceptionHookPoint(Points::POST_RECV_INITIAL_METADATA)) Begin();
    if (methods->QueryInterceptionHookPoint(Points::POST_RECV_MESSAGE)) CheckRequest(methods->GetRecvMessage());
    if (calls_ != nullptr && methods->QueryInterceptionHookPoint(Points::PRE_SEND_STATUS)) {
      calls_->Count(info_.method(), static_cast<int>(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  void Begin() {
    ledger_.Spoke(info_.server_context()->peer());
    call_.emplace(guard_.get(), info_.server_context());
  }

  // Before the method sees it. Streams of requests look themselves.
  void CheckRequest(void* message) {
    using Type = grpc::experimental::ServerRpcInfo::Type;
    const bool one = info_.type() == Type::UNARY || info_.type() == Type::SERVER_STREAMING;
    if (!call_ || message == nullptr || !one || !absl::StartsWith(info_.method(), kOwnServices)) return;
    call_->CheckMessage(static_cast<google::protobuf::Message*>(message)->ByteSizeLong());
  }

  grpc::experimental::ServerRpcInfo& info_;  // gRPC's own
  CallCounters* const calls_;
  const std::shared_ptr<CallGuard> guard_;
  ConnectionLedger& ledger_;
  std::optional<CallGuard::Call> call_;
};

class InterceptorFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  InterceptorFactory(CallCounters* calls, std::atomic<uint64_t>* taken, std::shared_ptr<CallGuard> guard,
                     ConnectionLedger* ledger)
      : calls_(calls), taken_(taken), guard_(std::move(guard)), ledger_(ledger) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    taken_->fetch_add(1, std::memory_order_relaxed);
    return new CallInterceptor(info, calls_, guard_, ledger_);  // gRPC owns it
  }

 private:
  CallCounters* const calls_;
  std::atomic<uint64_t>* const taken_;
  const std::shared_ptr<CallGuard> guard_;
  ConnectionLedger* const ledger_;
};

CallLimits CallLimitsOf(const RpcServerOptions& options) {
  return {options.max_calls_per_connection, options.calls_limit, options.max_headers_bytes, options.max_message_bytes};
}

// gRPC's own limits are a second wall, at twice ours: what it refuses it tells nobody of.
int SecondWall(uint64_t limit) {
  return static_cast<int>(std::min<uint64_t>(2 * limit, std::numeric_limits<int>::max()));
}

void SetLimits(const RpcServerOptions& options, grpc::ServerBuilder* builder) {
  // The gate ends what is late before, and counts it; this is for what it cannot tell apart.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              Milliseconds(2 * options.gate.handshake + absl::Seconds(2)));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(options.idle));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, static_cast<int>(options.max_calls_per_connection));
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, SecondWall(options.max_headers_bytes));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder->SetMaxReceiveMessageSize(SecondWall(options.max_message_bytes));
  builder->SetMaxSendMessageSize(-1);
  // gRPC takes a message in whole before it looks whether it is too long, whatever its beginning says.
  grpc::ResourceQuota memory;
  memory.Resize(options.max_memory_bytes);
  builder->SetResourceQuota(memory);
  // Only health and reflection are served by threads of their own.
  builder->SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, 200);
  builder->SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder->SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
}

class Server final : public RpcServer {
 public:
  Server(std::vector<std::shared_ptr<grpc::Service>> services, const RpcServerOptions& options)
      : services_(std::move(services)),
        credentials_(options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials()),
        ledger_(options.ledger != nullptr ? options.ledger : std::make_shared<ConnectionLedger>()),
        guard_(std::make_shared<CallGuard>(CallLimitsOf(options), options.gate.refused, options.refused_calls)) {}
  ~Server() override { Shutdown(absl::ZeroDuration()); }

  absl::Status Listen(const RpcServerOptions& options) {
    absl::StatusOr<Listeners> listeners = ListenOn(options.address);
    if (!listeners.ok()) return listeners.status();
    port_ = listeners->port;
    grpc::ServerBuilder builder;
    SetLimits(options, &builder);
    const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
        builder.experimental().AddExternalConnectionAcceptor(
            grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials_);
    for (const std::shared_ptr<grpc::Service>& service : services_) builder.RegisterService(service.get());
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
    interceptors.push_back(std::make_unique<InterceptorFactory>(options.calls, &calls_taken_, guard_, ledger_.get()));
    builder.experimental().SetInterceptorCreators(std::move(interceptors));
    server_ = calls_begun_.BuildAndStart(&builder);
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options.address, ": gRPC cannot start there"));
    }
    for (const std::string& name : options.service_names) {
      server_->GetHealthCheckService()->SetServingStatus(name, false);
    }
    server_->GetHealthCheckService()->SetServingStatus(std::string(kLiveService), false);
    SetHealth(false, true);
    GateOptions gate_options = options.gate;
    gate_options.look = [this, counters = options.gate.counters] { CountCalls(*counters); };
    absl::StatusOr<std::unique_ptr<ConnectionGate>> gate =
        ConnectionGate::Start(*std::move(listeners), options.credentials != nullptr, std::move(gate_options),
                              ledger_.get(), [acceptor](UniqueFd connection) {
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
  // gRPC counts a call before it is taken, so what is taken now has begun by the time that gRPC is asked.
  void CountCalls(ConnectionCounters& counters) {
    const uint64_t taken = calls_taken_.exchange(0, std::memory_order_relaxed);
    counters.calls_begun.fetch_add(calls_begun_.TakeNew(), std::memory_order_relaxed);
    counters.calls_taken.fetch_add(taken, std::memory_order_release);
  }

  const std::vector<std::shared_ptr<grpc::Service>> services_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // asked at each connection, to the server's end
  const std::shared_ptr<ConnectionLedger> ledger_;              // told by calls
  const std::shared_ptr<CallGuard> guard_;                      // the same
  CallsBegun calls_begun_;                                      // the gate's, once that runs
  std::atomic<uint64_t> calls_taken_{0};                        // since the gate counted last
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
  auto server = std::make_unique<Server>(std::move(services), options);
  if (absl::Status status = server->Listen(options); !status.ok()) return status;
  return server;
}

}  // namespace railsd
