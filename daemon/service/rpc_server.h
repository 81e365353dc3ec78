// One gRPC server on one address, with the standard health service and reflection.
#ifndef RAILSD_DAEMON_SERVICE_RPC_SERVER_H_
#define RAILSD_DAEMON_SERVICE_RPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class ServerCredentials;
class Service;
}  // namespace grpc

namespace railsd {

struct RpcServerOptions {
  std::string address;  // "unix:/path": a socket that is there gives way
  uint64_t max_message_bytes = 16 << 20;
  // Services that the health service knows by name, besides "", the whole server: it answers the same for all.
  std::vector<std::string> service_names = {};
  std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: plain text
  uint32_t max_calls_per_connection = 1024;                        // at once
  uint64_t max_headers_bytes = 8192;                               // of one call's metadata
  uint64_t max_memory_bytes = uint64_t{1} << 30;  // that what has arrived may take; then gRPC ends calls
  absl::Duration handshake = absl::Seconds(10);   // a connection without HTTP/2's SETTINGS for so long is closed
  absl::Duration idle = absl::Minutes(1);         // a connection without a call for so long is closed
};

class RpcServer {
 public:
  // Health says NOT_SERVING until SetHealth(). Error: UNAVAILABLE, the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(RpcServerOptions options,
                                                          std::vector<std::shared_ptr<grpc::Service>> services);
  virtual ~RpcServer() = default;  // Shutdown(0)
  // For the health service: `serving` of all service names and of the whole server, `live` of kLiveService.
  virtual void SetHealth(bool serving, bool live) = 0;
  // Refuses new calls, lets running ones end for `grace`, then cancels them. Blocks. Once only.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_RPC_SERVER_H_
