#include "daemon/metrics/metric_table.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace railsd {
namespace {

const char* UnitOf(absl::string_view name) {
  name = absl::StripSuffix(name, "_total");
  if (absl::EndsWith(name, "_bytes_per_second")) return "bytes/s";
  if (absl::EndsWith(name, "_bytes")) return "bytes";
  if (absl::EndsWith(name, "_seconds")) return "seconds";
  return "";
}

constexpr const char* kKindNames[] = {"counter", "gauge", "histogram"};  // by MetricKind

}  // namespace

std::string MetricTableMarkdown() {
  std::string text =
      "# Metrics of railsd\n\n"
      "Made by `railsd --metrics-table` from `daemon/metrics/metric_table.h`; change that, not this page.\n"
      "Served at `metrics.listen`, path `/metrics`.\n\n"
      "| name | type | unit | labels | what it tells |\n|---|---|---|---|---|\n";
  for (const MetricInfo& metric : kMetricTable) {
    absl::StrAppend(&text, "| `", metric.name, "` | ", kKindNames[static_cast<size_t>(metric.kind)], " | ",
                    UnitOf(metric.name), " | ", absl::StrReplaceAll(metric.labels, {{",", ", "}}), " | ", metric.help,
                    " |\n");
  }
  return text;
}

}  // namespace railsd
