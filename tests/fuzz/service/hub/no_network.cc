// What the hub makes when it listens and dials, and this one does neither.
#include <spdlog/sinks/null_sink.h>

#include "daemon/lifecycle/logging.h"
#include "daemon/peer/lanes.h"
#include "daemon/peer/streams.h"
#include "daemon/service/rpc_server.h"
#include "daemon/tls/credentials.h"

namespace railsd {

std::unique_ptr<Dialler> Dialler::Make(const std::string&, uint64_t, const TlsFiles*) { return nullptr; }
std::shared_ptr<grpc::Service> MakePeerService(StreamHandler*, PeerServiceOptions) { return nullptr; }
absl::StatusOr<std::unique_ptr<Lanes>> Lanes::Start(absl::Duration, absl::Duration, LaneHandler*) {
  return absl::UnimplementedError("no network");
}
absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(RpcServerOptions,
                                                            std::vector<std::shared_ptr<grpc::Service>>) {
  return absl::UnimplementedError("no network");
}
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles*) { return nullptr; }

std::shared_ptr<spdlog::logger> NullLogger() {
  return std::make_shared<spdlog::logger>("null", std::make_shared<spdlog::sinks::null_sink_mt>());
}

}  // namespace railsd
