#include "daemon/lifecycle/client_sockets.h"

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

// Mode of a socket that has a group.
constexpr uint32_t kGroupSocketMode = 0660;
constexpr uint32_t kOpenSocketMode = 0666;

std::string GroupKeyOf(const TenantConfig& tenant) { return absl::StrCat("tenants.", tenant.name, ".socket_group"); }

}  // namespace

std::vector<ClientSocketDir> ClientSocketDirs(const Config& config) {
  std::vector<ClientSocketDir> out = {{config.socket_dir, ""}};
  for (const TenantConfig& tenant : config.tenants) {
    out.push_back({TenantSocketDir(config.socket_dir, tenant.name), tenant.name});
  }
  return out;
}

absl::Status PrepareTenantFolders(const Config& config, const SocketDirectory& directory) {
  for (const TenantConfig& tenant : config.tenants) {
    if (absl::Status status = directory.PrepareFolder("tenants/" + tenant.name); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SetClientSocketAccess(const Config& config, const std::string& name) {
  absl::Status status = SetSocketAccess(absl::StrCat(config.socket_dir, "/", name), config.socket_mode,
                                        config.socket_group, "socket_group");
  for (const TenantConfig& tenant : config.tenants) {
    // Without a group the socket is open to everybody: the folder's mode, and the tenant's lists in the daemon, decide.
    status.Update(SetSocketAccess(absl::StrCat(TenantSocketDir(config.socket_dir, tenant.name), "/", name),
                                  tenant.socket_group.empty() ? kOpenSocketMode : kGroupSocketMode, tenant.socket_group,
                                  GroupKeyOf(tenant)));
  }
  return status;
}

absl::Status OpenTenantFolders(const Config& config) {
  for (const TenantConfig& tenant : config.tenants) {
    const bool lists = !tenant.users.empty() || !tenant.groups.empty();
    const uint32_t mode = !tenant.socket_group.empty() ? 0750 : lists ? 0755 : 0700;
    const std::string path = TenantSocketDir(config.socket_dir, tenant.name);
    absl::Status status = SetSocketAccess(path, mode, tenant.socket_group, GroupKeyOf(tenant));
    if (!status.ok()) return status;
  }
  if (config.tenants.empty()) return absl::OkStatus();
  return SetSocketAccess(config.socket_dir + "/tenants", 0755, "", "");
}

}  // namespace railsd
