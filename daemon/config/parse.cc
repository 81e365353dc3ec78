#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <limits>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/config.h"
#include "daemon/config/parse_rails.h"
#include "daemon/config/parse_tenants.h"
#include "daemon/config/units.h"
#include "daemon/config/yaml_reader.h"

namespace railsd {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr size_t kMaxPeers = 4096;
// sockaddr_un holds 108 bytes with the final zero; the longest name in the directory is "/descriptors.sock".
constexpr size_t kMaxSocketDir = 107 - 17;

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

// `names` and `addresses` are those of the peers before it.
void ReadStaticPeer(const YamlReader& in, std::set<std::string>* names, std::set<std::string>* addresses,
                    Config* config) {
  StaticPeerConfig peer;
  in.Map({{"name",
           [&](const YamlReader& r) {
             r.Name(&peer.name, 253);
             if (!peer.name.empty() && !names->insert(peer.name).second) r.Fail("another peer has this name");
           }},
          {"control",
           [&](const YamlReader& r) {
             r.Address(&peer.control, /*port_optional=*/false, /*numeric=*/false, /*allow_empty=*/false);
             if (!peer.control.empty() && !addresses->insert(peer.control).second) {
               r.Fail("another peer has this address");
             }
           }},
          {"rails",
           [&](const YamlReader& r) {
             r.List(kMaxRails, [&](const YamlReader& rail) {
               std::string address = rail.text();
               if (!IsVerbsAddress(address))
                 rail.Address(&address, /*port_optional=*/true, /*numeric=*/true, /*allow_empty=*/false);
               peer.rails.push_back(std::move(address));
             });
           }}},
         {"name", "control"});
  config->static_peers.push_back(std::move(peer));
}

void ReadPeers(const YamlReader& in, Config* config) {
  std::set<std::string> names, addresses;
  in.Map(
      {{"static",
        [&](const YamlReader& r) {
          r.List(kMaxPeers, [&](const YamlReader& item) { ReadStaticPeer(item, &names, &addresses, config); });
        }},
       {"dns", [&](const YamlReader& r) {
          r.Map({{"name", [&](const YamlReader& f) { f.Name(&config->dns.name, 253); }},
                 {"port", [&](const YamlReader& f) { f.Number(&config->dns.port, 1, 65535); }},
                 {"refresh",
                  [&](const YamlReader& f) { f.Time(&config->dns.refresh, absl::Milliseconds(100), absl::Hours(1)); }}},
                {"name"});
        }}});
}

void ReadPlan(const YamlReader& in, Config* config) {
  in.Map({{"policy",
           [&](const YamlReader& r) {
             const absl::StatusOr<Policy> policy = ParsePolicy(r.text());
             if (policy.ok()) {
               config->plan.policy = *policy;
             } else {
               r.Fail(policy.status().message());
             }
           }},
          {"late_binding",
           [&](const YamlReader& r) {
             if (r.text() != "true" && r.text() != "false") return r.Fail("give true or false");
             config->late_binding = r.text() == "true";
           }},
          {"chunk", [&](const YamlReader& r) { r.Bytes(&config->plan.chunk_bytes, 1, kGiB); }},
          {"min_chunk", [&](const YamlReader& r) { r.Bytes(&config->plan.min_chunk_bytes, 1, kGiB); }}});
  if (config->plan.min_chunk_bytes > config->plan.chunk_bytes) {
    in.Fail(absl::StrCat("min_chunk ", FormatBytes(config->plan.min_chunk_bytes), " is more than chunk ",
                         FormatBytes(config->plan.chunk_bytes)));
  }
}

void ReadLimits(const YamlReader& in, Config* config) {
  AgentLimits& l = config->limits;
  const auto count = [](uint32_t* out, uint64_t max) {
    return [out, max](const YamlReader& r) { r.Number(out, 1, max); };
  };
  ConnectionLimits& c = config->connections;
  in.Map({{"max_sessions", count(&l.max_sessions, 1 << 16)},
          {"max_segments_per_session", count(&l.max_segments_per_session, 1 << 16)},
          {"max_segment_bytes_per_session",
           [&](const YamlReader& r) {
             r.Bytes(&l.max_segment_bytes_per_session, 1, std::numeric_limits<uint64_t>::max() >> 1);
           }},
          {"max_groups", count(&l.max_groups, 1 << 16)},
          {"max_jobs_per_group", count(&l.max_jobs_per_group, 1 << 16)},
          {"max_ranges_per_submission", count(&l.max_ranges_per_submission, 1 << 26)},
          {"max_world_size", count(&l.max_world_size, 1 << 16)},
          {"max_name", [&](const YamlReader& r) { r.Bytes(&l.max_name_bytes, 1, 256); }},
          {"max_join_key", [&](const YamlReader& r) { r.Bytes(&l.max_join_key_bytes, 1, 64 << 10); }},
          {"max_waiting_calls", count(&l.max_waiting_calls, 1 << 20)},
          {"finished_jobs_kept", count(&config->finished_jobs_kept, 1 << 20)},
          {"explained_jobs", [&](const YamlReader& r) { r.Number(&config->explained_jobs, 0, 1024); }},
          {"max_message", [&](const YamlReader& r) { r.Bytes(&config->max_message_bytes, 64 << 10, kGiB); }},
          {"max_control_connections", count(&c.max_control_connections, 1 << 16)},
          {"max_control_connections_per_address", count(&c.max_control_connections_per_address, 1 << 16)},
          {"max_calls_per_client_connection", count(&c.max_calls_per_client_connection, 1 << 16)},
          {"max_watches_per_session", count(&c.max_watches_per_session, 1 << 16)},
          {"max_headers", [&](const YamlReader& r) { r.Bytes(&c.max_headers_bytes, 4 << 10, kMiB); }},
          {"max_grpc_memory", [&](const YamlReader& r) { r.Bytes(&c.max_grpc_memory_bytes, kMiB, 1024 * kGiB); }},
          {"max_half_open", count(&l.max_half_open, 1 << 16)},
          {"max_http_request", [&](const YamlReader& r) { r.Bytes(&c.max_http_request_bytes, 1 << 10, kMiB); }}});
}

// Calls that carry as much as they may must not end each other.
void CheckGrpcMemory(const Config& config, ConfigErrors* errors) {
  const uint64_t all = config.connections.max_grpc_memory_bytes;
  if (all >= 4 * config.max_message_bytes) return;
  errors->Add(0, "limits.max_grpc_memory", FormatBytes(all),
              absl::StrCat("less than four messages of limits.max_message ", FormatBytes(config.max_message_bytes)));
}

void ReadTimeouts(const YamlReader& in, Config* config) {
  TimeoutsConfig& t = config->timeouts;
  const auto time = [](absl::Duration* out, absl::Duration min, absl::Duration max) {
    return [=](const YamlReader& r) { r.Time(out, min, max); };
  };
  in.Map({{"job", time(&t.job, absl::Milliseconds(1), absl::Hours(24 * 7))},
          {"join", time(&t.join, absl::Milliseconds(1), absl::Hours(24 * 7))},
          {"peer_lost", time(&t.peer_lost, absl::Milliseconds(10), absl::Hours(1))},
          {"max_peer_wait", time(&t.max_peer_wait, absl::Milliseconds(10), absl::Hours(24))},
          {"heartbeat", time(&t.heartbeat, absl::Milliseconds(5), absl::Minutes(10))},
          {"drain", time(&t.drain, absl::ZeroDuration(), absl::Hours(24))},
          {"stuck", time(&t.stuck, absl::Seconds(2), absl::Hours(1))},
          {"handshake", time(&t.handshake, absl::Milliseconds(100), absl::Minutes(10))},
          {"rail_handshake", time(&t.rail_handshake, absl::Milliseconds(100), absl::Minutes(10))},
          {"idle", time(&t.idle, absl::Milliseconds(100), absl::Hours(24))},
          {"http", time(&t.http, absl::Milliseconds(100), absl::Minutes(10))}});
  if (2 * t.heartbeat > t.peer_lost) {
    in.Fail(absl::StrCat("peer_lost ", absl::FormatDuration(t.peer_lost), " is less than two heartbeats of ",
                         absl::FormatDuration(t.heartbeat)));
  }
}

void ReadHealth(const YamlReader& in, Config* config) {
  HealthOptions& h = config->health;
  const auto time = [](absl::Duration* out, absl::Duration min, absl::Duration max) {
    return [=](const YamlReader& r) { r.Time(out, min, max); };
  };
  in.Map({{"first_hold", time(&h.first_hold, absl::ZeroDuration(), absl::Minutes(10))},
          {"max_hold", time(&h.max_hold, absl::ZeroDuration(), absl::Hours(1))},
          {"stall", time(&h.stall, absl::ZeroDuration(), absl::Minutes(1))},
          {"half_life", time(&h.half_life, absl::Milliseconds(1), absl::Hours(24))}});
  if (h.first_hold > h.max_hold) {
    in.Fail(absl::StrCat("max_hold ", absl::FormatDuration(h.max_hold), " is less than first_hold ",
                         absl::FormatDuration(h.first_hold)));
  }
}

void ReadLog(const YamlReader& in, Config* config) {
  in.Map({{"level",
           [&](const YamlReader& r) {
             const std::string level = r.text();
             static constexpr absl::string_view kLevels[] = {"trace", "debug", "info", "warning", "error"};
             for (const absl::string_view known : kLevels) {
               if (level == known) config->log.level = level;
             }
             if (config->log.level != level) r.Fail(absl::StrCat("not one of ", absl::StrJoin(kLevels, ", ")));
           }},
          {"file", [&](const YamlReader& r) { r.String(&config->log.file); }},
          {"format", [&](const YamlReader& r) {
             if (r.text() != "text" && r.text() != "json") return r.Fail("not one of text, json");
             config->log.format = r.text() == "json" ? LogFormat::kJson : LogFormat::kText;
           }}});
}

void ReadTls(const YamlReader& in, TlsConfig* tls) {
  const auto path = [](std::string* out) {
    return [out](const YamlReader& r) {
      r.String(out);
      if (!r.text().empty() && r.text()[0] != '/') r.Fail("not an absolute path");
    };
  };
  in.Map({{"mode",
           [&](const YamlReader& r) {
             if (r.text() != "mutual" && r.text() != "plain_text" && !r.text().empty()) {
               return r.Fail("not one of mutual, plain_text");
             }
             tls->mode = r.text() == "mutual"       ? TlsMode::kMutual
                         : r.text() == "plain_text" ? TlsMode::kPlainText
                                                    : TlsMode::kUnset;
           }},
          {"certificate", path(&tls->certificate)},
          {"key", path(&tls->key)},
          {"ca", path(&tls->ca)},
          {"refresh", [&](const YamlReader& r) { r.Time(&tls->refresh, absl::Milliseconds(100), absl::Hours(1)); }},
          {"data", [&](const YamlReader& r) {
             if (r.text() != "off" && r.text() != "kernel") return r.Fail("not one of off, kernel");
             tls->data = r.text() == "kernel" ? TlsData::kKernel : TlsData::kOff;
           }}});
  const bool any = !tls->certificate.empty() || !tls->key.empty() || !tls->ca.empty();
  if (any && tls->mode == TlsMode::kPlainText) {
    in.Fail("mode plain_text uses no certificate, key or ca; remove them, or write mode: mutual");
  } else if (any && tls->mode == TlsMode::kUnset) {
    tls->mode = TlsMode::kMutual;
  }
  if (tls->mode != TlsMode::kMutual) {
    if (tls->data == TlsData::kKernel) in.Fail("data: kernel needs mode: mutual, which its keys come from");
    return;
  }
  const std::pair<const char*, const std::string*> files[] = {
      {"certificate", &tls->certificate}, {"key", &tls->key}, {"ca", &tls->ca}};
  for (const auto& [name, file] : files) {
    if (file->empty()) in.Missing(name, "; mutual TLS needs certificate, key and ca");
  }
}

std::map<absl::string_view, YamlReader::Field> TopLevel(Config* config) {
  return {
      {"node", [=](const YamlReader& r) { r.Name(&config->node, 253); }},
      {"socket_dir",
       [=](const YamlReader& r) {
         r.String(&config->socket_dir, kMaxSocketDir);
         if (!r.text().empty() && r.text()[0] != '/') r.Fail("not an absolute path");
         if (r.text().empty()) r.Fail("empty");
       }},
      {"socket_mode", [=](const YamlReader& r) { r.Mode(&config->socket_mode); }},
      {"operator_mode", [=](const YamlReader& r) { r.Mode(&config->operator_mode); }},
      {"socket_group", [=](const YamlReader& r) { r.String(&config->socket_group, 64); }},
      {"operator_group", [=](const YamlReader& r) { r.String(&config->operator_group, 64); }},
      {"control",
       [=](const YamlReader& r) {
         r.Map({{"listen", [=](const YamlReader& f) { f.Address(&config->control_listen, false, false, true); }}});
       }},
      {"rails", [=](const YamlReader& r) { ReadRails(r, config); }},
      {"peers", [=](const YamlReader& r) { ReadPeers(r, config); }},
      {"metrics",
       [=](const YamlReader& r) {
         r.Map({{"listen", [=](const YamlReader& f) { f.Address(&config->metrics_listen, false, false, true); }},
                {"max_peers", [=](const YamlReader& f) { f.Number(&config->metrics_max_peers, 0, 65536); }}});
       }},
      {"plan", [=](const YamlReader& r) { ReadPlan(r, config); }},
      {"data",
       [=](const YamlReader& r) {
         r.Map({{"frame", [=](const YamlReader& f) { f.Bytes(&config->frame_bytes, 0, 64 * kMiB); }},
                {"window", [=](const YamlReader& f) { f.Bytes(&config->window_bytes, 0, 16 * kGiB); }},
                {"copy_threads", [=](const YamlReader& f) { f.Number(&config->copy_threads, 0, 256); }}});
       }},
      {"tenants", [=](const YamlReader& r) { ReadTenants(r, &config->tenants); }},
      {"limits", [=](const YamlReader& r) { ReadLimits(r, config); }},
      {"timeouts", [=](const YamlReader& r) { ReadTimeouts(r, config); }},
      {"health", [=](const YamlReader& r) { ReadHealth(r, config); }},
      {"verbs", [=](const YamlReader& r) { ReadVerbs(r, &config->verbs); }},
      {"log", [=](const YamlReader& r) { ReadLog(r, config); }},
      {"tls", [=](const YamlReader& r) { ReadTls(r, &config->tls); }},
  };
}

// One file for all nodes may list this one; another node at its addresses would never be reached.
void CheckPeersAreElsewhere(const Config& config, ConfigErrors* errors) {
  const auto same = [](const std::string& a, const std::string& b) {
    const auto x = ParseHostPort(a, true), y = ParseHostPort(b, true);
    return x.ok() && y.ok() && x->host == y->host && (x->port == y->port || x->port == 0 || y->port == 0);
  };
  for (size_t i = 0; i < config.static_peers.size(); ++i) {
    const StaticPeerConfig& peer = config.static_peers[i];
    if (peer.name == config.node) continue;
    const std::string key = absl::StrCat("peers.static[", i, "]");
    if (peer.control == config.control_listen) {
      errors->Add(0, absl::StrCat(key, ".control"), peer.control,
                  absl::StrCat("the address of this node, ", config.node, " (control.listen)"));
    }
    for (size_t r = 0; r < peer.rails.size(); ++r) {
      for (const RailSpec& rail : config.rails) {
        if (!same(peer.rails[r], rail.address)) continue;
        errors->Add(0, absl::StrCat(key, ".rails[", r, "]"), peer.rails[r],
                    absl::StrCat("the address of ", rail.name, " of this node, ", config.node));
      }
    }
  }
}

// What no single key can tell.
void CheckWhole(const Config& config, ConfigErrors* errors) {
  if (!IsName(config.node, 253)) {
    errors->Add(0, "node", config.node, "the host name is no valid node name; set `node`");
  }
  const bool peers = !config.static_peers.empty() || !config.dns.name.empty();
  if (peers && config.control_listen.empty()) {
    errors->Add(0, "control.listen", "", "missing; peers must be able to dial this node");
  }
  if (!config.control_listen.empty() && config.tls.mode == TlsMode::kUnset) {
    errors->Add(0, "tls", "",
                "missing; control.listen is set, so give certificate, key and ca for mutual TLS between nodes, or ask "
                "for plain text with mode: plain_text");
  }
  CheckPeersAreElsewhere(config, errors);
  CheckGrpcMemory(config, errors);
  CheckTenantSockets(config, errors);
}

}  // namespace

std::string TenantSocketDir(const std::string& socket_dir, const std::string& tenant) {
  return absl::StrCat(socket_dir, "/tenants/", tenant);
}

std::vector<TenantOptions> TenantOptionsFrom(const Config& config) {
  std::vector<TenantOptions> out;
  for (const TenantConfig& tenant : config.tenants) out.push_back({tenant.name, tenant.quota, tenant.share});
  if (out.empty()) out.push_back({kDefaultTenant});
  return out;
}

absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view file_name) {
  ConfigErrors errors(file_name);
  Config config;
  if (text.size() > kMaxConfigBytes) {
    errors.Add(0, "", "", absl::StrCat("larger than ", FormatBytes(kMaxConfigBytes)));
    return errors.ToStatus();
  }
  try {
    const YAML::Node root = ParseYaml(std::string(text), &errors);
    if (errors.empty()) YamlReader(root, "", &errors).Map(TopLevel(&config), {"rails"});
  } catch (const YAML::Exception& e) {
    errors.Add(e.mark.line + 1, "", "", absl::StrCat("not YAML: ", e.msg));
  } catch (const std::exception& e) {
    errors.Add(0, "", "", absl::StrCat("not YAML: ", e.what()));
  }
  if (config.node.empty()) config.node = HostName();
  if (errors.empty() && config.rails.empty() && !config.auto_rails) {
    errors.Add(0, "rails", "", "empty; a node needs at least one rail");
  }
  if (errors.empty()) CheckWhole(config, &errors);
  if (!errors.empty()) return errors.ToStatus();
  return config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "re"), &fclose);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  std::string text(kMaxConfigBytes + 1, '\0');
  text.resize(fread(text.data(), 1, text.size(), file.get()));
  if (ferror(file.get())) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot read"));
  return ParseConfig(text, path);
}

}  // namespace railsd
