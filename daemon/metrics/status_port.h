// What the node tells over HTTP, at `metrics.listen`: nothing there changes anything, and nobody is asked who they are.
//
//   /               the page for people (page.html)
//   /api/v1/status  the overview of rails.v1.OperatorService.GetOverview as JSON; ?finished=N: so many finished jobs
//   /healthz        200 while the engine answers
//   /readyz         200 while, besides, new groups and jobs are taken
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
  // `http`: where, and its limits. Not ready until SetReady(). Error: UNAVAILABLE, the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<StatusPort>> Start(HttpOptions http, MetricSources sources,
                                                           std::shared_ptr<const ServiceContext> context);
  virtual ~StatusPort() = default;
  virtual int port() const = 0;
  // For /readyz: empty when new work is taken, else why not. Any thread.
  virtual void SetNotReady(std::string why) = 0;
  void SetReady() { SetNotReady(""); }
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_STATUS_PORT_H_
