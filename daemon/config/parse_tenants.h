// Section `tenants` of the configuration. Private to daemon/config.
#ifndef RAILSD_DAEMON_CONFIG_PARSE_TENANTS_H_
#define RAILSD_DAEMON_CONFIG_PARSE_TENANTS_H_

#include "daemon/config/config.h"
#include "daemon/config/yaml_reader.h"

namespace railsd {

void ReadTenants(const YamlReader& in, std::vector<TenantConfig>* tenants);
// That the sockets of each tenant have paths that a socket can have.
void CheckTenantSockets(const Config& config, ConfigErrors* errors);

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_PARSE_TENANTS_H_
