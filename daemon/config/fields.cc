// Every key of the configuration, once: its name, its member, its values, and whether a running daemon takes over a
// change. Parsing, printing, comparing, reloading and the reference page iterate this table.
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "daemon/config/field.h"
#include "daemon/config/network.h"

namespace railsd {
namespace {

using Fields = std::vector<Field>;

constexpr uint64_t kKiB = uint64_t{1} << 10, kMiB = kKiB << 10, kGiB = kMiB << 10;
constexpr uint64_t kMaxSegmentBytes = std::numeric_limits<uint64_t>::max() >> 1;
// sockaddr_un holds 108 bytes with the final zero; the longest name in the directory is "/descriptors.sock".
constexpr size_t kMaxSocketDir = 107 - 17;
constexpr size_t kMaxFile = 4096;
constexpr size_t kMaxAccount = 64;  // of the system: its name or number
constexpr size_t kMaxMembers = 1024, kMaxPeers = 4096;
constexpr size_t kMaxPortRules = 256;
constexpr size_t kMaxTenants = 64;  // each has series of its own in the metrics

constexpr FieldOptions kLive = {.live = true};

Mistakes CheckTls(const Texts& given, TlsConfig& tls) {
  Mistakes out;
  for (const char* file : {"certificate", "key", "ca"}) {
    const auto text = given.find(file);
    if (text == given.end() || text->second.empty()) {
      out.emplace_back(file, "missing; mutual TLS needs certificate, key and ca");
    }
  }
  const bool any = out.size() < 3;
  if (any && tls.mode == TlsMode::kUnset) tls.mode = TlsMode::kMutual;
  if (tls.mode == TlsMode::kMutual) return out;
  out.clear();
  if (any) out.emplace_back("", "mode plain_text uses no certificate, key or ca; remove them, or write mode: mutual");
  if (tls.data == TlsData::kKernel)
    out.emplace_back("", "data: kernel needs mode: mutual, because the keys of data connections travel over the links");
  return out;
}

Fields TlsFields(TlsConfig& tls) {
  return {
      Choice("mode", tls.mode, {"", "mutual", "plain_text"}, {.quoted = true}),
      Text("certificate", tls.certificate, AbsolutePath(kMaxFile, true)),
      Text("key", tls.key, AbsolutePath(kMaxFile, true)),
      Text("ca", tls.ca, AbsolutePath(kMaxFile, true)),
      Time("refresh", tls.refresh, absl::Milliseconds(100), absl::Hours(1)),
      Choice("data", tls.data, {"off", "kernel"}, {.quoted = true}),
  };
}

// Maps the hosts of rail addresses to their ports; port 0: no port was given.
using RailAddresses = std::map<std::string, std::set<uint16_t>>;

// Checks that no two rails share an address and port, and adds this address to `taken`. Rails of tests may share a
// loopback address without ports: the kernel chooses a port for each rail.
std::string RailAddressMistake(const std::string& text, RailAddresses& taken) {
  if (std::string why = IpAddressMistake(text); !why.empty()) return why;
  const HostPort own = *ParseHostPort(text, true);
  std::set<uint16_t>& ports = taken[own.host];
  const bool shared = !ports.empty() && (own.port == 0 || ports.contains(0));
  const bool added = ports.insert(own.port).second;
  if (own.port != 0 && !added) return "another rail listens on this address and port";
  if (!shared || own.host == "::1" || absl::StartsWith(own.host, "127.")) return "";
  return "another rail has this address; rails that share an address (for tests) need a port each";
}

bool IsPattern(const RailSpec& rail) {
  const absl::StatusOr<RdmaDeviceName> device = ParseRdmaDevice(rail.device);
  return device.ok() && device->pattern();
}

// Checks that the keys of a rail fit each other. `rails`: the rails read so far.
Mistakes CheckRail(const Texts& given, const std::vector<RailSpec>& rails, RailSpec& rail) {
  const std::string transport = given.contains("transport") ? given.at("transport") : "";
  const bool has_device = given.contains("device"), has_address = given.contains("address");
  const bool has_interface = !rail.interface.empty();
  if (transport != "tcp" && transport != "verbs") rail.kind = has_device ? RailKind::kVerbs : RailKind::kTcp;
  Mistakes out;
  const auto same = [&rail](const RailSpec& r) { return r.address.empty() && r.interface == rail.interface; };
  if (has_interface && !has_address && std::count_if(rails.begin(), rails.end(), same) > 1) {
    out.emplace_back("",
                     absl::StrCat("another rail has interface ", rail.interface, "; give each an address of its own"));
  }
  if (has_device && rail.device.empty()) return out;  // a wrong device has been reported
  if (rail.kind == RailKind::kTcp) {
    const char* hint = "; a rail has an address or an interface (TCP) or a device (RDMA verbs)";
    if (has_device) out.emplace_back("", "a tcp rail has an address and no device");
    if (has_device || has_address || has_interface) return out;
    out.emplace_back("address", absl::StrCat("missing", transport == "tcp" ? "" : hint));
    return out;
  }
  if (!has_device) out.emplace_back("", "a verbs rail needs a device, as in mlx5_0/1");
  if (has_interface || !rail.address.empty()) {
    out.emplace_back("", "a verbs rail has a device and neither address nor interface");
  }
  if (IsPattern(rail) && !rail.name.empty()) {
    out.emplace_back("", "a pattern may give several rails, so its entry has no name");
  }
  return out;
}

// Gives names to rails without a name. After a pattern the index of a rail, and so its name, is not known yet.
Mistakes CheckRails(std::vector<RailSpec>& rails) {
  bool counted = true;
  for (size_t i = 0; i < rails.size(); ++i) {
    if (rails[i].kind != rails[0].kind) {
      return {{"", "rails over tcp and over verbs in one node; all rails of a cluster have one transport"}};
    }
    counted = counted && !IsPattern(rails[i]);
    if (rails[i].name.empty() && counted) rails[i].name = absl::StrCat("rail", i);
  }
  return {};
}

Field RailsField(Config& c) {
  const auto taken = std::make_shared<RailAddresses>();
  const auto rail_field = [&c, taken](RailSpec& rail) {
    const bool verbs = rail.kind == RailKind::kVerbs;
    const auto address_mistake = [taken](const std::string& text) -> std::string {
      const absl::StatusOr<HostPort> network = ParseHostPort(text, true);
      if (!network.ok() || !LooksLikeNetwork(network->host)) return RailAddressMistake(text, *taken);
      return std::string(IpNetwork::Parse(network->host).status().message());
    };
    const FieldOptions speed = {.omit = rail.speed_bytes_per_s == 0};
    const Fields fields = {
        Text("name", rail.name, Name(63), {.omit = rail.name.empty(), .unique = "another rail has this name"}),
        Choice("transport", rail.kind, {"tcp", "verbs"}, {.quoted = true}),
        Text("device", rail.device, DeviceMistake, {.omit = !verbs, .unique = "another rail has this device"}),
        Text("address", rail.address, address_mistake, {.omit = verbs || rail.address.empty()}),
        Text("interface", rail.interface, Printable(15), {.omit = verbs}),
        Within<uint64_t, uint64_t>("speed", rail.speed_bytes_per_s, 0, UINT64_MAX, ParseRate, FormatRate, speed),
    };
    return Section(rail.name, fields, {.flow = true},
                   [&c, &rail](const Texts& given) { return CheckRail(given, c.rails, rail); });
  };
  Field out = List("rails", c.rails, kMaxRails, rail_field, {.required = true});
  out.check = [&c](const Texts&) { return CheckRails(c.rails); };
  out.set = [&c](const std::string& text) {
    c.auto_rails = text == "auto";
    return c.auto_rails ? "" : "expected a list, or auto";
  };
  if (c.auto_rails) out.kind = Field::Kind::kValue;
  if (c.auto_rails) out.text = "auto";
  return out;
}

Field AutoRailsField(Config& c) {
  AutoRailsConfig& rails = c.auto_rails_choice;
  const auto check = [&c](const Texts&) -> Mistakes {
    if (c.auto_rails || c.auto_rails_choice == AutoRailsConfig()) return {};
    return {{"", "only `rails: auto` uses it"}};
  };
  const Fields fields = {
      TextList("take", rails.take, kMaxPortRules, PortRuleMistake),
      TextList("leave", rails.leave, kMaxPortRules, PortRuleMistake),
      Number("count", rails.count, 0, kMaxRails),
  };
  return Section("auto_rails", fields, {}, check);
}

// An address that this node dials. Unlike one to listen on, it has a port.
std::string PeerAddressMistake(const std::string& text) {
  if (std::string why = HostAndPort(false)(text); !why.empty()) return why;
  return ParseHostPort(text, false)->port == 0 ? "port 0 cannot be dialled; give the port of the peer's control.listen"
                                               : "";
}

Field PeersField(Config& c) {
  const auto taken = std::make_shared<RailAddresses>();  // addresses of the rails of all peers
  const auto peer_field = [taken](StaticPeerConfig& peer) {
    const auto rail_mistake = [&peer, taken](const std::string& text) -> std::string {
      if (!IsVerbsAddress(text)) return RailAddressMistake(text, *taken);
      const bool twice = std::find(peer.rails.begin(), peer.rails.end(), text) != peer.rails.end();
      return twice ? "another rail of this peer has this device" : "";
    };
    const Fields fields = {
        Text("name", peer.name, Name(253), {.required = true, .id = true, .unique = "another peer has this name"}),
        Text("control", peer.control, PeerAddressMistake,
             {.required = true, .unique = "another peer has this address"}),
        TextList("rails", peer.rails, kMaxRails, rail_mistake),
    };
    return Section(peer.name, fields, {.flow = true});
  };
  return List("static", c.static_peers, kMaxPeers, peer_field, kLive);
}

Field PolicyField(Policy& policy) {
  const auto set = [&policy](const std::string& text) {
    const absl::StatusOr<Policy> known = ParsePolicy(text);
    if (known.ok()) policy = *known;
    return std::string(known.status().message());
  };
  return {.name = "policy", .options = {.lenient = true}, .text = std::string(PolicyName(policy)), .set = set};
}

Mistakes CheckPlan(const PlanOptions& plan) {
  if (plan.min_chunk_bytes <= plan.chunk_bytes) return {};
  return {{"", absl::StrCat("min_chunk ", FormatBytes(plan.min_chunk_bytes), " is more than chunk ",
                            FormatBytes(plan.chunk_bytes))}};
}

Field GidIndex(std::optional<uint8_t>& index) {
  const auto set = [&index](const std::string& text) {
    index.reset();
    return text == "auto" ? "" : Number("", index.emplace(), 0, 255).set(text);
  };
  return {.name = "gid_index", .text = index ? FormatNumber(*index) : "auto", .set = set};
}

Field PathMtu(uint32_t& bytes) {
  const auto set = [&bytes](const std::string& text) {
    bytes = 0;
    const std::string why = text == "auto" ? "" : Bytes("", bytes, 256, 4096).set(text);
    return (bytes & (bytes - 1)) == 0 ? why : "not one of auto, 256, 512, 1024, 2048, 4096";
  };
  return {.name = "path_mtu", .text = bytes == 0 ? "auto" : FormatNumber(bytes), .set = set};
}

Field RetryCount(uint8_t& count) {
  Field out = Number("retry_count", count, 0, 6);
  out.set = [number = out.set](const std::string& text) {
    return text == "7" ? "with 7 some devices retry for ever and never report a dead peer" : number(text);
  };
  return out;
}

Fields VerbsFields(VerbsTuning& v) {
  return {
      Number("queue_pairs_per_peer", v.queue_pairs_per_peer, 1, 16),
      Number("send_queue_depth", v.send_queue_depth, 1, 1 << 15),
      Number("completion_queue_depth", v.completion_queue_depth, 1, 1 << 22),
      Number("fence_queue_depth", v.fence_queue_depth, 1, 1 << 15),
      GidIndex(v.gid_index),
      PathMtu(v.path_mtu_bytes),
      Number("service_level", v.service_level, 0, 15),
      Number("traffic_class", v.traffic_class, 0, 255),
      Number("timeout", v.timeout, 1, 22),
      RetryCount(v.retry_count),
      Bytes("inline_bytes", v.inline_bytes, 0, 4096),
      Time("busy_poll", v.busy_poll, absl::ZeroDuration(), absl::Seconds(1)),
      Number("max_windows", v.max_windows, 0, 1 << 16),
  };
}

Field TenantField(TenantConfig& tenant) {
  QuotaNumbers& quota = tenant.quota;
  const Fields quotas = {
      Number("sessions", quota[QuotaKind::kSessions], 0, 1 << 20, kLive),
      Number("segments", quota[QuotaKind::kSegments], 0, 1 << 20, kLive),
      Bytes("segment_bytes", quota[QuotaKind::kSegmentBytes], 0, kMaxSegmentBytes, kLive),
      Number("jobs", quota[QuotaKind::kJobs], 0, 1 << 20, kLive),
      Number("jobs_per_second", quota[QuotaKind::kJobsPerSecond], 0, 1'000'000, kLive),
  };
  const Fields shares = {
      Number("weight", tenant.share.weight, 1, 1000, kLive),
      Number("priority", tenant.share.priority, 0, 7, kLive),
  };
  const Fields fields = {
      Text("name", tenant.name, TenantNameMistake,
           {.required = true, .id = true, .unique = "another tenant has this name"}),
      TextList("users", tenant.users, kMaxMembers, Printable(kMaxAccount, false)),
      TextList("groups", tenant.groups, kMaxMembers, Printable(kMaxAccount, false)),
      Text("socket_group", tenant.socket_group, Printable(kMaxAccount)),
      Section("quota", quotas, {.flow = true}),
      Section("share", shares, {.flow = true}),
  };
  return Section(tenant.name, fields);
}

// Not live: max_world_size, because HELLOs have told it to peers; max_ranges_per_submission, max_name and max_join_key,
// because the services check requests by their own copy of them.
Fields LimitFields(Config& c) {
  AgentLimits& agent = c.limits;
  ConnectionLimits& connections = c.connections;
  return {
      Number("max_sessions", agent.max_sessions, 1, 1 << 16, kLive),
      Number("max_segments_per_session", agent.max_segments_per_session, 1, 1 << 16, kLive),
      Bytes("max_segment_bytes_per_session", agent.max_segment_bytes_per_session, 1, kMaxSegmentBytes, kLive),
      Number("max_groups", agent.max_groups, 1, 1 << 16, kLive),
      Number("max_jobs_per_group", agent.max_jobs_per_group, 1, 1 << 16, kLive),
      Number("max_ranges_per_submission", agent.max_ranges_per_submission, 1, 1 << 26),
      Number("max_prepared_per_session", agent.max_prepared_per_session, 1, 1 << 16, kLive),
      Number("max_prepared_ranges_per_session", agent.max_prepared_ranges_per_session, 1, 1 << 28, kLive),
      Number("max_world_size", agent.max_world_size, 1, 1 << 16),
      Bytes("max_name", agent.max_name_bytes, 1, 256),
      Bytes("max_join_key", agent.max_join_key_bytes, 1, 64 * kKiB),
      Number("max_waiting_calls", agent.max_waiting_calls, 1, 1 << 20, kLive),
      Number("finished_jobs_kept", c.finished_jobs_kept, 1, 1 << 20, kLive),
      Number("explained_jobs", c.explained_jobs, 0, 1024),
      Bytes("max_message", c.max_message_bytes, 64 * kKiB, kGiB),
      Number("max_control_connections", connections.max_control_connections, 1, 1 << 16),
      Number("max_control_connections_per_address", connections.max_control_connections_per_address, 1, 1 << 16),
      Number("max_calls_per_client_connection", connections.max_calls_per_client_connection, 1, 1 << 16),
      Number("max_watches_per_session", connections.max_watches_per_session, 1, 1 << 16),
      Bytes("max_headers", connections.max_headers_bytes, 4 * kKiB, kMiB),
      Bytes("max_grpc_memory", connections.max_grpc_memory_bytes, kMiB, 1024 * kGiB),
      Number("max_half_open", agent.max_half_open, 1, 1 << 16),
      Bytes("max_http_request", connections.max_http_request_bytes, kKiB, kMiB),
  };
}

Mistakes CheckTimeouts(const TimeoutsConfig& t) {
  if (2 * t.heartbeat <= t.peer_lost) return {};
  return {{"", absl::StrCat("peer_lost ", absl::FormatDuration(t.peer_lost), " is less than two heartbeats of ",
                            absl::FormatDuration(t.heartbeat))}};
}

Fields TimeoutFields(TimeoutsConfig& t) {
  return {
      Time("job", t.job, absl::Milliseconds(1), absl::Hours(24 * 7), kLive),
      Time("join", t.join, absl::Milliseconds(1), absl::Hours(24 * 7), kLive),
      Time("peer_lost", t.peer_lost, absl::Milliseconds(10), absl::Hours(1)),
      Time("max_peer_wait", t.max_peer_wait, absl::Milliseconds(10), absl::Hours(24)),
      Time("heartbeat", t.heartbeat, absl::Milliseconds(5), absl::Minutes(10)),
      Time("drain", t.drain, absl::ZeroDuration(), absl::Hours(24), kLive),
      Time("stuck", t.stuck, absl::Seconds(2), absl::Hours(1)),
      Time("handshake", t.handshake, absl::Milliseconds(100), absl::Minutes(10)),
      Time("rail_handshake", t.rail_handshake, absl::Milliseconds(100), absl::Minutes(10)),
      Time("idle", t.idle, absl::Milliseconds(100), absl::Hours(24)),
      Time("http", t.http, absl::Milliseconds(100), absl::Minutes(10)),
  };
}

Mistakes CheckHealth(const HealthOptions& h) {
  if (h.first_hold <= h.max_hold) return {};
  return {{"", absl::StrCat("max_hold ", absl::FormatDuration(h.max_hold), " is less than first_hold ",
                            absl::FormatDuration(h.first_hold))}};
}

Fields HealthFields(HealthOptions& h) {
  return {
      Time("first_hold", h.first_hold, absl::ZeroDuration(), absl::Minutes(10)),
      Time("max_hold", h.max_hold, absl::ZeroDuration(), absl::Hours(1)),
      Time("half_life", h.half_life, absl::Milliseconds(1), absl::Hours(24)),
      Time("stall", h.stall, absl::ZeroDuration(), absl::Minutes(1)),
  };
}

}  // namespace

std::vector<Field> ConfigFields(Config& c) {
  const Fields dns = {
      Text("name", c.dns.name, Name(253), {.required = true}),
      Number("port", c.dns.port, 1, 65535),
      Time("refresh", c.dns.refresh, absl::Milliseconds(100), absl::Hours(1)),
  };
  const Fields peers = {
      PeersField(c),
      Section("dns", dns, {.omit = c.dns.name.empty(), .flow = true}),
  };
  const Fields metrics = {
      Text("listen", c.metrics_listen, MetricsListenMistake),
      Number("max_peers", c.metrics_max_peers, 0, 65536),
  };
  const Fields plan = {
      PolicyField(c.plan.policy),
      Choice("late_binding", c.late_binding, {"false", "true"}, {}, "give true or false"),
      Bytes("chunk", c.plan.chunk_bytes, 1, kGiB),
      Bytes("min_chunk", c.plan.min_chunk_bytes, 1, kGiB),
  };
  const Fields data = {
      Bytes("eager", c.eager_bytes, 0, Ready::kMaxEagerBytes),
      Bytes("frame", c.frame_bytes, 0, 64 * kMiB),
      Bytes("window", c.window_bytes, 0, 16 * kGiB),
      Number("copy_threads", c.copy_threads, 0, 256),
      Time("spin", c.spin, absl::ZeroDuration(), absl::Milliseconds(10)),
  };
  const Fields log = {
      Text("level", c.log.level, OneOf({"trace", "debug", "info", "warning", "error"}),
           {.live = true, .lenient = true}),
      Text("file", c.log.file, Printable(kMaxFile)),
      Choice("format", c.log.format, {"text", "json"}),
  };
  return {
      Text("node", c.node, Name(253)),
      Text("socket_dir", c.socket_dir, AbsolutePath(kMaxSocketDir, false)),
      FileMode("socket_mode", c.socket_mode),
      Text("socket_group", c.socket_group, Printable(kMaxAccount)),
      FileMode("operator_mode", c.operator_mode),
      Text("operator_group", c.operator_group, Printable(kMaxAccount)),
      Section("control", {Text("listen", c.control_listen, ListenMistake)}),
      Section("tls", TlsFields(c.tls), {}, [&c](const Texts& given) { return CheckTls(given, c.tls); }),
      RailsField(c),
      AutoRailsField(c),
      Section("peers", peers),
      Section("metrics", metrics),
      Section("plan", plan, {}, [&c](const Texts&) { return CheckPlan(c.plan); }),
      Section("data", data),
      Section("verbs", VerbsFields(c.verbs)),
      List("tenants", c.tenants, kMaxTenants, TenantField),
      Section("limits", LimitFields(c)),
      Section("timeouts", TimeoutFields(c.timeouts), {}, [&c](const Texts&) { return CheckTimeouts(c.timeouts); }),
      Section("health", HealthFields(c.health), {}, [&c](const Texts&) { return CheckHealth(c.health); }),
      Section("log", log),
  };
}

}  // namespace railsd
