#include "daemon/metrics/exporter.h"

#include <prometheus/text_serializer.h>

#include "daemon/metrics/collect.h"

namespace railsd {

std::string RenderMetrics(const MetricSources& sources) {
  return prometheus::TextSerializer().Serialize(CollectMetrics(sources));
}

}  // namespace railsd
