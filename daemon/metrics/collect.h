// One scrape. Private to daemon/metrics: this header pulls in prometheus-cpp.
#ifndef RAILSD_DAEMON_METRICS_COLLECT_H_
#define RAILSD_DAEMON_METRICS_COLLECT_H_

#include <prometheus/metric_family.h>

#include <vector>

#include "daemon/metrics/exporter.h"

namespace railsd {

// Families without a value are left out. Takes no longer than the sources' deadline and what reading counters takes.
std::vector<prometheus::MetricFamily> CollectMetrics(const MetricSources& sources);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_COLLECT_H_
