#include "daemon/services/overview.h"

#include <optional>
#include <utility>

#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "daemon/lifecycle/reloader.h"
#include "daemon/metrics/balance.h"
#include "daemon/tls/tls_files.h"
#include "rails/v1/operator.pb.h"

namespace railsd {

namespace {

static_assert(static_cast<int>(HealthState::kUp) + 1 == rails::v1::RAIL_STATE_UP);
static_assert(static_cast<int>(HealthState::kSuspect) + 1 == rails::v1::RAIL_STATE_SUSPECT);
static_assert(static_cast<int>(HealthState::kDown) + 1 == rails::v1::RAIL_STATE_DOWN);
static_assert(static_cast<int>(HealthState::kProbing) + 1 == rails::v1::RAIL_STATE_PROBING);
static_assert(static_cast<int>(HealthState::kDrainedByPeer) + 1 == rails::v1::RAIL_STATE_DRAINED_BY_PEER);

rails::v1::RailState StateTo(HealthState state) {
  return static_cast<rails::v1::RailState>(static_cast<int>(state) + 1);
}

void HealthTo(const RailHealthView& health, rails::v1::RailHealth* out) {
  out->set_state(StateTo(health.state));
  out->set_drained(health.drained);
  out->set_why(health.why);
  out->set_flaps(health.flaps);
  out->set_drains(health.drains);
  out->set_held_seconds(absl::ToDoubleSeconds(health.held));
}

}  // namespace

void RailTo(const RailView& rail, const ServiceContext& context, rails::v1::RailStatus* out) {
  out->set_index(rail.index.value());
  out->set_name(rail.name);
  out->set_address(rail.address);
  out->set_interface(rail.interface);
  // A GID gives an IPv4 address in its mapped form, ::ffff:10.1.0.1.
  const bool verbs = !rail.device.name.empty();
  const std::string address(verbs ? absl::StripPrefix(rail.device.gid, "::ffff:") : rail.address);
  out->set_subnet(SubnetOf(address, context.addresses));
  out->set_speed_bytes_per_second(rail.speed_bytes_per_s);
  out->set_measured_bytes_per_second(rail.measured_bytes_per_s);
  out->set_peers_up(rail.peers_up);
  out->set_peers_known(rail.peers_known);
  out->set_peers_drained(rail.peers_drained);
  out->set_queued_bytes(rail.queued_bytes);
  out->set_in_flight_bytes(rail.in_flight_bytes);
  for (const RailCounterInfo& counter : kRailCounters) {
    rails::v1::RailCounter* const entry = out->add_counters();
    entry->set_name(counter.name);
    entry->set_value(rail.counts.*counter.count);
  }
  HealthTo(rail.health, out->mutable_health());
  out->set_planned_bytes_per_second(rail.planned_bytes_per_s);
  out->set_planned_bytes(rail.planned_bytes);
  if (!verbs) return;
  auto* device = out->mutable_device();
  device->set_name(rail.device.name);
  device->set_port(rail.device.port);
  device->set_state(rail.device.state);
  device->set_link_layer(rail.device.link_layer);
  device->set_gid(rail.device.gid);
  device->set_gid_index(rail.device.gid_index);
  device->set_mtu_bytes(rail.device.mtu_bytes);
  device->set_windows(rail.device.windows);
  device->set_dma_bufs(rail.device.dma_bufs);
  device->set_queue_pairs(static_cast<uint32_t>(rail.queue_pairs));
}

void PeerTo(const PeerView& peer, rails::v1::PeerStatus* out) {
  out->set_node(peer.node);
  out->set_boot_id(peer.boot.value());
  out->set_up(peer.up);
  for (const bool up : peer.rails_up) out->add_rails_up(up);
  for (const std::string& address : peer.rail_addresses) out->add_rail_addresses(address);
  out->set_why(peer.why);
  for (const HealthState state : peer.rail_states) out->add_rail_states(StateTo(state));
  out->mutable_rail_tx_bytes()->Add(peer.rail_tx_bytes.begin(), peer.rail_tx_bytes.end());
  out->mutable_rail_rx_bytes()->Add(peer.rail_rx_bytes.begin(), peer.rail_rx_bytes.end());
  out->set_version(peer.version);
  out->set_rail_count(peer.rail_count);
  out->set_connections(peer.connections);
  out->set_dial_failure(peer.dial_failure);
}

void StatusTo(const AgentSnapshot& snapshot, const ServiceContext& context, rails::v1::GetStatusResponse* out) {
  out->set_node(context.node);
  out->set_version(context.version);
  out->set_boot_id(context.boot.value());
  out->set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - context.started));
  out->set_config_hash(context.config_hash());
  if (context.reloader != nullptr) out->set_shared_config_hash(context.reloader->shared_config_hash());
  out->set_tls(context.tls != nullptr);
  if (context.tls != nullptr) {
    out->set_tls_certificate_expiry_seconds(static_cast<double>(absl::ToUnixSeconds(context.tls->expires())));
  }
  for (const SessionView& session : snapshot.sessions) {
    auto* s = out->add_sessions();
    s->set_session_id(session.id.value());
    s->set_pid(session.info.pid);
    s->set_uid(session.info.uid);
    s->set_gid(session.info.gid);
    s->set_tenant(session.info.tenant);
    s->set_segments(session.segments);
    s->set_segment_bytes(session.segment_bytes);
    s->set_memberships(session.memberships);
    s->set_client_name(session.info.client_name);
  }
  for (const GroupView& group : snapshot.groups) {
    auto* g = out->add_groups();
    g->set_tenant(group.tenant);
    g->set_name(group.name);
    EpochTo(group.epoch, g->mutable_epoch());
    g->set_world_size(group.world_size);
    for (const std::string& node : group.members) g->add_members(node);
    for (const Rank rank : group.local_ranks) g->add_local_ranks(rank.value());
    g->set_broken(group.broken);
    g->set_why_broken(group.broken ? group.why.ToString() : "");
    g->set_recovery(static_cast<rails::v1::RecoveryPolicy>(group.recovery.policy));
    g->set_wait_limit_milliseconds(static_cast<uint64_t>(absl::ToInt64Milliseconds(group.recovery.wait_limit)));
    for (const std::string& node : group.lost) g->add_lost_nodes(node);
  }
  for (const FormingView& forming : snapshot.forming) {
    auto* g = out->add_forming_groups();
    g->set_tenant(forming.tenant);
    g->set_name(forming.name);
    g->set_world_size(forming.world_size);
    g->set_joined(forming.joined);
    for (const Rank rank : forming.local_ranks) g->add_local_ranks(rank.value());
    for (const Rank rank : forming.missing) g->add_missing_ranks(rank.value());
  }
  for (const TenantView& tenant : snapshot.tenants) {
    auto* t = out->add_tenants();
    t->set_name(tenant.name);
    for (const QuotaKind kind : kAllQuotas) {
      auto* quota = t->add_quotas();
      quota->set_name(QuotaName(kind));
      quota->set_value(tenant.quota[kind]);
      quota->set_in_use(tenant.in_use[kind]);
      quota->set_refused(tenant.refused[kind]);
    }
    t->set_jobs_done(tenant.jobs_done);
    t->set_jobs_failed(tenant.jobs_failed);
    t->set_bytes_sent(tenant.bytes_sent);
    t->set_bytes_received(tenant.bytes_received);
    t->set_weight(tenant.share.weight);
    t->set_priority(tenant.share.priority);
    t->mutable_rail_sent_bytes()->Add(tenant.rail_sent_bytes.begin(), tenant.rail_sent_bytes.end());
  }
  out->set_draining(snapshot.draining);
  out->set_jobs_active(snapshot.counters.jobs_active);
  out->set_jobs_done(snapshot.counters.jobs_done);
  out->set_jobs_failed(snapshot.counters.jobs_failed);
}

std::vector<PeerView> AllPeers(const AgentSnapshot& snapshot, const ServiceContext& context) {
  std::vector<PeerView> known = snapshot.peers;
  for (const PeerView& peer : context.peers ? context.peers() : snapshot.peers) {
    const auto it = std::find_if(known.begin(), known.end(), [&](const PeerView& k) { return k.node == peer.node; });
    if (it == known.end()) {
      known.push_back(peer);
      continue;
    }
    it->version = peer.version;
    it->rail_count = peer.rail_count;
    it->connections = peer.connections;
    it->dial_failure = peer.dial_failure;
    if (!peer.why.empty()) it->why = peer.why;
  }
  std::sort(known.begin(), known.end(), [](const PeerView& a, const PeerView& b) { return a.node < b.node; });
  return known;
}

void OverviewTo(const AgentSnapshot& snapshot, const ServiceContext& context, uint32_t finished_limit,
                rails::v1::GetOverviewResponse* out) {
  out->set_time_seconds(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  StatusTo(snapshot, context, out->mutable_status());
  RailsTo(snapshot, context, out);
  for (const PeerView& peer : AllPeers(snapshot, context)) PeerTo(peer, out->add_peers());
  JobsTo(snapshot, finished_limit, out);
  if (context.balance == nullptr) return;
  const std::vector<BalanceMeter::Window> windows = context.balance->Read();
  for (size_t w = 0; w < windows.size(); ++w) {
    auto* window = out->add_balance();
    window->set_length_seconds(absl::ToDoubleSeconds(BalanceMeter::kWindows[w]));
    window->set_tx_max_over_mean(windows[w].sent ? windows[w].sent->max_over_mean : 0);
    window->set_tx_jain(windows[w].sent ? windows[w].sent->jain : 0);
    window->set_rx_max_over_mean(windows[w].received ? windows[w].received->max_over_mean : 0);
    window->set_rx_jain(windows[w].received ? windows[w].received->jain : 0);
    window->set_planned_max_over_mean(windows[w].planned ? windows[w].planned->max_over_mean : 0);
    window->set_planned_jain(windows[w].planned ? windows[w].planned->jain : 0);
    window->set_planned_rx_max_over_mean(windows[w].planned_received ? windows[w].planned_received->max_over_mean : 0);
    window->set_planned_rx_jain(windows[w].planned_received ? windows[w].planned_received->jain : 0);
  }
}

}  // namespace railsd
