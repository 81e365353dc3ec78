#include "daemon/service/client_servers.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace railsd {

absl::StatusOr<ClientServers> ClientServers::Start(const std::vector<ClientSocketDir>& directories,
                                                   RpcServerOptions options,
                                                   std::shared_ptr<const ServiceContext> context) {
  ClientServers out;
  for (const ClientSocketDir& directory : directories) {
    std::shared_ptr<const ServiceContext> own = context;
    if (!directory.tenant.empty()) {
      auto copy = std::make_shared<ServiceContext>(*context);
      copy->tenant = directory.tenant;
      own = std::move(copy);
    }
    options.address = "unix:" + directory.path + "/client.sock";
    absl::StatusOr<std::unique_ptr<RpcServer>> server =
        RpcServer::Start(options, {MakeSessionService(own), MakeGroupService(own), MakeJobService(own)});
    if (!server.ok()) return server.status();
    out.servers_.push_back(*std::move(server));
  }
  return out;
}

void ClientServers::SetHealth(bool serving, bool live) {
  for (const auto& server : servers_) server->SetHealth(serving, live);
}

void ClientServers::Shutdown(absl::Duration grace) {
  const absl::Time end = absl::Now() + grace;
  for (const auto& server : servers_) server->Shutdown(std::max(end - absl::Now(), absl::ZeroDuration()));
}

}  // namespace railsd
