// Where clients find the daemon, and who may open what: client.sock and descriptors.sock in the socket directory, and
// in a folder of each tenant's own.
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
  std::string tenant;  // whose own it is; empty: shared
};

// The shared one first.
std::vector<ClientSocketDir> ClientSocketDirs(const Config& config);

// Makes the tenants' folders, closed to everybody else until OpenTenantFolders(). Errors name the folder.
absl::Status PrepareTenantFolders(const Config& config, const SocketDirectory& directory);

// Gives the sockets of that name ("client.sock") in all folders the modes and groups that the configuration wants.
absl::Status SetClientSocketAccess(const Config& config, const std::string& name);

// Lets into a tenant's folder: its `socket_group`; without one everybody, if the tenant lists users or groups, since
// the daemon asks who they are; else nobody but root, the daemon's user, and containers that have the folder mounted.
absl::Status OpenTenantFolders(const Config& config);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_CLIENT_SOCKETS_H_
