// What Prometheus scrapes: read from the agent and the daemon's parts at each scrape.
#ifndef RAILSD_DAEMON_METRICS_EXPORTER_H_
#define RAILSD_DAEMON_METRICS_EXPORTER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/agent.h"
#include "daemon/metrics/balance.h"
#include "daemon/metrics/high_water.h"
#include "daemon/metrics/job_statistics.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/service/call_counters.h"
#include "daemon/service/job_feed.h"
#include "daemon/session/descriptor_server.h"

namespace railsd {

class TlsFiles;

// What a scrape reads. Everything pointed to outlives the exporter; null: those metrics are zero.
struct MetricSources {
  Agent* agent = nullptr;
  const JobStatistics* jobs = nullptr;
  const PeerHub* peers = nullptr;
  std::shared_ptr<const LinkCounters> links = nullptr;  // of the peers
  size_t max_peers = 256;  // that have series of their own; of others those that are not up, and sums
  const DescriptorServer* descriptors = nullptr;
  const CallCounters* calls = nullptr;
  std::shared_ptr<const LimitCounters> refused = nullptr;
  const BalanceMeter* balance = nullptr;
  const JobFeed* feed = nullptr;
  HighWater* high_water = nullptr;  // the server brings its own
  std::string node, version;
  std::function<std::string()> config_hash = [] { return std::string(); };  // of what is in force now
  std::vector<std::string> interfaces;  // that have the addresses of the rails over TCP, by rail; empty: not known
  std::string sysfs = "/sys";
  const TlsFiles* tls = nullptr;  // null: plain text
  bool tls_data = false;          // on data connections, too
  absl::Time started;
  absl::Duration deadline = absl::Seconds(2);  // for the engine to answer
};

// The exposition in text form, as one scrape would see it now. Families without a value are left out. Takes no longer
// than the sources' deadline and the reading of counters.
std::string RenderMetrics(const MetricSources& sources);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_EXPORTER_H_
