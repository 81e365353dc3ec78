#include "daemon/session/tenant_map.h"

#include <pwd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/units.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

namespace railsd {
namespace {

std::optional<uint32_t> UserNumber(const std::string& user) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(user, &number)) return number;
  const passwd* entry = getpwnam(user.c_str());
  if (entry == nullptr) return std::nullopt;
  return entry->pw_uid;
}

}  // namespace

absl::StatusOr<PeerCredentials> CredentialsOfPeer(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return absl::ErrnoToStatus(errno, "SO_PEERCRED");
  std::vector<uint32_t> groups(64);
  while (true) {
    const socklen_t room = static_cast<socklen_t>(groups.size() * sizeof(uint32_t));
    size = room;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) break;
    if (errno != ERANGE || size <= room) return absl::ErrnoToStatus(errno, "SO_PEERGROUPS");
    groups.resize(size / sizeof(uint32_t));  // the kernel has set the size that it needs
  }
  groups.resize(size / sizeof(uint32_t));
  return PeerCredentials{peer.pid, peer.uid, peer.gid, std::move(groups)};
}

bool TenantMap::Entry::Lists(const PeerCredentials& peer) const {
  return users.contains(peer.uid) || groups.contains(peer.gid) ||
         std::any_of(peer.groups.begin(), peer.groups.end(), [this](uint32_t group) { return groups.contains(group); });
}

absl::StatusOr<TenantMap> TenantMap::Make(const std::vector<TenantConfig>& tenants, std::string node) {
  TenantMap map;
  map.node_ = std::move(node);
  std::vector<std::string> unknown;
  for (const TenantConfig& tenant : tenants) {
    Entry entry;
    entry.name = tenant.name;
    const auto add = [&](const char* kind, const std::vector<std::string>& names, const auto& number_of, auto* out) {
      for (const std::string& name : names) {
        const std::optional<uint32_t> number = number_of(name);
        if (number) out->insert(*number);
        if (!number)
          unknown.push_back(absl::StrCat("tenants.", tenant.name, ".", kind, "s: '", name, "': no such ", kind));
      }
    };
    add("user", tenant.users, UserNumber, &entry.users);
    add("group", tenant.groups, GroupNumber, &entry.groups);
    map.entries_.push_back(std::move(entry));
  }
  if (!unknown.empty()) return absl::InvalidArgumentError(absl::StrJoin(unknown, "; "));
  return map;
}

absl::StatusOr<std::string> TenantMap::TenantOf(const PeerCredentials& peer, absl::string_view own) const {
  if (entries_.empty()) return kDefaultTenant;
  for (const Entry& entry : entries_) {
    if (own.empty() ? entry.Lists(peer)
                    : entry.name == own && ((entry.users.empty() && entry.groups.empty()) || entry.Lists(peer))) {
      return entry.name;
    }
  }
  // Names no other tenants: they are not public.
  const std::string who = absl::StrCat("uid ", peer.uid, ", gid ", peer.gid);
  if (own.empty()) {
    return absl::PermissionDeniedError(absl::StrCat(
        who, " is of no tenant of node ", node_, "; its operator must add the user to `users`, or a group of it to ",
        "`groups`, of a tenant in the daemon's configuration (`tenants`), or let it use the sockets of a tenant"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat(who, " is not of tenant ", own, ", whose socket this is; the operator of node ", node_,
                   " must add the user to `users`, or a group of it to `groups`, of that tenant in the daemon's ",
                   "configuration (`tenants`)"));
}

}  // namespace railsd
