// The clients' sockets and their access rights: client.sock and descriptors.sock in the socket directory, and in a
// folder for each tenant.
#ifndef RAILSD_DAEMON_LIFECYCLE_CLIENT_SOCKETS_H_
#define RAILSD_DAEMON_LIFECYCLE_CLIENT_SOCKETS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/config/config.h"
#include "daemon/lifecycle/process.h"

namespace railsd {

struct ClientSocketDir {
  std::string path;
  std::string tenant;  // the tenant whose own folder this is; empty: shared
};

// The shared directory comes first.
std::vector<ClientSocketDir> ClientSocketDirs(const Config& config);

// Makes the tenants' folders. Only the daemon's user may enter them until OpenTenantFolders(). Errors name the folder.
absl::Status PrepareTenantFolders(const Config& config, const SocketDirectory& directory);

// Gives the sockets with this name ("client.sock") in all folders the configured modes and groups.
absl::Status SetClientSocketAccess(const Config& config, const std::string& name);

// Opens each tenant's folder to its `socket_group`. Without one, opens it to everybody if the tenant lists users or
// groups, because the daemon then checks each client. Otherwise only root, the daemon's user and containers that mount
// the folder get in.
absl::Status OpenTenantFolders(const Config& config);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_CLIENT_SOCKETS_H_
