#include "proto/json/json.h"

#include <nlohmann/json.hpp>

#include "proto/json/names.h"

namespace rails {
namespace {

using Json = nlohmann::ordered_json;

Json EpochJson(const v1::Epoch& epoch) {
  return {{"boot_id", FormatId(epoch.boot_id())}, {"counter", epoch.counter()}};
}

template <typename Repeated>
Json ArrayOf(const Repeated& values) {
  Json array = Json::array();
  for (const auto& value : values) array.push_back(value);
  return array;
}

Json JobJson(const v1::JobReport& job) {
  return {{"group", job.group()},
          {"epoch", EpochJson(job.job().epoch())},
          {"seq", job.job().seq()},
          {"rank", job.job().rank()},
          {"tag", job.tag()},
          {"state", std::string(JobStateName(job.state()))},
          {"code", CodeName(job.code())},
          {"message", job.message()},
          {"bytes_to_send", job.bytes_to_send()},
          {"bytes_sent", job.bytes_sent()},
          {"bytes_to_receive", job.bytes_to_receive()},
          {"bytes_received", job.bytes_received()},
          {"elapsed_seconds", job.elapsed_seconds()},
          {"waiting_for_ranks_seconds", job.waiting_for_ranks_seconds()},
          {"waiting_for_peers_seconds", job.waiting_for_peers_seconds()},
          {"node_bound_seconds", job.node_bound_seconds()},
          {"ratio_to_bound", job.ratio_to_bound()},
          {"rail_tx_bytes", ArrayOf(job.rail_tx_bytes())},
          {"rail_rx_bytes", ArrayOf(job.rail_rx_bytes())},
          {"rail_planned_bytes", ArrayOf(job.rail_planned_bytes())},
          {"eager_sent_bytes", job.eager_sent_bytes()},
          {"eager_received_bytes", job.eager_received_bytes()},
          {"to_first_chunk_seconds", job.to_first_chunk_seconds()},
          {"sending_seconds", job.sending_seconds()},
          {"receiving_seconds", job.receiving_seconds()},
          {"lost_ranks", ArrayOf(job.lost_ranks())},
          {"efficiency",
           {{"total", job.efficiency().total()},
            {"data", job.efficiency().data()},
            {"moving", job.efficiency().moving()},
            {"utilisation", job.efficiency().utilisation()}}}};
}

template <typename Repeated>
Json JobArray(const Repeated& jobs) {
  Json array = Json::array();
  for (const auto& job : jobs) array.push_back(JobJson(job));
  return array;
}

template <typename Repeated>
Json RailArray(const Repeated& rails) {
  Json array = Json::array();
  for (const auto& rail : rails) array.push_back(RailJson(rail));
  return array;
}

template <typename Repeated>
Json PeerArray(const Repeated& peers) {
  Json array = Json::array();
  for (const auto& peer : peers) {
    Json states = Json::array();
    for (const int state : peer.rail_states()) states.push_back(RailStateName(static_cast<v1::RailState>(state)));
    array.push_back({{"node", peer.node()},
                     {"boot_id", FormatId(peer.boot_id())},
                     {"up", peer.up()},
                     {"rails_up", ArrayOf(peer.rails_up())},
                     {"rail_states", std::move(states)},
                     {"rail_tx_bytes", ArrayOf(peer.rail_tx_bytes())},
                     {"rail_rx_bytes", ArrayOf(peer.rail_rx_bytes())},
                     {"rail_addresses", ArrayOf(peer.rail_addresses())},
                     {"version", peer.version()},
                     {"rail_count", peer.rail_count()},
                     {"connections", peer.connections()},
                     {"dial_failure", peer.dial_failure()},
                     {"why", peer.why()}});
  }
  return array;
}

Json TenantArray(const v1::GetStatusResponse& status) {
  Json tenants = Json::array();
  for (const auto& tenant : status.tenants()) {
    Json quotas = Json::object();
    for (const auto& quota : tenant.quotas()) {
      quotas[quota.name()] = {{"value", quota.value()}, {"in_use", quota.in_use()}, {"refused", quota.refused()}};
    }
    tenants.push_back({{"name", tenant.name()},
                       {"quotas", std::move(quotas)},
                       {"jobs_done", tenant.jobs_done()},
                       {"jobs_failed", tenant.jobs_failed()},
                       {"bytes_sent", tenant.bytes_sent()},
                       {"bytes_received", tenant.bytes_received()},
                       {"weight", tenant.weight()},
                       {"priority", tenant.priority()},
                       {"rail_sent_bytes", ArrayOf(tenant.rail_sent_bytes())}});
  }
  return tenants;
}

}  // namespace

Json StatusJson(const v1::GetStatusResponse& status) {
  Json sessions = Json::array();
  for (const auto& session : status.sessions()) {
    sessions.push_back({{"session_id", FormatId(session.session_id())},
                        {"pid", session.pid()},
                        {"uid", session.uid()},
                        {"gid", session.gid()},
                        {"tenant", session.tenant()},
                        {"segments", session.segments()},
                        {"segment_bytes", session.segment_bytes()},
                        {"memberships", session.memberships()}});
  }
  Json groups = Json::array();
  for (const auto& group : status.groups()) {
    groups.push_back({{"tenant", group.tenant()},
                      {"name", group.name()},
                      {"epoch", EpochJson(group.epoch())},
                      {"world_size", group.world_size()},
                      {"members", ArrayOf(group.members())},
                      {"local_ranks", ArrayOf(group.local_ranks())},
                      {"broken", group.broken()},
                      {"why_broken", group.why_broken()},
                      {"recovery", RecoveryText(group)},
                      {"lost_nodes", ArrayOf(group.lost_nodes())}});
  }
  Json forming = Json::array();
  for (const auto& group : status.forming_groups()) {
    forming.push_back({{"tenant", group.tenant()},
                       {"name", group.name()},
                       {"world_size", group.world_size()},
                       {"joined", group.joined()},
                       {"local_ranks", ArrayOf(group.local_ranks())},
                       {"missing_ranks", ArrayOf(group.missing_ranks())}});
  }
  return {{"node", status.node()},
          {"version", status.version()},
          {"boot_id", FormatId(status.boot_id())},
          {"uptime_seconds", status.uptime_seconds()},
          {"draining", status.draining()},
          {"config_hash", status.config_hash()},
          {"tls", status.tls()},
          {"tls_certificate_expiry_seconds", status.tls_certificate_expiry_seconds()},
          {"jobs_active", status.jobs_active()},
          {"jobs_done", status.jobs_done()},
          {"jobs_failed", status.jobs_failed()},
          {"sessions", std::move(sessions)},
          {"groups", std::move(groups)},
          {"forming_groups", std::move(forming)},
          {"tenants", TenantArray(status)}};
}

Json TenantsJson(const v1::GetStatusResponse& status) { return {{"tenants", TenantArray(status)}}; }

Json DeviceJson(const v1::RailDevice& device) {
  return {{"name", device.name()},
          {"port", device.port()},
          {"state", device.state()},
          {"link_layer", device.link_layer()},
          {"gid", device.gid()},
          {"gid_index", device.gid_index()},
          {"mtu_bytes", device.mtu_bytes()},
          {"windows", device.windows()},
          {"queue_pairs", device.queue_pairs()},
          {"work_requests", device.work_requests()},
          {"completions", device.completions()},
          {"tx_fences", device.tx_fences()},
          {"rx_fences", device.rx_fences()},
          {"weak_zones", device.weak_zones()},
          {"endpoint_errors", device.endpoint_errors()}};
}

Json HealthJson(const v1::RailHealth& health) {
  return {{"state", RailStateName(health.state())},
          {"drained", health.drained()},
          {"why", health.why()},
          {"flaps", health.flaps()},
          {"drains", health.drains()},
          {"held_seconds", health.held_seconds()}};
}

Json RailJson(const v1::RailStatus& rail) {
  return {{"index", rail.index()},
          {"name", rail.name()},
          {"address", rail.address()},
          {"interface", rail.interface()},
          {"speed_bytes_per_second", rail.speed_bytes_per_second()},
          {"measured_bytes_per_second", rail.measured_bytes_per_second()},
          {"peers_up", rail.peers_up()},
          {"peers_drained", rail.peers_drained()},
          {"peers_known", rail.peers_known()},
          {"queued_bytes", rail.queued_bytes()},
          {"in_flight_bytes", rail.in_flight_bytes()},
          {"tx_payload_bytes", rail.tx_payload_bytes()},
          {"rx_payload_bytes", rail.rx_payload_bytes()},
          {"tx_chunks", rail.tx_chunks()},
          {"rx_chunks", rail.rx_chunks()},
          {"tx_system_calls", rail.tx_system_calls()},
          {"rx_system_calls", rail.rx_system_calls()},
          {"protocol_errors", rail.protocol_errors()},
          {"refused_connections", rail.refused_connections()},
          {"disconnects", rail.disconnects()},
          {"connect_failures", rail.connect_failures()},
          {"planned_bytes_per_second", rail.planned_bytes_per_second()},
          {"planned_bytes", rail.planned_bytes()},
          {"health", HealthJson(rail.health())},
          {"device", rail.has_device() ? DeviceJson(rail.device()) : Json()}};
}

Json ReloadJson(const v1::ReloadResponse& reload) {
  const auto changes = [](const auto& list) {
    Json out = Json::array();
    for (const auto& change : list) {
      out.push_back({{"key", change.key()}, {"before", change.before()}, {"after", change.after()}});
    }
    return out;
  };
  return {{"applied", changes(reload.applied())},
          {"needs_restart", changes(reload.needs_restart())},
          {"config_hash", reload.config_hash()}};
}

Json RailsJson(const v1::ListRailsResponse& rails) {
  return {{"rails", RailArray(rails.rails())},
          {"eager_sent_bytes", rails.eager_sent_bytes()},
          {"eager_received_bytes", rails.eager_received_bytes()}};
}

Json PeersJson(const v1::ListPeersResponse& peers) { return {{"peers", PeerArray(peers.peers())}}; }

Json JobsJson(const v1::ListJobsResponse& jobs) {
  return {{"active", JobArray(jobs.active())}, {"finished", JobArray(jobs.finished())}};
}

Json ExplanationJson(const v1::ExplainJobResponse& job) {
  Json ranks = Json::array(), rails = Json::array(), exchanges = Json::array(), chunks = Json::array();
  for (const auto& rank : job.ranks()) {
    ranks.push_back({{"rank", rank.rank()},
                     {"submitted_seconds", rank.submitted_seconds()},
                     {"ended_seconds", rank.ended_seconds()}});
  }
  for (const auto& rail : job.rails()) {
    rails.push_back({{"rail", rail.rail()},
                     {"speed_bytes_per_second", rail.speed_bytes_per_second()},
                     {"planned_bytes", rail.planned_bytes()},
                     {"tx_bytes", rail.tx_bytes()},
                     {"rx_bytes", rail.rx_bytes()},
                     {"chunks", rail.chunks()},
                     {"returned_chunks", rail.returned_chunks()},
                     {"first_posted_seconds", rail.first_posted_seconds()},
                     {"last_acknowledged_seconds", rail.last_acknowledged_seconds()},
                     {"last_received_seconds", rail.last_received_seconds()},
                     {"busy_seconds", rail.busy_seconds()},
                     {"drained", rail.drained()}});
  }
  for (const auto& exchange : job.exchanges()) {
    exchanges.push_back({{"node", exchange.node()},
                         {"out_bytes", exchange.out_bytes()},
                         {"in_bytes", exchange.in_bytes()},
                         {"ready_sent_seconds", exchange.ready_sent_seconds()},
                         {"ready_received_seconds", exchange.ready_received_seconds()},
                         {"grant_sent_seconds", exchange.grant_sent_seconds()},
                         {"grant_received_seconds", exchange.grant_received_seconds()},
                         {"planned_seconds", exchange.planned_seconds()},
                         {"last_acknowledged_seconds", exchange.last_acknowledged_seconds()},
                         {"last_received_seconds", exchange.last_received_seconds()},
                         {"left_out", exchange.left_out()},
                         {"eager_out", exchange.eager_out()},
                         {"eager_in", exchange.eager_in()}});
  }
  for (const auto& chunk : job.chunks()) {
    chunks.push_back({{"rail", chunk.rail()},
                      {"exchange", chunk.exchange()},
                      {"source_rank", chunk.source_rank()},
                      {"length_bytes", chunk.length_bytes()},
                      {"posted_seconds", chunk.posted_seconds()},
                      {"ended_seconds", chunk.ended_seconds()},
                      {"returned", chunk.returned()}});
  }
  return {{"report", JobJson(job.report())},
          {"node", job.node()},
          {"begun_seconds", job.begun_seconds()},
          {"ranks", std::move(ranks)},
          {"rails", std::move(rails)},
          {"exchanges", std::move(exchanges)},
          {"chunks", std::move(chunks)},
          {"chunks_left_out", job.chunks_left_out()},
          {"waits_for", job.waits_for()}};
}

Json OverviewJson(const v1::GetOverviewResponse& overview) {
  Json balance = Json::array();
  for (const auto& window : overview.balance()) {
    balance.push_back({{"length_seconds", window.length_seconds()},
                       {"tx_max_over_mean", window.tx_max_over_mean()},
                       {"rx_max_over_mean", window.rx_max_over_mean()},
                       {"planned_max_over_mean", window.planned_max_over_mean()},
                       {"tx_jain", window.tx_jain()},
                       {"rx_jain", window.rx_jain()},
                       {"planned_jain", window.planned_jain()},
                       {"planned_rx_max_over_mean", window.planned_rx_max_over_mean()},
                       {"planned_rx_jain", window.planned_rx_jain()}});
  }
  return {{"time_seconds", overview.time_seconds()},
          {"status", StatusJson(overview.status())},
          {"rails", RailArray(overview.rails())},
          {"peers", PeerArray(overview.peers())},
          {"active", JobArray(overview.active())},
          {"finished", JobArray(overview.finished())},
          {"balance", std::move(balance)}};
}

}  // namespace rails
