// The Prometheus endpoint: reads the agent at each scrape, and counts finished jobs as they come.
#ifndef RAILSD_DAEMON_METRICS_EXPORTER_H_
#define RAILSD_DAEMON_METRICS_EXPORTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/session/descriptor_server.h"

namespace railsd {

// Values in buckets, as Prometheus wants them. Not synchronised.
class HistogramData {
 public:
  explicit HistogramData(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}
  void Observe(double value);
  const std::vector<double>& bounds() const { return bounds_; }
  const std::vector<uint64_t>& counts() const { return counts_; }  // per bucket, the last one above every bound
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// Finished jobs. The engine's thread writes, scrapes read.
class JobStatistics final : public AgentObserver {
 public:
  JobStatistics();
  void OnJobFinished(SessionId session, const JobReport& report) override;

  struct View {
    std::map<std::string, uint64_t> by_result;  // "ok" or the name of the status
    HistogramData duration, wait_ranks, wait_peers, ratio;
  };
  View Read() const;

 private:
  mutable absl::Mutex mutex_;
  View view_ ABSL_GUARDED_BY(mutex_);
};

// What a scrape reads. Everything pointed to outlives the exporter; null: those metrics are zero.
struct MetricSources {
  Agent* agent = nullptr;
  const JobStatistics* jobs = nullptr;
  const PeerHub* peers = nullptr;
  const DescriptorServer* descriptors = nullptr;
  std::string node, version, config_hash;
  bool tls = false;
  absl::Time started;
  absl::Duration deadline = absl::Seconds(2);  // for the engine to answer
};

// The exposition in text form, as one scrape would see it now.
std::string RenderMetrics(const MetricSources& sources);

// Serves /metrics. Threads of its own ("civetweb").
class MetricsServer {
 public:
  // Error: UNAVAILABLE, the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen, MetricSources sources);
  virtual ~MetricsServer() = default;
  virtual int port() const = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_EXPORTER_H_
