// Maps a client to its tenant, by its credentials and the socket that it connected to.
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

// Credentials of a process when it connected.
struct PeerCredentials {
  pid_t pid = 0;
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups;  // supplementary
};

// Reads SO_PEERCRED and SO_PEERGROUPS.
absl::StatusOr<PeerCredentials> CredentialsOfPeer(int socket);

// Any thread may read it.
class TenantMap {
 public:
  // Maps every client to kDefaultTenant.
  TenantMap() = default;
  // Looks up users and groups now and never again. INVALID_ARGUMENT: names all unknown ones. Without tenants every
  // client is of kDefaultTenant.
  static absl::StatusOr<TenantMap> Make(const std::vector<TenantConfig>& tenants, std::string node);

  // `own`: the tenant whose own socket the client uses. Empty: the shared socket, where the first tenant that lists the
  // client counts. A tenant that lists nobody takes every client on its own socket. PERMISSION_DENIED: says what to do.
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
