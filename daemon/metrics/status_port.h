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
#include <string>

#include "absl/status/statusor.h"
#include "daemon/metrics/exporter.h"
#include "daemon/metrics/http_server.h"
#include "daemon/service/services.h"

namespace railsd {

class StatusPort {
 public:
  // `http`: the address and the limits. Not ready until SetReady(). UNAVAILABLE: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<StatusPort>> Start(HttpOptions http, MetricSources sources,
                                                           std::shared_ptr<const ServiceContext> context);
  virtual ~StatusPort() = default;
  virtual int port() const = 0;
  // `why`, for /readyz: empty if new work is taken, else the reason. Any thread.
  virtual void SetNotReady(std::string why) = 0;
  void SetReady() { SetNotReady(""); }
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_STATUS_PORT_H_
