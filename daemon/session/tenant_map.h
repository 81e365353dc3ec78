// Which tenant a client is of, by its credentials and the socket that it came to.
#ifndef RAILSD_DAEMON_SESSION_TENANT_MAP_H_
#define RAILSD_DAEMON_SESSION_TENANT_MAP_H_

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/config.h"

namespace railsd {

// Of a process as it connected.
struct PeerCredentials {
  pid_t pid = 0;
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups;  // supplementary
};

// By SO_PEERCRED and SO_PEERGROUPS. Error: the socket has no such peer.
absl::StatusOr<PeerCredentials> CredentialsOfPeer(int socket);

// Safe to read from any thread.
class TenantMap {
 public:
  // Everybody is of kDefaultTenant.
  TenantMap() = default;
  // Looks up users and groups now, once. INVALID_ARGUMENT: names all that there are not. Without tenants everybody is
  // of kDefaultTenant.
  static absl::StatusOr<TenantMap> Make(const std::vector<TenantConfig>& tenants, std::string node);

  // `own`: the tenant whose own socket it is; empty for the shared one, where the first tenant that lists the client
  // counts. On its own socket a tenant that lists nobody takes everybody. PERMISSION_DENIED, with what to do about it.
  absl::StatusOr<std::string> TenantOf(const PeerCredentials& peer, absl::string_view own) const;

 private:
  struct Entry {
    std::string name;
    std::set<uint32_t> users, groups;
    bool Lists(const PeerCredentials& peer) const;
  };
  std::string node_;
  std::vector<Entry> entries_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_SESSION_TENANT_MAP_H_
