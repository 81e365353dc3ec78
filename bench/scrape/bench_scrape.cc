// Measures the cost of a scrape of a large node: the real HTTP port over a fake node with 8 rails and 64 peers. Every
// counter is above 10^9, so that texts have realistic lengths. Prints one JSON object.
//
//   bench_scrape [REPETITIONS]
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/metrics/balance.h"
#include "daemon/metrics/status_port.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/metrics/http_client.h"

namespace railsd {
namespace {

constexpr uint32_t kRails = 8, kPeers = 64;
constexpr uint64_t kMany = 1'234'567'890'123;

RailView Rail(uint32_t index) {
  RailView rail;
  rail.index = RailIndex(index);
  rail.name = absl::StrCat("rail", index);
  rail.address = absl::StrCat("10.", index, ".0.1:40001");
  rail.speed_bytes_per_s = rail.planned_bytes_per_s = 50'000'000'000;
  rail.measured_bytes_per_s = 48'123'456'789;
  rail.peers_up = rail.peers_known = kPeers;
  rail.queued_bytes = rail.in_flight_bytes = rail.window_bytes = 67'108'864;
  rail.planned_bytes = rail.counts.tx_payload_bytes = rail.counts.rx_payload_bytes = kMany + index;
  rail.counts.tx_chunks = rail.counts.rx_chunks = rail.counts.tx_system_calls = rail.counts.rx_system_calls =
      kMany / 1000;
  for (auto& spent : rail.health.spent) spent = absl::Milliseconds(123'456'789);
  return rail;
}

AgentSnapshot Node() {
  AgentSnapshot node;
  node.node = "gpu-node-000.cluster.example";
  for (uint32_t r = 0; r < kRails; ++r) node.rails.push_back(Rail(r));
  for (uint32_t p = 0; p < kPeers; ++p) {
    PeerView peer;
    peer.node = absl::StrFormat("gpu-node-%03d.cluster.example", p + 1);
    peer.up = true;
    for (uint32_t r = 0; r < kRails; ++r) {
      peer.rails_up.push_back(true);
      peer.rail_states.push_back(HealthState::kUp);
      peer.rail_addresses.push_back(absl::StrCat("10.", r, ".0.", p + 2, ":40001"));
      peer.rail_tx_bytes.push_back(kMany + p);
      peer.rail_rx_bytes.push_back(kMany - p);
    }
    node.peers.push_back(std::move(peer));
  }
  for (uint64_t i = 0; i < 64; ++i) {
    JobReport report;
    report.group = "experts";
    report.job.seq = JobSeq(i);
    report.state = JobState::kDone;
    report.rail_tx_bytes = report.rail_rx_bytes = report.rail_planned_bytes = BytesByRail(kRails, kMany);
    node.finished_jobs.push_back(report);
    if (i < 8) node.active_jobs.push_back(report);
  }
  return node;
}

// Measures the median time until the whole answer is received, and its size.
nlohmann::json Measure(int port, const std::string& path, const std::string& headers, int repetitions) {
  std::vector<double> milliseconds;
  size_t size = 0;
  for (int i = 0; i < repetitions; ++i) {
    const absl::Time begin = absl::Now();
    const std::string answer = Ask(port, "GET", path, headers);
    milliseconds.push_back(absl::ToDoubleMilliseconds(absl::Now() - begin));
    if (!absl::StartsWith(answer, "HTTP/1.1 200 ")) {
      std::cerr << path << ": " << answer.substr(0, 200) << "\n";
      std::exit(1);
    }
    size = BodyOf(answer).size();
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  return {{"milliseconds", milliseconds[milliseconds.size() / 2]},
          {"worst_milliseconds", milliseconds.back()},
          {"bytes", size}};
}

int Main(int repetitions) {
  FakeAgent agent;
  agent.SetSnapshot(Node());
  JobStatistics jobs(std::vector<uint64_t>(kRails, 1));
  BalanceMeter balance;
  std::vector<RailView> rails = Node().rails;
  for (int i = 0; i < 3; ++i) {
    balance.Add(rails, absl::FromUnixSeconds(10 * i));
    for (RailView& rail : rails) rail.counts.tx_payload_bytes += 1'000'000;
  }
  auto context = std::make_shared<ServiceContext>();
  context->agent = &agent;
  context->balance = &balance;
  MetricSources sources;
  sources.context = context;
  sources.jobs = &jobs;
  sources.interfaces = std::vector<std::string>(kRails, "lo");
  HttpOptions http;
  http.listen = "127.0.0.1:0";
  auto port = StatusPort::Start(http, sources);
  if (!port.ok()) {
    std::cerr << port.status() << "\n";
    return 1;
  }
  const int at = (*port)->port();
  const std::string gzip = "Accept-Encoding: gzip\r\n";
  std::cout << nlohmann::json({{"metrics", Measure(at, "/metrics", "", repetitions)},
                               {"metrics_gzip", Measure(at, "/metrics", gzip, repetitions)},
                               {"status", Measure(at, "/api/v1/status", gzip, repetitions)},
                               {"page", Measure(at, "/", gzip, repetitions)}})
            << "\n";
  return 0;
}

}  // namespace
}  // namespace railsd

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 100;
  if (repetitions < 1) {
    std::cerr << "usage: bench_scrape [REPETITIONS]\n";
    return 2;
  }
  return railsd::Main(repetitions);
}
