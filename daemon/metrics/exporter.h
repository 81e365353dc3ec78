// The metrics that Prometheus scrapes, read from the agent and the daemon's parts at each scrape.
#ifndef RAILSD_DAEMON_METRICS_EXPORTER_H_
#define RAILSD_DAEMON_METRICS_EXPORTER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/metrics/job_statistics.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/services/services.h"
#include "daemon/session/descriptor_server.h"

namespace railsd {

// Remembers the highest value of each counter. A sender that moves work off a failed rail corrects the bytes by rail
// that it reported, so the received bytes of an RDMA rail may fall. Prometheus would take a fall for a restart and
// count everything again. Therefore a counter keeps its highest value until the true one has caught up. Any thread.
class HighWater {
 public:
  // Returns the highest `value` so far for `key`. Keys are made of labels and bounded like them.
  uint64_t Raise(const std::string& key, uint64_t value) {
    absl::MutexLock lock(&mutex_);
    uint64_t& highest = highest_[key];
    return highest = std::max(highest, value);
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, uint64_t> highest_ ABSL_GUARDED_BY(mutex_);
};

// Returns nullopt if the engine does not answer in time. Blocks; must not be called on the engine thread.
std::optional<AgentSnapshot> ReadAgent(Agent* agent, absl::Duration deadline);

// The sources of a scrape, besides what the services share. They outlive the exporter. Null: the metrics of that source
// are missing.
struct MetricSources {
  std::shared_ptr<const ServiceContext> context;  // not null
  const JobStatistics* jobs = nullptr;
  const PeerHub* peers = nullptr;
  std::shared_ptr<const LinkCounters> links = nullptr;
  size_t max_peers = 256;  // peers with their own series; other peers get sums, and series for paths that are not up
  const DescriptorServer* descriptors = nullptr;
  const RingServer* rings = nullptr;
  HighWater* high_water = nullptr;           // StatusPort sets its own
  std::vector<std::string> interfaces = {};  // interfaces of TCP rails, by rail; empty: unknown
  std::string sysfs = "/sys";
  std::string proc = "/proc";
  bool tls_data = false;                       // TLS on data connections, too
  absl::Duration deadline = absl::Seconds(2);  // for the engine's answer
};

// The text exposition of one scrape now. Leaves out families without a value. Takes at most the sources' deadline plus
// the time to read counters.
std::string RenderMetrics(const MetricSources& sources);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_EXPORTER_H_
