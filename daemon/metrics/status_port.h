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

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "daemon/metrics/exporter.h"
#include "daemon/metrics/http_server.h"
#include "daemon/service/services.h"

namespace railsd {

class StatusPort {
 public:
  // `http`: the address and the limits. Not ready until SetNotReady(""). UNAVAILABLE: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<StatusPort>> Start(HttpOptions http, MetricSources sources,
                                                           std::shared_ptr<const ServiceContext> context);
  int port() const { return server_->port(); }
  // `why`, for /readyz: empty if new work is taken, else the reason. Any thread.
  void SetNotReady(std::string why);

 private:
  StatusPort(MetricSources sources, std::shared_ptr<const ServiceContext> context);
  absl::Status Listen(HttpOptions options);
  HttpAnswer Status(const std::string& query) const;
  HttpAnswer Ready() const;

  HighWater high_water_;
  MetricSources sources_;  // this and the following members stay unchanged after construction
  const std::shared_ptr<const ServiceContext> context_;
  HttpAnswer page_;
  mutable absl::Mutex mutex_;
  std::string why_not_ready_ ABSL_GUARDED_BY(mutex_) = "starting";
  std::unique_ptr<HttpServer> server_;  // last, because its threads use the other members
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_STATUS_PORT_H_
