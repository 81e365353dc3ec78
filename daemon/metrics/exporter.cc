#include "daemon/metrics/exporter.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/metrics/balance.h"
#include "daemon/metrics/metric_table.h"
#include "daemon/metrics/port_counters.h"
#include "daemon/metrics/process_usage.h"
#include "daemon/ring/ring_server.h"
#include "daemon/tls/tls_files.h"

namespace railsd {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using Labels = std::vector<ClientMetric::Label>;

// By MetricKind.
constexpr prometheus::MetricType kTypes[] = {prometheus::MetricType::Counter, prometheus::MetricType::Gauge,
                                             prometheus::MetricType::Histogram};

// One scrape's families, in the order of the table.
class MetricPage {
 public:
  MetricPage() : families_(kMetricTable.size()) {
    for (size_t i = 0; i < kMetricTable.size(); ++i) {
      families_[i].name = kMetricTable[i].name;
      families_[i].help = kMetricTable[i].help;
      families_[i].type = kTypes[static_cast<size_t>(kMetricTable[i].kind)];
    }
  }
  void Set(Metric metric, double value, Labels labels = {}) {
    ClientMetric out;
    out.label = std::move(labels);
    if (metric.info().kind == MetricKind::kCounter) {
      out.counter.value = value;
    } else {
      out.gauge.value = value;
    }
    Add(metric, std::move(out));
  }
  void Set(Metric metric, uint64_t value, Labels labels = {}) {
    Set(metric, static_cast<double>(value), std::move(labels));
  }
  void Set(Metric metric, const std::atomic<uint64_t>& value, Labels labels = {}) {
    Set(metric, value.load(std::memory_order_relaxed), std::move(labels));
  }
  void Set(Metric metric, const prometheus::Histogram& data, Labels labels = {}) {
    ClientMetric out = data.Collect();
    out.label = std::move(labels);
    Add(metric, std::move(out));
  }
  // Sets a counter whose source may fall.
  void SetRising(HighWater* high_water, Metric metric, uint64_t value, Labels labels) {
    std::string key = metric.info().name;
    for (const ClientMetric::Label& label : labels) absl::StrAppend(&key, "/", label.value);
    Set(metric, high_water == nullptr ? value : high_water->Raise(key, value), std::move(labels));
  }
  // Leaves out families without a value.
  std::vector<MetricFamily> Take() {
    std::erase_if(families_, [](const MetricFamily& f) { return f.metric.empty(); });
    return std::move(families_);
  }

 private:
  void Add(Metric metric, ClientMetric value) { families_[metric.index()].metric.push_back(std::move(value)); }
  std::vector<MetricFamily> families_;
};

// Adds the device and port counters of an RDMA rail.
void AddDevice(const RailView& rail, const std::string& sysfs, MetricPage* page) {
  const RailDevice& device = rail.device;
  const Labels labels = {{"rail", rail.name}};
  page->Set("railsd_rail_device_info", uint64_t{1},
            {{"rail", rail.name},
             {"device", device.name},
             {"port", absl::StrCat(device.port)},
             {"link_layer", device.link_layer},
             {"zone_keys", device.windows ? "windows" : "weak"}});
  page->Set("railsd_rail_link_up", uint64_t{device.state == "active"}, labels);
  page->Set("railsd_rail_queue_pairs", rail.queue_pairs, labels);
  for (const auto& [counter, value] : ReadRdmaPortCounters(device.name, device.port, sysfs)) {
    page->Set("railsd_rail_port_events_total", value, {{"rail", rail.name}, {"counter", counter}});
  }
}

// Adds the interface counters of a TCP rail.
void AddInterface(const RailView& rail, const MetricSources& sources, MetricPage* page) {
  const size_t index = rail.index.value();
  if (index >= sources.interfaces.size()) return;
  const InterfaceCounters counters = ReadInterfaceCounters(sources.interfaces[index], sources.sysfs);
  const auto set = [&](const std::optional<uint64_t>& bytes, const char* direction) {
    if (bytes) page->Set("railsd_rail_interface_bytes_total", *bytes, {{"rail", rail.name}, {"direction", direction}});
  };
  set(counters.tx_bytes, "tx");
  set(counters.rx_bytes, "rx");
  for (const auto& [counter, value] : counters.events) {
    page->Set("railsd_rail_port_events_total", value, {{"rail", rail.name}, {"counter", counter}});
  }
}

// Adds the counters of the table. Received bytes may fall when a rail fails and the peer sends them again (HighWater).
void AddCounters(const RailView& rail, HighWater* high_water, MetricPage* page) {
  static constexpr auto kMetrics = std::to_array<Metric>({
#define RAILSD_COUNTER(name, rails, family, ...) "railsd_rail_" family "_total",
      RAILSD_RAIL_COUNTERS(RAILSD_COUNTER)
#undef RAILSD_COUNTER
  });
  for (size_t i = 0; i < kMetrics.size(); ++i) {
    const RailCounterInfo& counter = kRailCounters[i];
    if (counter.rails == RailCounterInfo::kVerbs && rail.device.name.empty()) continue;
    Labels labels = {{"rail", rail.name}};
    if (*counter.label != 0) labels.push_back({counter.label, counter.value});
    page->SetRising(high_water, kMetrics[i], rail.counts.*counter.count, std::move(labels));
  }
}

void AddRail(const RailView& rail, const MetricSources& sources, MetricPage* page) {
  const auto labels = [&](const char* key = nullptr, const char* value = nullptr) {
    Labels out = {{"rail", rail.name}};
    if (key != nullptr) out.push_back({key, value});
    return out;
  };
  page->Set("railsd_rail_speed_bytes_per_second", rail.speed_bytes_per_s, labels());
  page->Set("railsd_rail_plan_speed_bytes_per_second", rail.planned_bytes_per_s, labels());
  page->Set("railsd_rail_planned_bytes_total", rail.planned_bytes, labels("direction", "tx"));
  page->Set("railsd_rail_planned_bytes_total", rail.planned_rx_bytes, labels("direction", "rx"));
  page->Set("railsd_rail_window_bytes", rail.window_bytes, labels());
  page->Set("railsd_rail_sleeps_total", rail.sleeps, labels());
  page->Set("railsd_rail_measured_speed_bytes_per_second", rail.measured_bytes_per_s, labels());
  AddCounters(rail, sources.high_water, page);
  page->Set("railsd_rail_queued_bytes", rail.queued_bytes, labels());
  page->Set("railsd_rail_in_flight_bytes", rail.in_flight_bytes, labels());
  page->Set("railsd_rail_queue_depth", uint64_t{rail.command_depth}, labels("queue", "commands"));
  page->Set("railsd_rail_queue_depth", uint64_t{rail.event_depth}, labels("queue", "events"));
  page->Set("railsd_rail_peers_up", uint64_t{rail.peers_up}, labels());
  for (const HealthState state : kAllHealthStates) {
    const bool in = !rail.health.drained && rail.health.state == state;
    page->Set("railsd_rail_state", uint64_t{in}, labels("state", HealthStateName(state)));
  }
  page->Set("railsd_rail_state", uint64_t{rail.health.drained}, labels("state", "drained"));
  for (size_t i = 0; i < rail.health.spent.size(); ++i) {
    const char* state = i < std::size(kAllHealthStates) ? HealthStateName(kAllHealthStates[i]) : "drained";
    page->Set("railsd_rail_state_seconds_total", absl::ToDoubleSeconds(rail.health.spent[i]), labels("state", state));
  }
  page->Set("railsd_rail_flaps_total", rail.health.flaps, labels());
  page->Set("railsd_rail_drains_total", rail.health.drains, labels());
  page->Set("railsd_returned_chunks_total", rail.returned_chunks, labels());
  if (rail.device.name.empty()) {
    AddInterface(rail, sources, page);
  } else {
    AddDevice(rail, sources.sysfs, page);
  }
}

// Adds series by rail and peer. Peers beyond `max_peers` get their own series only for paths that are not up.
void AddPaths(const AgentSnapshot& snapshot, size_t max_peers, HighWater* high, MetricPage* page) {
  const size_t rails = snapshot.rails.size();
  std::vector<uint64_t> other_tx(rails), other_rx(rails);
  std::vector<std::array<uint64_t, std::size(kAllHealthStates)>> in_state(rails);
  for (size_t p = 0; p < snapshot.peers.size(); ++p) {
    const PeerView& peer = snapshot.peers[p];
    for (size_t r = 0; r < rails && r < peer.rails_up.size(); ++r) {
      const uint64_t tx = r < peer.rail_tx_bytes.size() ? peer.rail_tx_bytes[r] : 0;
      const uint64_t rx = r < peer.rail_rx_bytes.size() ? peer.rail_rx_bytes[r] : 0;
      const HealthState state = r < peer.rail_states.size() ? peer.rail_states[r] : HealthState::kDown;
      ++in_state[r][static_cast<size_t>(state)];
      const bool own_series = p < max_peers;
      if (!own_series) {
        other_tx[r] += tx;
        other_rx[r] += rx;
        if (peer.rails_up[r] && state == HealthState::kUp) continue;
      }
      const Labels path = {{"peer", peer.node}, {"rail", snapshot.rails[r].name}};
      const auto with = [&](const char* key, const char* value) {
        Labels labels = path;
        labels.push_back({key, value});
        return labels;
      };
      page->Set("railsd_peer_rail_up", uint64_t{peer.rails_up[r]}, path);
      page->Set("railsd_peer_rail_state", uint64_t{1}, with("state", HealthStateName(state)));
      if (!own_series) continue;
      page->Set("railsd_peer_rail_payload_bytes_total", tx, with("direction", "tx"));
      page->SetRising(high, "railsd_peer_rail_payload_bytes_total", rx, with("direction", "rx"));
    }
  }
  for (size_t r = 0; r < rails; ++r) {
    const std::string& rail = snapshot.rails[r].name;
    for (const HealthState state : kAllHealthStates) {
      page->Set("railsd_rail_paths", in_state[r][static_cast<size_t>(state)],
                {{"rail", rail}, {"state", HealthStateName(state)}});
    }
    if (snapshot.peers.size() <= max_peers) continue;
    page->Set("railsd_peer_rail_payload_bytes_total", other_tx[r],
              {{"peer", "other"}, {"rail", rail}, {"direction", "tx"}});
    page->SetRising(high, "railsd_peer_rail_payload_bytes_total", other_rx[r],
                    {{"peer", "other"}, {"rail", rail}, {"direction", "rx"}});
  }
}

// Adds waits for peers. Peers beyond `max_peers` are summed.
void AddWaits(absl::Span<const PeerView> peers, size_t max_peers, HighWater* high, MetricPage* page) {
  absl::Duration other;
  for (size_t p = 0; p < peers.size(); ++p) {
    if (p < max_peers) {
      page->Set("railsd_peer_wait_seconds_total", absl::ToDoubleSeconds(peers[p].ready_wait),
                {{"peer", peers[p].node}});
    } else {
      other += peers[p].ready_wait;
    }
  }
  if (peers.size() <= max_peers) return;
  // This sum falls when a peer is forgotten, because a later peer then gets a series of its own.
  const auto waited = static_cast<uint64_t>(absl::ToInt64Nanoseconds(other));
  const uint64_t most = high == nullptr ? waited : high->Raise("railsd_peer_wait_seconds_total/other", waited);
  page->Set("railsd_peer_wait_seconds_total", static_cast<double>(most) * 1e-9, {{"peer", "other"}});
}

void AddProcess(const ProcessUsage& usage, MetricPage* page) {
  const auto set = [page](Metric metric, const auto& value) {
    if (value) page->Set(metric, *value);
  };
  set("process_cpu_seconds_total", usage.cpu_seconds);
  set("process_resident_memory_bytes", usage.resident_memory_bytes);
  set("process_virtual_memory_bytes", usage.virtual_memory_bytes);
  set("process_open_fds", usage.open_fds);
  set("process_max_fds", usage.max_fds);
  set("process_start_time_seconds", usage.start_time_seconds);
}

void AddBalance(const BalanceMeter& meter, MetricPage* page) {
  const std::vector<BalanceMeter::Window> windows = meter.Read();
  for (size_t w = 0; w < windows.size(); ++w) {
    const auto set = [&](const std::optional<Balance>& balance, const char* direction, const char* traffic) {
      if (!balance) return;
      const Labels labels = {{"direction", direction}, {"traffic", traffic}, {"window", BalanceMeter::kWindowNames[w]}};
      page->Set("railsd_balance_max_over_mean", balance->max_over_mean, labels);
      page->Set("railsd_balance_jain_index", balance->jain, labels);
    };
    set(windows[w].sent, "tx", "actual");
    set(windows[w].received, "rx", "actual");
    set(windows[w].planned, "tx", "planned");
    set(windows[w].planned_received, "rx", "planned");
  }
}

void AddTenant(const TenantView& tenant, const std::vector<RailView>& rails, MetricPage* page) {
  const auto with = [&](const char* key, const char* value) { return Labels{{"tenant", tenant.name}, {key, value}}; };
  for (const QuotaKind kind : kAllQuotas) {
    page->Set("railsd_tenant_in_use", tenant.in_use[kind], with("quota", QuotaName(kind)));
    page->Set("railsd_tenant_refused_total", tenant.refused[kind], with("quota", QuotaName(kind)));
    if (tenant.quota[kind] == 0) continue;
    page->Set("railsd_tenant_quota", tenant.quota[kind], with("quota", QuotaName(kind)));
  }
  page->Set("railsd_tenant_jobs_finished_total", tenant.jobs_done, with("result", "ok"));
  page->Set("railsd_tenant_jobs_finished_total", tenant.jobs_failed, with("result", "failed"));
  page->Set("railsd_tenant_job_bytes_total", tenant.bytes_sent, with("direction", "tx"));
  page->Set("railsd_tenant_job_bytes_total", tenant.bytes_received, with("direction", "rx"));
  for (size_t r = 0; r < tenant.rail_sent_bytes.size(); ++r) {
    page->Set("railsd_tenant_rail_sent_bytes_total", tenant.rail_sent_bytes[r],
              {{"tenant", tenant.name}, {"rail", rails[r].name}});
  }
}

void AddSnapshot(const AgentSnapshot& snapshot, const MetricSources& sources, MetricPage* page) {
  page->Set("railsd_draining", uint64_t{snapshot.draining});
  for (const RailView& rail : snapshot.rails) AddRail(rail, sources, page);
  AddPaths(snapshot, sources.max_peers, sources.high_water, page);
  AddWaits(snapshot.peers, sources.max_peers, sources.high_water, page);
  uint64_t segments = 0, segment_bytes = 0;
  for (const SessionView& session : snapshot.sessions) {
    segments += session.segments;
    segment_bytes += session.segment_bytes;
  }
  page->Set("railsd_sessions", uint64_t{snapshot.sessions.size()});
  page->Set("railsd_segments", segments);
  page->Set("railsd_segment_bytes", segment_bytes);
  for (const TenantView& tenant : snapshot.tenants) AddTenant(tenant, snapshot.rails, page);
  const auto broken = std::count_if(snapshot.groups.begin(), snapshot.groups.end(),
                                    [](const GroupView& group) { return group.broken; });
  page->Set("railsd_groups", uint64_t{snapshot.groups.size()} - static_cast<uint64_t>(broken), {{"state", "active"}});
  page->Set("railsd_groups", static_cast<uint64_t>(broken), {{"state", "broken"}});
  const AgentCounters& counters = snapshot.counters;
  page->Set("railsd_groups_formed_total", counters.groups_formed);
  page->Set("railsd_jobs", counters.jobs_active);
  page->Set("railsd_control_messages_total", counters.control_messages_in, {{"direction", "rx"}});
  page->Set("railsd_control_messages_total", counters.control_messages_out, {{"direction", "tx"}});
  page->Set("railsd_control_messages_ignored_total", counters.control_messages_ignored);
  page->Set("railsd_submissions_refused_total", counters.submissions_refused);
  page->Set("railsd_local_copy_bytes_total", counters.local_copy_bytes);
  page->Set("railsd_engine_sleeps_total", counters.engine_sleeps);
  page->Set("railsd_eager_exchanges_total", counters.eager_sent, {{"direction", "tx"}});
  page->Set("railsd_eager_exchanges_total", counters.eager_received, {{"direction", "rx"}});
  page->Set("railsd_eager_bytes_total", counters.eager_sent_bytes, {{"direction", "tx"}});
  page->Set("railsd_eager_bytes_total", counters.eager_received_bytes, {{"direction", "rx"}});
  page->Set("railsd_plans_total", counters.plans);
  page->Set("railsd_planning_seconds_total", static_cast<double>(counters.planning_nanoseconds) * 1e-9);
  page->Set("railsd_late_moves_total", counters.late_moves);
  page->Set("railsd_rehomed_exchanges_total", counters.rehomed_exchanges);
  page->Set("railsd_open_zones", counters.open_zones);
  page->Set("railsd_engine_queue_depth", uint64_t{counters.engine_queue_depth});
  page->Set("railsd_copy_queue_depth", uint64_t{counters.copy_queue_depth});
}

void AddJobs(const JobStatistics& jobs, MetricPage* page) {
  for (const auto& [result, count] : jobs.by_result()) {
    page->Set("railsd_jobs_finished_total", count, {{"result", result}});
  }
  const JobStatistics::Histograms& view = jobs.histograms();
  page->Set("railsd_job_duration_seconds", view.duration);
  page->Set("railsd_job_bytes", view.bytes_sent, {{"direction", "tx"}});
  page->Set("railsd_job_bytes", view.bytes_received, {{"direction", "rx"}});
  page->Set("railsd_job_wait_seconds", view.wait_ranks, {{"phase", "ranks"}});
  page->Set("railsd_job_wait_seconds", view.wait_peers, {{"phase", "peers"}});
  page->Set("railsd_job_wait_seconds", view.sending, {{"phase", "sending"}});
  page->Set("railsd_job_wait_seconds", view.receiving, {{"phase", "receiving"}});
  page->Set("railsd_job_switching_efficiency", view.efficiency, {{"part", "total"}});
  page->Set("railsd_job_switching_efficiency", view.efficiency_data, {{"part", "data"}});
  page->Set("railsd_job_switching_efficiency", view.efficiency_moving, {{"part", "moving"}});
  page->Set("railsd_job_switching_efficiency", view.efficiency_utilisation, {{"part", "utilisation"}});
  page->Set("railsd_job_ratio_to_bound", view.ratio);
  page->Set("railsd_job_speedup_over_pinned", view.speedup);
  page->Set("railsd_job_placement_seconds_total", view.actual_seconds.Value(), {{"placement", "actual"}});
  page->Set("railsd_job_placement_seconds_total", view.pinned_seconds.Value(), {{"placement", "pinned"}});
  page->Set("railsd_job_placement_seconds_total", view.bound_seconds.Value(), {{"placement", "bound"}});
  const auto set = [page](const JobStatistics::BalanceHistograms& balance, const char* direction, const char* traffic) {
    page->Set("railsd_job_balance_max_over_mean", balance.max_over_mean,
              {{"direction", direction}, {"traffic", traffic}});
    page->Set("railsd_job_balance_jain_index", balance.jain, {{"direction", direction}, {"traffic", traffic}});
  };
  set(view.sent, "tx", "actual");
  set(view.received, "rx", "actual");
  set(view.planned, "tx", "planned");
}

void AddPeers(const PeerHub& peers, size_t max_peers, MetricPage* page) {
  const std::vector<PeerView> all = peers.Peers();
  uint64_t up = 0;
  for (size_t p = 0; p < all.size(); ++p) {
    up += all[p].up;
    if (p >= max_peers && all[p].up) continue;
    page->Set("railsd_peer_up", uint64_t{all[p].up}, {{"peer", all[p].node}});
  }
  page->Set("railsd_peers", up, {{"state", "up"}});
  page->Set("railsd_peers", uint64_t{all.size()} - up, {{"state", "down"}});
  const PeerCounters& counters = peers.counters();
  page->Set("railsd_control_errors_total", counters.disconnects, {{"kind", "disconnect"}});
  page->Set("railsd_control_errors_total", counters.refused, {{"kind", "refused"}});
  page->Set("railsd_control_errors_total", counters.identity, {{"kind", "identity"}});
  page->Set("railsd_control_errors_total", counters.protocol_errors, {{"kind", "protocol"}});
  page->Set("railsd_control_errors_total", counters.lost, {{"kind", "lost"}});
  page->Set("railsd_control_errors_total", counters.duplicates, {{"kind", "duplicate"}});
  page->Set("railsd_control_errors_total", counters.messages_dropped, {{"kind", "dropped"}});
  page->Set("railsd_control_errors_total", counters.messages_held_back, {{"kind", "held_back"}});
  const OutboxDepths outboxes = peers.Outboxes();
  page->Set("railsd_control_outbox_messages", uint64_t{outboxes.messages}, {{"outbox", "all"}});
  page->Set("railsd_control_outbox_messages", uint64_t{outboxes.most_messages}, {{"outbox", "fullest"}});
  page->Set("railsd_control_outbox_bytes", uint64_t{outboxes.bytes}, {{"outbox", "all"}});
  page->Set("railsd_control_outbox_bytes", uint64_t{outboxes.most_bytes}, {{"outbox", "fullest"}});
}

void AddWatches(const WatchDepths& depths, MetricPage* page) {
  page->Set("railsd_job_watches", uint64_t{depths.watches});
  page->Set("railsd_job_watch_reports", uint64_t{depths.reports}, {{"watch", "all"}});
  page->Set("railsd_job_watch_reports", uint64_t{depths.most_reports}, {{"watch", "fullest"}});
}

void AddLimits(const LimitCounters& refused, MetricPage* page) {
  for (size_t i = 0; i < static_cast<size_t>(Limit::kCount); ++i) {
    const Limit limit = static_cast<Limit>(i);
    page->Set("railsd_limit_refused_total", refused.Read(limit), {{"limit", LimitKey(limit)}});
  }
}

void AddLinks(const LinkCounters& links, bool tls, MetricPage* page) {
  page->Set("railsd_control_connections", links.open, {{"state", "open"}});
  page->Set("railsd_control_connections", links.half_open, {{"state", "half_open"}});
  if (tls) page->Set("railsd_tls_handshakes_failed_total", links.failed_handshakes);
}

void AddTls(const TlsFiles* tls, bool data, MetricPage* page) {
  page->Set("railsd_tls_enabled", uint64_t{tls != nullptr});
  page->Set("railsd_tls_data_enabled", uint64_t{data});
  if (tls == nullptr) return;
  page->Set("railsd_tls_certificate_expiry_seconds", static_cast<double>(absl::ToUnixSeconds(tls->expires())));
  page->Set("railsd_tls_files_total", tls->counters().taken, {{"result", "taken"}});
  page->Set("railsd_tls_files_total", tls->counters().refused, {{"result", "refused"}});
}

std::vector<MetricFamily> CollectMetrics(const MetricSources& sources) {
  MetricPage page;
  const ServiceContext& context = *sources.context;
  page.Set("railsd_build_info", uint64_t{1}, {{"version", context.version}, {"node", context.node}});
  page.Set("railsd_start_time_seconds", static_cast<double>(absl::ToUnixMicros(context.started)) * 1e-6);
  page.Set("railsd_config_info", uint64_t{1}, {{"hash", context.config_hash()}});
  AddProcess(ReadProcessUsage(sources.proc), &page);
  AddTls(context.tls, sources.tls_data, &page);
  if (sources.links != nullptr) AddLinks(*sources.links, context.tls != nullptr, &page);
  const std::optional<AgentSnapshot> snapshot = ReadAgent(context.agent, sources.deadline);
  page.Set("railsd_scrape_failed", uint64_t{!snapshot});
  if (snapshot) AddSnapshot(*snapshot, sources, &page);
  if (sources.jobs != nullptr) AddJobs(*sources.jobs, &page);
  if (context.balance != nullptr) AddBalance(*context.balance, &page);
  context.calls->ForEach([&page](const std::string& method, const std::string& code, uint64_t count) {
    page.Set("railsd_grpc_calls_total", count, {{"method", method}, {"code", code}});
  });
  context.ring_calls->ForEach([&page](const std::string& method, const std::string& code, uint64_t count) {
    page.Set("railsd_ring_calls_total", count, {{"method", method}, {"code", code}});
  });
  AddLimits(*context.refused, &page);
  if (context.feed != nullptr) AddWatches(context.feed->Depths(), &page);
  if (sources.peers != nullptr) AddPeers(*sources.peers, sources.max_peers, &page);
  if (sources.rings != nullptr) {
    const RingCounters& counters = sources.rings->counters();
    page.Set("railsd_rings", counters.open);
    page.Set("railsd_ring_missed_reports_total", counters.missed_reports);
    page.Set("railsd_ring_failures_total", counters.broken, {{"kind", "broken"}});
    page.Set("railsd_ring_failures_total", counters.full, {{"kind", "full"}});
  }
  if (sources.descriptors != nullptr) {
    const DescriptorCounters& counters = sources.descriptors->counters();
    page.Set("railsd_descriptor_connections", counters.open_connections);
    page.Set("railsd_descriptor_refused_total", counters.refused_connections);
    page.Set("railsd_descriptor_bad_packets_total", counters.bad_packets);
    page.Set("railsd_descriptor_denied_total", counters.denied_sessions);
  }
  return page.Take();
}

}  // namespace

std::optional<AgentSnapshot> ReadAgent(Agent* agent, absl::Duration deadline) {
  struct Box {
    AgentSnapshot snapshot;
    absl::Notification filled;
  };
  const auto box = std::make_shared<Box>();
  agent->Snapshot([box](AgentSnapshot snapshot) {
    box->snapshot = std::move(snapshot);
    box->filled.Notify();
  });
  if (!box->filled.WaitForNotificationWithTimeout(deadline)) return std::nullopt;
  return std::move(box->snapshot);
}

std::string RenderMetrics(const MetricSources& sources) {
  return prometheus::TextSerializer().Serialize(CollectMetrics(sources));
}

}  // namespace railsd
