#include <openssl/sha.h>
#include <yaml-cpp/yaml.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "daemon/config/config.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

using YAML::BeginMap;
using YAML::BeginSeq;
using YAML::DoubleQuoted;
using YAML::EndMap;
using YAML::EndSeq;
using YAML::Flow;
using YAML::Key;
using YAML::Value;

// Quoted, so that a name like "no" or "0660" stays a text.
void Text(YAML::Emitter& out, const char* key, const std::string& value) {
  out << Key << key << Value << DoubleQuoted << value;
}
void Time(YAML::Emitter& out, const char* key, absl::Duration value) {
  out << Key << key << Value << absl::FormatDuration(value);
}
void Bytes(YAML::Emitter& out, const char* key, uint64_t value) { out << Key << key << Value << FormatBytes(value); }
void Number(YAML::Emitter& out, const char* key, uint64_t value) { out << Key << key << Value << value; }

void PrintRails(YAML::Emitter& out, const Config& config) {
  out << Key << "rails" << Value;
  if (config.auto_rails) {
    out << "auto";
    return;
  }
  out << BeginSeq;
  for (const RailSpec& rail : config.rails) {
    out << Flow << BeginMap;
    if (!rail.name.empty()) Text(out, "name", rail.name);
    if (rail.kind == RailKind::kVerbs) {
      Text(out, "transport", "verbs");
      Text(out, "device", rail.device);
    } else {
      Text(out, "transport", "tcp");
      if (!rail.address.empty()) Text(out, "address", rail.address);
      Text(out, "interface", rail.interface);
    }
    if (rail.speed_bytes_per_s != 0) out << Key << "speed" << Value << FormatRate(rail.speed_bytes_per_s);
    out << EndMap;
  }
  out << EndSeq;
}

void PrintPeers(YAML::Emitter& out, const Config& config) {
  out << Key << "peers" << Value << BeginMap << Key << "static" << Value;
  if (config.static_peers.empty()) out << Flow;
  out << BeginSeq;
  for (const StaticPeerConfig& peer : config.static_peers) {
    out << Flow << BeginMap;
    Text(out, "name", peer.name);
    Text(out, "control", peer.control);
    out << Key << "rails" << Value << Flow << BeginSeq;
    for (const std::string& rail : peer.rails) out << DoubleQuoted << rail;
    out << EndSeq << EndMap;
  }
  out << EndSeq;
  if (!config.dns.name.empty()) {
    out << Key << "dns" << Value << Flow << BeginMap;
    Text(out, "name", config.dns.name);
    Number(out, "port", config.dns.port);
    Time(out, "refresh", config.dns.refresh);
    out << EndMap;
  }
  out << EndMap;
}

const char* ModeName(TlsMode mode) {
  switch (mode) {
    case TlsMode::kUnset:
      return "";
    case TlsMode::kMutual:
      return "mutual";
    case TlsMode::kPlainText:
      return "plain_text";
  }
  return "";
}

void PrintTls(YAML::Emitter& out, const TlsConfig& tls) {
  out << Key << "tls" << Value << BeginMap;
  Text(out, "mode", ModeName(tls.mode));
  Text(out, "certificate", tls.certificate);
  Text(out, "key", tls.key);
  Text(out, "ca", tls.ca);
  Time(out, "refresh", tls.refresh);
  Text(out, "data", tls.data == TlsData::kKernel ? "kernel" : "off");
  out << EndMap;
}

void PrintVerbs(YAML::Emitter& out, const VerbsTuning& verbs) {
  out << Key << "verbs" << Value << BeginMap;
  Number(out, "queue_pairs_per_peer", verbs.queue_pairs_per_peer);
  Number(out, "send_queue_depth", verbs.send_queue_depth);
  Number(out, "completion_queue_depth", verbs.completion_queue_depth);
  Number(out, "fence_queue_depth", verbs.fence_queue_depth);
  if (verbs.gid_index) {
    Number(out, "gid_index", *verbs.gid_index);
  } else {
    out << Key << "gid_index" << Value << "auto";
  }
  if (verbs.path_mtu_bytes != 0) {
    Number(out, "path_mtu", verbs.path_mtu_bytes);
  } else {
    out << Key << "path_mtu" << Value << "auto";
  }
  Number(out, "service_level", verbs.service_level);
  Number(out, "traffic_class", verbs.traffic_class);
  Number(out, "timeout", verbs.timeout);
  Number(out, "retry_count", verbs.retry_count);
  Bytes(out, "inline_bytes", verbs.inline_bytes);
  Time(out, "busy_poll", verbs.busy_poll);
  Number(out, "max_windows", verbs.max_windows);
  out << EndMap;
}

void PrintTenants(YAML::Emitter& out, const Config& config) {
  const auto list = [&out](const char* key, const std::vector<std::string>& names) {
    out << Key << key << Value << Flow << BeginSeq;
    for (const std::string& name : names) out << DoubleQuoted << name;
    out << EndSeq;
  };
  out << Key << "tenants" << Value;
  if (config.tenants.empty()) out << Flow;
  out << BeginSeq;
  for (const TenantConfig& tenant : config.tenants) {
    out << BeginMap;
    Text(out, "name", tenant.name);
    list("users", tenant.users);
    list("groups", tenant.groups);
    Text(out, "socket_group", tenant.socket_group);
    out << Key << "quota" << Value << Flow << BeginMap;
    for (const QuotaKind kind : kAllQuotas) {
      if (kind == QuotaKind::kSegmentBytes) {
        Bytes(out, QuotaName(kind), tenant.quota[kind]);
      } else {
        Number(out, QuotaName(kind), tenant.quota[kind]);
      }
    }
    out << EndMap << Key << "share" << Value << Flow << BeginMap;
    Number(out, "weight", tenant.share.weight);
    Number(out, "priority", tenant.share.priority);
    out << EndMap << EndMap;
  }
  out << EndSeq;
}

void PrintLimits(YAML::Emitter& out, const Config& config) {
  const AgentLimits& limits = config.limits;
  out << Key << "limits" << Value << BeginMap;
  Number(out, "max_sessions", limits.max_sessions);
  Number(out, "max_segments_per_session", limits.max_segments_per_session);
  Bytes(out, "max_segment_bytes_per_session", limits.max_segment_bytes_per_session);
  Number(out, "max_groups", limits.max_groups);
  Number(out, "max_jobs_per_group", limits.max_jobs_per_group);
  Number(out, "max_ranges_per_submission", limits.max_ranges_per_submission);
  Number(out, "max_world_size", limits.max_world_size);
  Bytes(out, "max_name", limits.max_name_bytes);
  Bytes(out, "max_join_key", limits.max_join_key_bytes);
  Number(out, "max_waiting_calls", limits.max_waiting_calls);
  Number(out, "finished_jobs_kept", config.finished_jobs_kept);
  Number(out, "explained_jobs", config.explained_jobs);
  Bytes(out, "max_message", config.max_message_bytes);
  const ConnectionLimits& connections = config.connections;
  Number(out, "max_control_connections", connections.max_control_connections);
  Number(out, "max_control_connections_per_address", connections.max_control_connections_per_address);
  Number(out, "max_calls_per_client_connection", connections.max_calls_per_client_connection);
  Number(out, "max_watches_per_session", connections.max_watches_per_session);
  Bytes(out, "max_headers", connections.max_headers_bytes);
  Bytes(out, "max_grpc_memory", connections.max_grpc_memory_bytes);
  Number(out, "max_half_open", limits.max_half_open);
  Bytes(out, "max_http_request", connections.max_http_request_bytes);
  out << EndMap;
}

void PrintRest(YAML::Emitter& out, const Config& config) {
  out << Key << "plan" << Value << BeginMap;
  out << Key << "policy" << Value << std::string(PolicyName(config.plan.policy));
  out << Key << "late_binding" << Value << config.late_binding;
  Bytes(out, "chunk", config.plan.chunk_bytes);
  Bytes(out, "min_chunk", config.plan.min_chunk_bytes);
  out << EndMap << Key << "data" << Value << BeginMap;
  Bytes(out, "frame", config.frame_bytes);
  Bytes(out, "window", config.window_bytes);
  Number(out, "copy_threads", config.copy_threads);
  out << EndMap;
  PrintVerbs(out, config.verbs);
  PrintTenants(out, config);
  PrintLimits(out, config);
  out << Key << "timeouts" << Value << BeginMap;
  Time(out, "job", config.timeouts.job);
  Time(out, "join", config.timeouts.join);
  Time(out, "peer_lost", config.timeouts.peer_lost);
  Time(out, "max_peer_wait", config.timeouts.max_peer_wait);
  Time(out, "heartbeat", config.timeouts.heartbeat);
  Time(out, "drain", config.timeouts.drain);
  Time(out, "stuck", config.timeouts.stuck);
  Time(out, "handshake", config.timeouts.handshake);
  Time(out, "rail_handshake", config.timeouts.rail_handshake);
  Time(out, "idle", config.timeouts.idle);
  Time(out, "http", config.timeouts.http);
  out << EndMap << Key << "health" << Value << BeginMap;
  Time(out, "first_hold", config.health.first_hold);
  Time(out, "max_hold", config.health.max_hold);
  Time(out, "half_life", config.health.half_life);
  Time(out, "stall", config.health.stall);
  out << EndMap << Key << "log" << Value << BeginMap;
  out << Key << "level" << Value << config.log.level;
  Text(out, "file", config.log.file);
  out << Key << "format" << Value << (config.log.format == LogFormat::kJson ? "json" : "text");
  out << EndMap;
}

}  // namespace

std::string PrintConfig(const Config& config) {
  YAML::Emitter out;
  out << BeginMap;
  Text(out, "node", config.node);
  Text(out, "socket_dir", config.socket_dir);
  Text(out, "socket_mode", absl::StrFormat("%04o", config.socket_mode));
  Text(out, "socket_group", config.socket_group);
  Text(out, "operator_mode", absl::StrFormat("%04o", config.operator_mode));
  Text(out, "operator_group", config.operator_group);
  out << Key << "control" << Value << BeginMap;
  Text(out, "listen", config.control_listen);
  out << EndMap;
  PrintTls(out, config.tls);
  PrintRails(out, config);
  PrintPeers(out, config);
  out << Key << "metrics" << Value << BeginMap;
  Text(out, "listen", config.metrics_listen);
  Number(out, "max_peers", config.metrics_max_peers);
  out << EndMap;
  PrintRest(out, config);
  out << EndMap;
  return std::string(out.c_str(), out.size()) + "\n";
}

std::string ConfigHash(const Config& config) {
  const std::string text = PrintConfig(config);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), 8));
}

}  // namespace railsd
