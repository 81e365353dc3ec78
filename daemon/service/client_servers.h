// The gRPC servers for clients: one on the shared socket, one on each tenant's own socket, because a call does not tell
// on which of a server's sockets it came.
#ifndef RAILSD_DAEMON_SERVICE_CLIENT_SERVERS_H_
#define RAILSD_DAEMON_SERVICE_CLIENT_SERVERS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "daemon/lifecycle/client_sockets.h"
#include "daemon/service/rpc_server.h"
#include "daemon/service/services.h"

namespace railsd {

class ClientServers {
 public:
  // `options`: of each server; the address is client.sock in each directory. `context`: of the shared socket.
  static absl::StatusOr<ClientServers> Start(const std::vector<ClientSocketDir>& directories, RpcServerOptions options,
                                             std::shared_ptr<const ServiceContext> context);
  // As in RpcServer, for all servers.
  void SetHealth(bool serving, bool live);
  void Shutdown(absl::Duration grace);  // `grace` is for all together

 private:
  std::vector<std::unique_ptr<RpcServer>> servers_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_CLIENT_SERVERS_H_
