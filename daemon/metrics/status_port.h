// The node's HTTP port, at `metrics.listen`. Read-only, without authentication.
//
//   /               the page for people (page.html)
//   /api/v1/status  rails.v1.OperatorService.GetOverview as JSON; ?finished=N: with N finished jobs
//   /healthz        200 while the engine answers
//   /readyz         200 while the engine answers and new groups and jobs are taken
//   /metrics        for Prometheus
#ifndef RAILSD_DAEMON_METRICS_STATUS_PORT_H_
#define RAILSD_DAEMON_METRICS_STATUS_PORT_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/metrics/exporter.h"
#include "daemon/metrics/http_server.h"

namespace railsd {

class StatusPort {
 public:
  // `http`: the address and the limits. UNAVAILABLE: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<StatusPort>> Start(HttpOptions http, MetricSources sources);
  int port() const { return server_->port(); }

 private:
  explicit StatusPort(MetricSources sources);
  // Nullopt if the engine does not answer in time.
  std::optional<AgentSnapshot> Snapshot() const { return ReadAgent(sources_.context->agent, sources_.deadline); }
  HttpAnswer Status(const std::string& query) const;
  HttpAnswer Ready() const;

  HighWater high_water_;
  MetricSources sources_;  // this and the following members stay unchanged after construction
  HttpAnswer page_;
  std::unique_ptr<HttpServer> server_;  // last, because its threads use the other members
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_STATUS_PORT_H_
