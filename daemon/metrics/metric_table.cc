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

// Behind the table.
constexpr const char* kExplanations = R"(
## Pinned rails

`railsd_job_speedup_over_pinned` answers whether spreading is worth it. Without it each rank sends over the NIC next to it, rail i
for the rank at place i of its node, and that NIC of the receiver takes what comes. The busiest NIC then decides how long the
exchange takes. The daemon adds up for each job of this node which bytes would leave and arrive over each rail in that way, and
divides the most of one rail by the rail's speed. The job cannot take less with pinned rails; with the waits for peers and the
overhead of a real transfer it takes more. The metric is this time over the time that the job took, from the last submission of a
rank of this node to the end, with all waits. It therefore understates the gain, where the rails' speeds are right: a speed below
the real one makes pinned rails look slower than they are. `railsd_job_ratio_to_bound` below 1 shows that.

| value | meaning |
|---|---|
| above the number of rails | The configured speeds are wrong. |
| 2 | The job took at most half of what it would have with pinned rails. |
| 1 | The busiest NIC would have been as fast at best. |
| below 1 | The time is not that of the wire: the job is small, or waited for peers. Pinned rails would have had the same waits. |

A mean over jobs says little, because small jobs count as much as large ones. Each rank of the node counts its jobs, as in the other
histograms.
`railsd_job_placement_seconds_total` adds the times up: pinned over actual tells how many times as long all exchanges, one
after the other, would have taken at least. Time in which several jobs were under way counts once there, and a job counts once for all ranks of the node.
Jobs that went on without lost ranks are left out, here and in the ratio to the bound. Rails that are drained count for the pinned time as if they were not.

## Waits for peers

`railsd_peer_wait_seconds_total` begins to count when this node has sent its READY of a job to the peer, and ends when the peer's
READY is here. A peer sends it when all its ranks have submitted, whoever else is late. The rate summed over all nodes, as in
`peer:railsd_peer_wait_seconds:rate5m`, therefore names the node that holds the others up, and not those that wait as well. With one
job at a time it is the number of nodes that wait for the peer on average.

## Series of a node

Most series are by peer and rail. With N rails and P peers, at most `metrics.max_peers` (256) of which have series of their own, a
node has about

    460 + 46 N + P (4 N + 2)

with rails over TCP and one tenant: 5,143 with 8 rails and 127 peers, 9,500 with 256 peers. Each further tenant adds 14 + N, and
each rail over RDMA up to 30, as many as its port has counters. Peers beyond the limit add the bytes and waits of a peer `other`,
and 1 + 2 N series each while they are down. No series is by job, group or session.

`./dev bench dashboards` serves the metrics of a daemon for 128 nodes with 8 rails to a real Prometheus (2.42, 658,000 series,
2.6 GB of memory, a scrape each 15 s) and asks it what the dashboards ask. On two processors with other work the panels of a dashboard
were there after:

| dashboard | one node | all nodes |
|---|---|---|
| cluster | | 1.2 s |
| node | 1.8 s | not offered |
| jobs | 0.3 s | 1.9 s |
| daemon | 0.1 s | 3.4 s |

The dashboard of the daemon is meant for some nodes at a time; the one of the cluster names the nodes to look at.
)";

constexpr const char* kKindNames[] = {"counter", "gauge", "histogram"};  // by MetricKind

}  // namespace

std::string MetricTableMarkdown() {
  std::string text =
      "# Metrics of railsd\n\nMade by `railsd --metrics-table` from `daemon/metrics/metric_table.*`; change that, not "
      "this page.\nServed at `metrics.listen`, path `/metrics`.\n\n| name | type | unit | labels | meaning "
      "|\n|---|---|---|---|---|\n";
  for (const MetricInfo& metric : kMetricTable) {
    absl::StrAppend(&text, "| `", metric.name, "` | ", kKindNames[static_cast<size_t>(metric.kind)], " | ",
                    UnitOf(metric.name), " | ", absl::StrReplaceAll(metric.labels, {{",", ", "}}), " | ", metric.help,
                    " |\n");
  }
  absl::StrAppend(&text,
                  "\n## Counters of a rail\n\n`RailStatus.counters` of the API and `counters` in JSON have these by "
                  "name. They come from one "
                  "table, `agent/transport/rail_counters.h`.\n\n| counter | metric |\n|---|---|\n");
  for (size_t i = 0; i < kRailCounters.size(); ++i) {
    const RailCounterInfo& counter = kRailCounters[i];
    absl::StrAppend(
        &text, "| `", counter.name, "` | `", kRailCounterMetrics[i].name,
        *counter.label == 0 ? "" : absl::StrCat("{", counter.label, "=\"", counter.value, "\"}"), "`",
        counter.rails == RailCounterInfo::kVerbs ? ", of rails over RDMA verbs; others have 0 and no metric" : "",
        " |\n");
  }
  return absl::StrCat(text, kExplanations);
}

}  // namespace railsd
