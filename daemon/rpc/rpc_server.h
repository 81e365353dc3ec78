// One gRPC server on one address, with the standard health service and reflection.
#ifndef RAILSD_DAEMON_RPC_RPC_SERVER_H_
#define RAILSD_DAEMON_RPC_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace railsd {

struct RpcServerOptions {
  std::string address;  // "unix:/path"; replaces an existing socket
  uint64_t max_message_bytes = 16 << 20;
  // Services that the health service knows by name besides "", the whole server. All have the same health.
  std::vector<std::string> service_names = {};
  uint32_t max_calls_per_connection = 1024;       // at once
  uint64_t max_headers_bytes = 8192;              // metadata of one call
  uint64_t max_memory_bytes = uint64_t{1} << 30;  // for received data; above it gRPC ends calls
  absl::Duration handshake = absl::Seconds(10);   // until HTTP/2's SETTINGS, then the connection is closed
  absl::Duration idle = absl::Minutes(1);         // without a call, then the connection is closed
};

class RpcServer {
 public:
  // Health is NOT_SERVING until SetHealth(). UNAVAILABLE: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(const RpcServerOptions& options,
                                                          std::vector<std::shared_ptr<grpc::Service>> services);
  ~RpcServer();  // Shutdown(0)
  // Sets the health: `serving` for all service names and the whole server, `live` for kLiveService.
  void SetHealth(bool serving, bool live);
  // Refuses new calls, waits `grace` for running ones, then cancels them. Blocks. A second call does nothing.
  void Shutdown(absl::Duration grace);

 private:
  RpcServer(std::vector<std::string> names, std::vector<std::shared_ptr<grpc::Service>> services,
            std::unique_ptr<grpc::Server> server);

  const std::vector<std::string> names_;  // names whose health is `serving`
  const std::vector<std::shared_ptr<grpc::Service>> services_;
  const std::unique_ptr<grpc::Server> server_;  // destroyed before the services
  bool stopped_ = false;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_RPC_RPC_SERVER_H_
