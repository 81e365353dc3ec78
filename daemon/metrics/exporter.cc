#include "daemon/metrics/exporter.h"

#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agent/base/unique_fd.h"
#include "daemon/config/units.h"
#include "daemon/metrics/metric_table.h"

namespace railsd {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using Labels = std::vector<ClientMetric::Label>;

prometheus::MetricType TypeOf(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return prometheus::MetricType::Counter;
    case MetricKind::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricKind::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

// One scrape's families, in the order of the table.
class Page {
 public:
  Page() : families_(kMetricCount) {
    for (size_t i = 0; i < kMetricCount; ++i) {
      families_[i].name = kMetricTable[i].name;
      families_[i].help = kMetricTable[i].help;
      families_[i].type = TypeOf(kMetricTable[i].kind);
    }
  }
  void Set(Metric metric, double value, Labels labels = {}) {
    ClientMetric out;
    out.label = std::move(labels);
    if (InfoOf(metric).kind == MetricKind::kCounter) {
      out.counter.value = value;
    } else {
      out.gauge.value = value;
    }
    Add(metric, std::move(out));
  }
  void Set(Metric metric, uint64_t value, Labels labels = {}) {
    Set(metric, static_cast<double>(value), std::move(labels));
  }
  void Set(Metric metric, const HistogramData& data, Labels labels = {}) {
    ClientMetric out;
    out.label = std::move(labels);
    uint64_t total = 0;
    for (size_t i = 0; i < data.counts().size(); ++i) {
      total += data.counts()[i];
      const double bound = i < data.bounds().size() ? data.bounds()[i] : std::numeric_limits<double>::infinity();
      out.histogram.bucket.push_back({total, bound});
    }
    out.histogram.sample_count = total;
    out.histogram.sample_sum = data.sum();
    Add(metric, std::move(out));
  }
  // Families without a value are left out.
  std::vector<MetricFamily> Take() {
    std::erase_if(families_, [](const MetricFamily& f) { return f.metric.empty(); });
    return std::move(families_);
  }

 private:
  void Add(Metric metric, ClientMetric value) {
    families_[static_cast<size_t>(metric)].metric.push_back(std::move(value));
  }
  std::vector<MetricFamily> families_;
};

// Of a rail over verbs.
void AddDevice(const RailView& rail, Page* page) {
  const RailDevice& device = rail.device;
  const Labels labels = {{"rail", rail.name}};
  page->Set(Metric::kRailDevice, uint64_t{1},
            {{"rail", rail.name},
             {"device", device.name},
             {"port", absl::StrCat(device.port)},
             {"link_layer", device.link_layer},
             {"zone_keys", device.windows ? "windows" : "weak"}});
  page->Set(Metric::kRailLinkUp, uint64_t{device.state == "active"}, labels);
  page->Set(Metric::kRailQueuePairs, rail.queue_pairs, labels);
  page->Set(Metric::kRailWorkRequests, rail.work_requests, labels);
  page->Set(Metric::kRailCompletions, rail.completions, labels);
  page->Set(Metric::kRailFences, rail.tx_fences, {{"rail", rail.name}, {"direction", "tx"}});
  page->Set(Metric::kRailFences, rail.rx_fences, {{"rail", rail.name}, {"direction", "rx"}});
  page->Set(Metric::kRailWeakZones, rail.weak_zones, labels);
  page->Set(Metric::kRailErrors, rail.endpoint_errors, {{"rail", rail.name}, {"kind", "endpoint"}});
}

void AddRail(const RailView& rail, Page* page) {
  const auto labels = [&](const char* key = nullptr, const char* value = nullptr) {
    Labels out = {{"rail", rail.name}};
    if (key != nullptr) out.push_back({key, value});
    return out;
  };
  page->Set(Metric::kRailSpeed, rail.speed_bytes_per_s, labels());
  page->Set(Metric::kRailMeasuredSpeed, rail.measured_bytes_per_s, labels());
  page->Set(Metric::kRailPayload, rail.tx_payload_bytes, labels("direction", "tx"));
  page->Set(Metric::kRailPayload, rail.rx_payload_bytes, labels("direction", "rx"));
  page->Set(Metric::kRailChunks, rail.tx_chunks, labels("direction", "tx"));
  page->Set(Metric::kRailChunks, rail.rx_chunks, labels("direction", "rx"));
  page->Set(Metric::kRailSystemCalls, rail.tx_system_calls, labels("direction", "tx"));
  page->Set(Metric::kRailSystemCalls, rail.rx_system_calls, labels("direction", "rx"));
  page->Set(Metric::kRailQueued, rail.queued_bytes, labels());
  page->Set(Metric::kRailInFlight, rail.in_flight_bytes, labels());
  page->Set(Metric::kRailQueueDepth, uint64_t{rail.command_depth}, labels("queue", "commands"));
  page->Set(Metric::kRailQueueDepth, uint64_t{rail.event_depth}, labels("queue", "events"));
  page->Set(Metric::kRailPeersUp, uint64_t{rail.peers_up}, labels());
  for (const HealthState state : kAllHealthStates) {
    const bool in = !rail.health.drained && rail.health.state == state;
    page->Set(Metric::kRailState, uint64_t{in}, labels("state", HealthStateName(state)));
  }
  page->Set(Metric::kRailState, uint64_t{rail.health.drained}, labels("state", "drained"));
  page->Set(Metric::kRailFlaps, rail.health.flaps, labels());
  page->Set(Metric::kRailDrains, rail.health.drains, labels());
  page->Set(Metric::kRailErrors, rail.protocol_errors, labels("kind", "protocol"));
  page->Set(Metric::kRailErrors, rail.refused_connections, labels("kind", "refused"));
  page->Set(Metric::kRailErrors, rail.disconnects, labels("kind", "disconnect"));
  page->Set(Metric::kRailErrors, rail.connect_failures, labels("kind", "connect"));
  page->Set(Metric::kRailDrained, rail.rx_drained_bytes, labels());
  if (!rail.device.name.empty()) AddDevice(rail, page);
}

void AddSnapshot(const AgentSnapshot& snapshot, Page* page) {
  page->Set(Metric::kDraining, uint64_t{snapshot.draining});
  for (const RailView& rail : snapshot.rails) AddRail(rail, page);
  for (const PeerView& peer : snapshot.peers) {
    for (size_t i = 0; i < peer.rails_up.size() && i < snapshot.rails.size(); ++i) {
      page->Set(Metric::kPeerRailUp, uint64_t{peer.rails_up[i]},
                {{"peer", peer.node}, {"rail", snapshot.rails[i].name}});
    }
  }
  uint64_t segments = 0, segment_bytes = 0;
  for (const SessionView& session : snapshot.sessions) {
    segments += session.segments;
    segment_bytes += session.segment_bytes;
  }
  page->Set(Metric::kSessions, uint64_t{snapshot.sessions.size()});
  page->Set(Metric::kSegments, segments);
  page->Set(Metric::kSegmentBytes, segment_bytes);
  const auto broken = std::count_if(snapshot.groups.begin(), snapshot.groups.end(),
                                    [](const GroupView& group) { return group.broken; });
  page->Set(Metric::kGroups, uint64_t{snapshot.groups.size()} - static_cast<uint64_t>(broken), {{"state", "active"}});
  page->Set(Metric::kGroups, static_cast<uint64_t>(broken), {{"state", "broken"}});
  const AgentCounters& counters = snapshot.counters;
  page->Set(Metric::kJobs, counters.jobs_active);
  page->Set(Metric::kControlMessages, counters.control_messages_in, {{"direction", "rx"}});
  page->Set(Metric::kControlMessages, counters.control_messages_out, {{"direction", "tx"}});
  page->Set(Metric::kControlIgnored, counters.control_messages_ignored);
  page->Set(Metric::kSubmissionsRefused, counters.submissions_refused);
  page->Set(Metric::kLocalCopy, counters.local_copy_bytes);
  page->Set(Metric::kPlans, counters.plans);
  page->Set(Metric::kPlanningTime, static_cast<double>(counters.planning_nanoseconds) * 1e-9);
  page->Set(Metric::kStolenChunks, counters.stolen_chunks);
  page->Set(Metric::kReturnedChunks, counters.returned_chunks);
  page->Set(Metric::kRehomedFlows, counters.rehomed_flows);
  page->Set(Metric::kEngineQueueDepth, uint64_t{counters.engine_queue_depth});
}

void AddJobs(const JobStatistics& jobs, Page* page) {
  const JobStatistics::View view = jobs.Read();
  for (const auto& [result, count] : view.by_result) page->Set(Metric::kJobsFinished, count, {{"result", result}});
  page->Set(Metric::kJobDuration, view.duration);
  page->Set(Metric::kJobWait, view.wait_ranks, {{"for", "ranks"}});
  page->Set(Metric::kJobWait, view.wait_peers, {{"for", "peers"}});
  page->Set(Metric::kJobRatio, view.ratio);
}

void AddPeers(const PeerHub& peers, Page* page) {
  for (const PeerView& peer : peers.Peers()) page->Set(Metric::kPeerUp, uint64_t{peer.up}, {{"peer", peer.node}});
  const PeerCounters& counters = peers.counters();
  const auto set = [&](const char* kind, const std::atomic<uint64_t>& value) {
    page->Set(Metric::kControlStreamErrors, value.load(std::memory_order_relaxed), {{"kind", kind}});
  };
  set("disconnect", counters.disconnects);
  set("refused", counters.refused);
  set("protocol", counters.protocol_errors);
  set("lost", counters.lost);
  set("duplicate", counters.duplicates);
  set("dropped", counters.messages_dropped);
}

// Waits for the engine, but not for ever: a scrape must end even when the engine hangs.
std::optional<AgentSnapshot> ReadAgent(Agent* agent, absl::Duration deadline) {
  struct Box {
    absl::Mutex mutex;
    std::optional<AgentSnapshot> snapshot ABSL_GUARDED_BY(mutex);
  };
  const auto box = std::make_shared<Box>();
  agent->Snapshot([box](AgentSnapshot snapshot) {
    absl::MutexLock lock(&box->mutex);
    box->snapshot = std::move(snapshot);
  });
  const auto there = [&box]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(box->mutex) { return box->snapshot.has_value(); };
  absl::MutexLock lock(&box->mutex);
  box->mutex.AwaitWithTimeout(absl::Condition(&there), deadline);
  return std::move(box->snapshot);
}

std::vector<MetricFamily> CollectAll(const MetricSources& sources) {
  Page page;
  page.Set(Metric::kBuildInfo, uint64_t{1}, {{"version", sources.version}, {"node", sources.node}});
  page.Set(Metric::kStartTime, static_cast<double>(absl::ToUnixMicros(sources.started)) * 1e-6);
  page.Set(Metric::kConfigInfo, uint64_t{1}, {{"hash", sources.config_hash}});
  page.Set(Metric::kTlsEnabled, uint64_t{sources.tls});
  std::optional<AgentSnapshot> snapshot;
  if (sources.agent != nullptr) snapshot = ReadAgent(sources.agent, sources.deadline);
  page.Set(Metric::kScrapeFailed, uint64_t{!snapshot});
  if (snapshot) AddSnapshot(*snapshot, &page);
  if (sources.jobs != nullptr) AddJobs(*sources.jobs, &page);
  if (sources.peers != nullptr) AddPeers(*sources.peers, &page);
  if (sources.descriptors != nullptr) {
    const DescriptorCounters& counters = sources.descriptors->counters();
    page.Set(Metric::kDescriptorConnections, counters.open_connections.load(std::memory_order_relaxed));
    page.Set(Metric::kDescriptorRefused, counters.refused_connections.load(std::memory_order_relaxed));
    page.Set(Metric::kDescriptorBadPackets, counters.bad_packets.load(std::memory_order_relaxed));
  }
  return page.Take();
}

class Collector final : public prometheus::Collectable {
 public:
  explicit Collector(MetricSources sources) : sources_(std::move(sources)) {}
  std::vector<MetricFamily> Collect() const override { return CollectAll(sources_); }

 private:
  const MetricSources sources_;
};

// Connects to a local listener and hangs up.
void TouchPort(const std::string& listen, int port) {
  const auto address = ParseHostPort(listen, false);
  if (!address.ok()) return;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(address->host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) return;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  const UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Whether it succeeds does not matter: the listener has woken up, or is gone.
  if (!socket.valid()) return;
  [[maybe_unused]] const int result = connect(socket.get(), found->ai_addr, found->ai_addrlen);
}

class Server final : public MetricsServer {
 public:
  Server(const std::string& listen, MetricSources sources)
      : listen_(listen),
        collector_(std::make_shared<Collector>(std::move(sources))),
        // Two threads are enough for scrapers; civetweb otherwise starts fifty.
        exposer_(std::make_unique<prometheus::Exposer>(
            std::vector<std::string>{"listening_ports", listen, "num_threads", "2"})) {
    exposer_->RegisterCollectable(collector_);
  }

  // civetweb looks at its stop flag when somebody connects, or every two seconds: connect until it has stopped.
  ~Server() override {
    const int at = port();
    std::atomic<bool> ended{false};
    std::thread waker([this, at, &ended] {
      while (!ended) {
        TouchPort(listen_, at);
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
    exposer_.reset();
    ended = true;
    waker.join();
  }
  int port() const override {
    const std::vector<int> ports = exposer_->GetListeningPorts();
    return ports.empty() ? 0 : ports[0];
  }

 private:
  const std::string listen_;
  const std::shared_ptr<Collector> collector_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

std::vector<double> DurationBounds() {
  std::vector<double> bounds;
  for (double decade = 1e-4; decade < 100; decade *= 10) {
    for (const double step : {1.0, 2.5, 5.0}) bounds.push_back(decade * step);
  }
  return bounds;
}

}  // namespace

void HistogramData::Observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
  sum_ += value;
}

JobStatistics::JobStatistics()
    : view_{{},
            HistogramData(DurationBounds()),
            HistogramData(DurationBounds()),
            HistogramData(DurationBounds()),
            HistogramData({1.005, 1.01, 1.02, 1.03, 1.04, 1.06, 1.08, 1.1, 1.15, 1.2, 1.3, 1.5, 2, 3, 5, 10})} {}

void JobStatistics::OnJobFinished(SessionId, const JobReport& report) {
  absl::MutexLock lock(&mutex_);
  ++view_.by_result[absl::AsciiStrToLower(absl::StatusCodeToString(report.status.code()))];
  if (!report.status.ok()) return;
  view_.duration.Observe(absl::ToDoubleSeconds(report.elapsed));
  view_.wait_ranks.Observe(absl::ToDoubleSeconds(report.waiting_for_ranks));
  view_.wait_peers.Observe(absl::ToDoubleSeconds(report.waiting_for_peers));
  if (report.ratio_to_bound > 0) view_.ratio.Observe(report.ratio_to_bound);
}

JobStatistics::View JobStatistics::Read() const {
  absl::MutexLock lock(&mutex_);
  return view_;
}

std::string RenderMetrics(const MetricSources& sources) {
  return prometheus::TextSerializer().Serialize(CollectAll(sources));
}

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& listen, MetricSources sources) {
  try {
    return std::make_unique<Server>(listen, std::move(sources));
  } catch (const std::exception& e) {
    // What civetweb says of a port that it cannot have names neither the port nor the cause.
    return absl::UnavailableError(absl::StrCat("metrics.listen: '", listen,
                                               "': cannot listen there: the address is not ",
                                               "this node's or is in use (", e.what(), ")"));
  }
}

}  // namespace railsd
