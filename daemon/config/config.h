// The daemon's whole configuration as one typed value: read from one YAML file, validated at start, printed by
// `railsd --print-config`. deploy/railsd.example.yaml explains every key.
#ifndef RAILSD_DAEMON_CONFIG_CONFIG_H_
#define RAILSD_DAEMON_CONFIG_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/plan/plan.h"

namespace railsd {

inline constexpr size_t kMaxRails = 64;
// Largest file that is read.
inline constexpr size_t kMaxConfigBytes = 1 << 20;

struct StaticPeerConfig {
  std::string name;                // the node's name, as its HELLO must say
  std::string control;             // "host:port" to dial
  std::vector<std::string> rails;  // addresses that its HELLO must show, in order; empty: anything
  friend bool operator==(const StaticPeerConfig&, const StaticPeerConfig&) = default;
};

struct DnsPeersConfig {
  std::string name;  // empty: off
  uint32_t port = 7471;
  absl::Duration refresh = absl::Seconds(10);
  friend bool operator==(const DnsPeersConfig&, const DnsPeersConfig&) = default;
};

enum class TlsMode : uint8_t {
  kUnset,      // allowed only without control.listen
  kMutual,     // TLS 1.3; both ends show a certificate
  kPlainText,  // the file asks for it
};

// The error at both ends of a connection if their modes differ.
inline constexpr char kTlsModesDiffer[] =
    "one end has TLS (tls.mode: mutual) and the other plain text; set the same tls.mode on all nodes";

// TLS of the data connections of rails over TCP; the same at all nodes.
enum class TlsData : uint8_t { kOff, kKernel };

// Between nodes. Paths of PEM files, absolute; all three or none.
struct TlsConfig {
  TlsMode mode = TlsMode::kUnset;
  std::string certificate;
  std::string key;
  std::string ca;
  absl::Duration refresh = absl::Seconds(10);  // how often the files are looked at
  TlsData data = TlsData::kOff;
  friend bool operator==(const TlsConfig&, const TlsConfig&) = default;
};

// Limits of the daemon's listeners, besides AgentLimits.
struct ConnectionLimits {
  uint32_t max_control_connections = 4096;
  uint32_t max_control_connections_per_address = 64;
  uint32_t max_calls_per_client_connection = 1024;
  uint32_t max_watches_per_session = 4;
  uint64_t max_headers_bytes = 8 << 10;                // of one call
  uint64_t max_grpc_memory_bytes = uint64_t{1} << 30;  // of each client and operator socket
  uint64_t max_http_request_bytes = 16 << 10;
  friend bool operator==(const ConnectionLimits&, const ConnectionLimits&) = default;
};

struct TimeoutsConfig {
  absl::Duration job = absl::Minutes(10);
  absl::Duration join = absl::Minutes(10);
  absl::Duration peer_lost = absl::Seconds(5);
  absl::Duration max_peer_wait = absl::Minutes(5);
  absl::Duration heartbeat = absl::Milliseconds(500);
  absl::Duration drain = absl::Seconds(30);
  absl::Duration stuck = absl::Seconds(15);
  absl::Duration handshake = absl::Seconds(10);
  absl::Duration rail_handshake = absl::Seconds(3);
  absl::Duration idle = absl::Minutes(1);
  absl::Duration http = absl::Seconds(5);
};

// One tenant. Sessions belong to it by their credentials, or by the socket that they connect to.
struct TenantConfig {
  std::string name;
  std::vector<std::string> users = {}, groups = {};  // of the system, names or numbers
  std::string socket_group = {};                     // of its own sockets, name or number; empty: the daemon's own
  QuotaNumbers quota = {};
  TenantShare share = {};
  friend bool operator==(const TenantConfig&, const TenantConfig&) = default;
};

enum class LogFormat : uint8_t { kText, kJson };

struct LogConfig {
  std::string level = "info";  // trace, debug, info, warning, error
  std::string file;            // empty: standard error
  LogFormat format = LogFormat::kText;
};

// The choice of `rails: auto`. Rules as in daemon/config/port_rule.h.
struct AutoRailsConfig {
  std::vector<std::string> take;   // take ports that fit one of these rules, in any state; empty: every usable port
  std::vector<std::string> leave;  // except ports that fit one of these rules
  uint32_t count = 0;              // how many rails there must be; 0: any number
  friend bool operator==(const AutoRailsConfig&, const AutoRailsConfig&) = default;
};

struct Config {
  std::string node;  // never empty once loaded
  std::string socket_dir = "/run/railsd";
  uint32_t socket_mode = 0666;    // client.sock and descriptors.sock
  std::string socket_group;       // of those two, name or number; empty: the daemon's own
  uint32_t operator_mode = 0600;  // operator.sock
  std::string operator_group;     // name or number; empty: the daemon's own
  std::string control_listen;     // empty: no control socket, so no peers
  TlsConfig tls;
  // As in the file: speed 0 means the speed of the interface or port. If a device is a pattern, the name may be empty;
  // ChooseRails() of daemon/lifecycle/rail_choice.h fills both in.
  std::vector<RailSpec> rails;
  bool auto_rails = false;  // rails are the RDMA ports that `auto_rails_choice` selects; `rails` is empty then
  AutoRailsConfig auto_rails_choice;
  std::vector<StaticPeerConfig> static_peers;
  DnsPeersConfig dns;
  std::string metrics_listen;  // empty: off
  uint32_t metrics_max_peers = 256;
  PlanOptions plan;
  bool late_binding = true;
  uint64_t eager_bytes = 8 << 10;
  uint64_t frame_bytes = 0;   // 0: derived
  uint64_t window_bytes = 0;  // 0: derived
  absl::Duration spin;
  uint32_t copy_threads = 0;  // 0: by the processors
  VerbsTuning verbs;
  HealthOptions health;
  std::vector<TenantConfig> tenants;  // empty: every session belongs to kDefaultTenant
  AgentLimits limits;
  ConnectionLimits connections;
  uint32_t finished_jobs_kept = 256;
  uint32_t explained_jobs = 16;
  uint64_t max_message_bytes = 16 << 20;
  TimeoutsConfig timeouts;
  LogConfig log;
};

// Where the sockets of a tenant are: SOCKET_DIR/tenants/NAME.
std::string TenantSocketDir(const std::string& socket_dir, const std::string& tenant);

// The tenants for the agent: kDefaultTenant without quotas if none are configured.
std::vector<TenantOptions> TenantOptionsFrom(const Config& config);

// Reads a configuration. Error: INVALID_ARGUMENT with every mistake found, one a line:
//   FILE:LINE: KEY: VALUE: REASON
// Never throws, whatever the bytes.
absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view file_name);

// ParseConfig() of a file. NOT_FOUND or PERMISSION_DENIED when it cannot be read.
absl::StatusOr<Config> LoadConfig(const std::string& path);

// The configuration as YAML with every key present; ParseConfig() of it gives the same configuration back.
std::string PrintConfig(const Config& config);

// First 16 hexadecimal digits of the SHA-256 of PrintConfig(): equal on nodes that run the same settings.
std::string ConfigHash(const Config& config);
// ConfigHash() without the keys that belong to one node (name, files, listeners, rails, peers): equal on all nodes of a
// cluster with the same settings.
std::string SharedConfigHash(Config config);

// One key whose value differs, such as "limits.max_groups", with its values as YAML. A list is one value, with
// exceptions: "tenants" is the list of names, and each key of a tenant is a key of its own ("tenants.NAME.quota.jobs").
struct ConfigDifference {
  std::string key, before, after;
  friend bool operator==(const ConfigDifference&, const ConfigDifference&) = default;
};
std::vector<ConfigDifference> DiffConfigs(const Config& before, const Config& after);

// `in_force`, changed to `wanted` in the keys that a running daemon can take over: the log's level, limits, quotas and
// shares of tenants that both have, static peers, time limits of jobs, joins and drains.
Config WithLiveChanges(const Config& in_force, const Config& wanted);

// All keys with their defaults and whether a running daemon takes over a change, as a table in Markdown.
std::string ConfigTableMarkdown();

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_CONFIG_H_
