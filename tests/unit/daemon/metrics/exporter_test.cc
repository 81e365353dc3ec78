#include "daemon/metrics/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/json/json.h"
#include "daemon/metrics/balance.h"
#include "daemon/metrics/metric_table.h"
#include "daemon/services/overview.h"
#include "rails/v1/operator.pb.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/daemon/fake_agent.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AgentSnapshot Snapshot() {
  AgentSnapshot snapshot;
  snapshot.rails.resize(2);
  for (uint32_t i = 0; i < 2; ++i) {
    RailView& rail = snapshot.rails[i];
    rail.index = RailIndex(i);
    rail.name = absl::StrCat("rail", i);
    rail.speed_bytes_per_s = 25'000'000;
    rail.planned_bytes_per_s = 20'000'000;
    rail.planned_bytes = 900 + i;
    rail.window_bytes = 65536;
    rail.health.spent[0] = absl::Seconds(90);
    rail.health.spent.back() = absl::Milliseconds(1500);
    rail.counts.tx_payload_bytes = 1000 + i;
    rail.counts.rx_payload_bytes = 2000 + i;
    rail.peers_up = 1;
  }
  snapshot.rails[0].health.drained = true;
  snapshot.rails[0].health.drains = 2;
  snapshot.rails[1].health.state = HealthState::kProbing;
  snapshot.rails[1].health.flaps = 7;
  RailView& verbs = snapshot.rails[1];
  verbs.device = {"mlx5_1", 1, "active", "Ethernet", "::ffff:10.0.0.1", 3, 4096, true};
  verbs.queue_pairs = 2;
  verbs.counts.work_requests = 3000;
  verbs.counts.completions = 100;
  verbs.counts.tx_fences = 8;
  verbs.counts.rx_fences = 9;
  verbs.counts.weak_zones = 1;
  verbs.counts.endpoint_errors = 4;
  PeerView peer;
  peer.node = "n1";
  peer.up = true;
  peer.rails_up = {true, false};
  peer.rail_states = {HealthState::kUp, HealthState::kDown};
  peer.rail_tx_bytes = {10, 11};
  peer.rail_rx_bytes = {20, 21};
  peer.ready_wait = absl::Milliseconds(1500);
  snapshot.peers.push_back(peer);
  snapshot.sessions.push_back({SessionId(1), {}, 2, 8192, 1});
  TenantView& tenant = snapshot.tenants.emplace_back();
  tenant.name = "llm";
  tenant.quota[QuotaKind::kSessions] = 8;
  tenant.in_use[QuotaKind::kSessions] = 1;
  tenant.in_use[QuotaKind::kSegmentBytes] = 8192;
  tenant.refused[QuotaKind::kSessions] = 3;
  tenant.jobs_done = 6;
  tenant.jobs_failed = 1;
  tenant.bytes_sent = 600;
  tenant.bytes_received = 700;
  tenant.rail_sent_bytes = {550, 50};
  snapshot.groups.resize(3);
  snapshot.groups[0].broken = true;
  snapshot.counters.jobs_active = 4;
  snapshot.counters.copy_queue_depth = 5;
  snapshot.counters.rehomed_exchanges = 5;
  snapshot.counters.eager_sent = 7;
  snapshot.counters.eager_received = 6;
  snapshot.counters.eager_sent_bytes = 700;
  snapshot.counters.eager_received_bytes = 600;
  snapshot.counters.open_zones = 7;
  snapshot.counters.planning_nanoseconds = 1'500'000;
  return snapshot;
}

JobReport Report(absl::Status status, double ratio) {
  JobReport report;
  report.status = std::move(status);
  report.elapsed = absl::Milliseconds(30);
  report.ended = absl::UnixEpoch();
  report.waiting_for_ranks = absl::Milliseconds(5);
  report.pinned_bound = absl::Milliseconds(ratio > 0 ? 60 : 0);
  report.node_bound = absl::Milliseconds(ratio > 0 ? 20 : 0);
  report.sending = absl::Milliseconds(20);
  report.receiving = absl::Milliseconds(25);
  report.efficiency = {0.3, 1, 0.75, 0.4};
  report.ratio_to_bound = ratio;
  report.rail_tx_bytes = {100, 300};
  report.rail_rx_bytes = {50, 50};
  report.rail_planned_bytes = {200, 200};
  return report;
}

class ExporterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    agent_.SetSnapshot(Snapshot());
    jobs_.OnJobFinished(SessionId(1), Report(absl::OkStatus(), 1.045));
    jobs_.OnJobFinished(SessionId(1), Report(absl::OkStatus(), 0));
    jobs_.OnJobFinished(SessionId(1), Report(absl::UnavailableError("x"), 2));
    const auto context = std::make_shared<ServiceContext>();
    sources_.context = context;
    context->agent = &agent_;
    sources_.jobs = &jobs_;
    // All bytes go over the second rail.
    std::vector<RailView> rails = Snapshot().rails;
    rails[0].health.drained = false;
    balance_.Add(rails, absl::FromUnixSeconds(0));
    rails[1].counts.tx_payload_bytes += 1000;
    balance_.Add(rails, absl::FromUnixSeconds(2));
    context->balance = &balance_;
    watch_ = std::make_shared<JobWatch>(8, [] {});
    ASSERT_TRUE(feed_.AddWatch(SessionId(1), watch_));
    ASSERT_TRUE(feed_.AddWatch(SessionId(2), std::make_shared<JobWatch>(8, [] {})));  // dropped at once
    for (int i = 0; i < 3; ++i) feed_.OnJobFinished(SessionId(1), Report(absl::OkStatus(), 1));
    context->feed = &feed_;
    sources_.interfaces = {"eth0", "eth1"};
    sources_.sysfs = folder_.path();
    folder_.Write("class/net/eth0/statistics/tx_bytes", "5000\n");
    folder_.Write("class/net/eth0/statistics/rx_bytes", "6000\n");
    folder_.Write("class/net/eth0/statistics/rx_dropped", "3\n");
    WriteProcess();
    context->calls->Count("JobService/WaitJob", absl::StatusCode::kOk);
    for (int i = 0; i < 2; ++i) context->calls->Count("JobService/WaitJob", absl::StatusCode::kDeadlineExceeded);
    for (int i = 0; i < 3; ++i) context->refused->Count(Limit::kHalfOpen);
    context->node = "n0";
    context->version = "1.2.3";
    context->config_hash = [] { return std::string("abcd"); };
    context->started = absl::FromUnixSeconds(1'700'000'000);
  }
  // A process of half an hour, as /proc shows it.
  void WriteProcess() {
    sources_.proc = folder_.path();
    const int64_t ticks = ::sysconf(_SC_CLK_TCK);
    folder_.Write("self/stat", absl::StrCat("77 (rails) d) S 1 77 77 0 -1 4194560 9 0 0 0 ", 3 * ticks, " ", 2 * ticks,
                                            " 0 0 20 0 24 0 ", 100 * ticks, " 300000000 50 18446744073709551615 1\n"));
    folder_.Write("self/limits",
                  "Limit                     Soft Limit           Hard Limit           Units     \n"
                  "Max open files            1048576              1048576              files     \n");
    for (const char* fd : {"0", "1", "2"}) folder_.Write(absl::StrCat("self/fd/", fd), "");
    folder_.Write("stat", "cpu  1 2 3\nbtime 1699999800\nprocesses 9\n");
  }
  FakeAgent agent_;
  JobStatistics jobs_{{1, 1}};
  BalanceMeter balance_;
  JobFeed feed_{nullptr};
  std::shared_ptr<JobWatch> watch_;
  const testing::TemporaryFolder folder_;
  MetricSources sources_;
};

// To accept an intended change, write the test's output into the file.
TEST_F(ExporterTest, GoldenExposition) {
  std::ifstream file(RAILSD_GOLDEN_METRICS);
  std::stringstream golden;
  golden << file.rdbuf();
  const std::string text = RenderMetrics(sources_);
  EXPECT_EQ(text, golden.str()) << text;
}

// To accept an intended change: `railsd --metrics-table >dashboards/METRICS.md`.
TEST(MetricTableTest, ThePageForPeopleIsCurrent) {
  std::ifstream file(RAILSD_METRICS_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(MetricTableMarkdown(), page.str());
}

// 130 peers. The last one is not reached over rail1, and another one has drained rail1.
AgentSnapshot ManyPeers() {
  AgentSnapshot snapshot = Snapshot();
  PeerView one = snapshot.peers[0];
  one.rails_up = {true, true};
  one.rail_states = {HealthState::kUp, HealthState::kUp};
  snapshot.peers.clear();
  for (int i = 0; i < 130; ++i) {
    snapshot.peers.push_back(one);
    snapshot.peers.back().node = absl::StrCat("m", i);
  }
  snapshot.peers[128].rail_states[1] = HealthState::kDrainedByPeer;
  snapshot.peers[129].rails_up[1] = false;
  snapshot.peers[129].rail_states[1] = HealthState::kDown;
  return snapshot;
}

TEST_F(ExporterTest, EveryPeerHasItsSeries) {
  agent_.SetSnapshot(ManyPeers());
  const std::string text = RenderMetrics(sources_);
  EXPECT_THAT(text, HasSubstr("railsd_peer_rail_state{peer=\"m127\",rail=\"rail1\",state=\"up\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("railsd_peer_rail_state{peer=\"m129\",rail=\"rail1\",state=\"down\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("railsd_peer_rail_payload_bytes_total{peer=\"m129\",rail=\"rail0\",direction=\"tx\"} 10\n"));
  EXPECT_THAT(text, Not(HasSubstr("peer=\"other\"")));
}

TEST_F(ExporterTest, PeersBeyondTheLimitAreSummedAndTheirFaultsShown) {
  agent_.SetSnapshot(ManyPeers());
  sources_.max_peers = 64;
  const std::string text = RenderMetrics(sources_);
  EXPECT_THAT(text,
              HasSubstr("railsd_peer_rail_payload_bytes_total{peer=\"m63\",rail=\"rail0\",direction=\"tx\"} 10\n"));
  EXPECT_THAT(text, Not(HasSubstr("peer=\"m64\"")));
  EXPECT_THAT(text,
              HasSubstr("railsd_peer_rail_payload_bytes_total{peer=\"other\",rail=\"rail1\",direction=\"rx\"} 1386\n"));
  EXPECT_THAT(text, HasSubstr("railsd_rail_paths{rail=\"rail1\",state=\"up\"} 128\n"));
  EXPECT_THAT(text, HasSubstr("railsd_rail_paths{rail=\"rail1\",state=\"down\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("railsd_rail_paths{rail=\"rail1\",state=\"drained_by_peer\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("railsd_peer_rail_up{peer=\"m129\",rail=\"rail1\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("railsd_peer_rail_state{peer=\"m129\",rail=\"rail1\",state=\"down\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("railsd_peer_rail_state{peer=\"m128\",rail=\"rail1\",state=\"drained_by_peer\"} 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("{peer=\"m129\",rail=\"rail0\""))) << "that path is up";
}

TEST_F(ExporterTest, WaitsForPeersBeyondTheLimitAreSummed) {
  agent_.SetSnapshot(ManyPeers());
  sources_.max_peers = 64;
  const std::string text = RenderMetrics(sources_);
  EXPECT_THAT(text, HasSubstr("railsd_peer_wait_seconds_total{peer=\"m63\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("railsd_peer_wait_seconds_total{peer=\"other\"} 99\n"));
}

// Peers behind one that is forgotten move up, the first of them into a series of its own.
TEST_F(ExporterTest, WaitsForOtherPeersNeverFall) {
  HighWater high_water;
  sources_.high_water = &high_water;
  sources_.max_peers = 64;
  AgentSnapshot snapshot = ManyPeers();
  agent_.SetSnapshot(snapshot);
  EXPECT_THAT(RenderMetrics(sources_), HasSubstr("railsd_peer_wait_seconds_total{peer=\"other\"} 99\n"));
  snapshot.peers.erase(snapshot.peers.begin());
  agent_.SetSnapshot(snapshot);
  EXPECT_THAT(RenderMetrics(sources_), HasSubstr("railsd_peer_wait_seconds_total{peer=\"other\"} 99\n"));
}

// Their bounds count bytes that nobody carried.
TEST_F(ExporterTest, JobsWithLostRanksAreInNoRatio) {
  const std::string before = RenderMetrics(sources_);
  JobReport report = Report(absl::OkStatus(), 1.5);
  report.lost_ranks = {Rank(3)};
  jobs_.OnJobFinished(SessionId(1), report);
  const std::string after = RenderMetrics(sources_);
  for (const char* name : {"railsd_job_ratio_to_bound_count", "railsd_job_speedup_over_pinned_count",
                           "railsd_job_placement_seconds_total{placement=\"pinned\"}"}) {
    const size_t at = before.find(absl::StrCat("\n", name));
    ASSERT_NE(at, std::string::npos) << name;
    const std::string line = before.substr(at, before.find('\n', at + 1) - at);
    EXPECT_THAT(after, HasSubstr(line + "\n"));
  }
}

TEST_F(ExporterTest, WithoutProcNothingIsToldOfTheProcess) {
  sources_.proc = "/nowhere";
  EXPECT_EQ(RenderMetrics(sources_).find("\nprocess_"), std::string::npos);
}

TEST_F(ExporterTest, EveryPeerThatIsDownIsShown) {
  PeerHubOptions options;
  options.node = "n0";
  for (int i = 0; i < 70; ++i) options.static_peers.push_back({absl::StrCat("m", i), "127.0.0.1:1", {}});
  const std::unique_ptr<PeerHub> hub = std::make_unique<PeerHub>(options);
  sources_.peers = hub.get();
  sources_.max_peers = 10;
  const std::string text = RenderMetrics(sources_);
  for (int i = 0; i < 70; ++i) EXPECT_THAT(text, HasSubstr(absl::StrCat("railsd_peer_up{peer=\"m", i, "\"} 0\n")));
  EXPECT_THAT(text, HasSubstr("railsd_peers{state=\"up\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("railsd_peers{state=\"down\"} 70\n"));
  hub->Stop();
}

TEST_F(ExporterTest, ReceivedBytesNeverFall) {
  HighWater high_water;
  sources_.high_water = &high_water;
  const auto received = [this](uint64_t bytes) {
    AgentSnapshot snapshot = Snapshot();
    snapshot.rails[0].counts.rx_payload_bytes = snapshot.peers[0].rail_rx_bytes[0] = bytes;
    agent_.SetSnapshot(snapshot);
    return RenderMetrics(sources_);
  };
  for (const auto& [bytes, shown] : {std::pair(5000, 5000), {4000, 5000}, {4900, 5000}, {5100, 5100}}) {
    const std::string text = received(static_cast<uint64_t>(bytes));
    EXPECT_THAT(text, HasSubstr(absl::StrCat("railsd_rail_payload_bytes_total{rail=\"rail0\",direction=\"rx\"} ", shown,
                                             "\n")));
    EXPECT_THAT(text,
                HasSubstr(absl::StrCat("bytes_total{peer=\"n1\",rail=\"rail0\",direction=\"rx\"} ", shown, "\n")));
  }
}

TEST_F(ExporterTest, AnEngineThatDoesNotAnswerDoesNotHangTheScrape) {
  agent_.silent = true;
  sources_.deadline = absl::Milliseconds(10);
  const std::string text = RenderMetrics(sources_);
  EXPECT_THAT(text, HasSubstr("railsd_scrape_failed 1\n"));
  EXPECT_EQ(text.find("railsd_rail_"), std::string::npos) << "nothing rather than zeros";
}

// A new line of kRailCounters is in the metrics, in the API and in JSON.
TEST_F(ExporterTest, EveryCounterOfARailIsThere) {
  AgentSnapshot snapshot = Snapshot();
  RailView& rail = snapshot.rails[1];
  for (size_t i = 0; i < kRailCounters.size(); ++i) rail.counts.*kRailCounters[i].count = 7000 + i;
  agent_.SetSnapshot(snapshot);
  const std::string text = RenderMetrics(sources_);
  rails::v1::RailStatus status;
  RailTo(rail, *sources_.context, &status);
  const auto json = rails::MessageJson(status);
  for (size_t i = 0; i < kRailCounters.size(); ++i) {
    const RailCounterInfo& counter = kRailCounters[i];
    const std::string label = *counter.label == 0 ? "" : absl::StrCat(",", counter.label, "=\"", counter.value, "\"");
    EXPECT_THAT(text, HasSubstr(absl::StrCat("railsd_rail_", counter.family, "_total{rail=\"rail1\"", label, "} ",
                                             7000 + i, "\n")));
    EXPECT_EQ(status.counters(static_cast<int>(i)).name(), counter.name);
    EXPECT_EQ(status.counters(static_cast<int>(i)).value(), 7000 + i);
    EXPECT_EQ(json["counters"][counter.name], 7000 + i);
  }
}

// The rules of `promtool check metrics` for names, and of the project for labels.
TEST(MetricTableTest, NamesFollowTheRules) {
  const std::set<std::string> allowed = {
      "rail",   "direction", "peer",   "state",      "queue",     "kind",    "result", "phase", "hash",      "version",
      "node",   "device",    "port",   "link_layer", "zone_keys", "traffic", "outbox", "watch", "placement", "part",
      "window", "counter",   "method", "code",       "tenant",    "quota",   "limit",  "socket"};
  std::set<std::string> names;
  for (const MetricInfo& metric : kMetricTable) {
    const std::string name = metric.name;
    SCOPED_TRACE(name);
    EXPECT_TRUE(names.insert(name).second);
    EXPECT_TRUE(absl::StartsWith(name, "railsd_") || absl::StartsWith(name, "process_"));
    EXPECT_EQ(absl::EndsWith(name, "_total"), metric.kind == MetricKind::kCounter);
    for (const char* unit : {"milli", "micro", "nano", "kilo", "mega", "_ms_", "_us_", "_ns_"}) {
      EXPECT_EQ(absl::StrCat(name, "_").find(unit), std::string::npos) << "base units only";
    }
    EXPECT_TRUE(absl::EndsWith(metric.help, "."));
    for (const auto label : absl::StrSplit(metric.labels, ',', absl::SkipEmpty())) {
      EXPECT_TRUE(allowed.count(std::string(label))) << std::string(label);
    }
  }
}

}  // namespace
}  // namespace railsd
