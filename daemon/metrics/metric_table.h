// Every metric that the daemon exports: name, type, unit and help in one table. Names follow the Prometheus rules:
// base units, `_total` for counters. Labels are bounded: rail, direction, peer, state, result, tenant; never a job.
// `railsd --metrics-table` prints the table; dashboards/METRICS.md holds the output.
#ifndef RAILSD_DAEMON_METRICS_METRIC_TABLE_H_
#define RAILSD_DAEMON_METRICS_METRIC_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "agent/transport/rail_counters.h"

namespace railsd {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

struct MetricInfo {
  const char* name;
  MetricKind kind;
  const char* labels;  // comma-separated; for people and the exposition's test
  const char* help;
};

inline constexpr auto kWrittenMetrics = std::to_array<MetricInfo>({
    {"railsd_build_info", MetricKind::kGauge, "version,node", "Version and node of this daemon; always 1."},
    {"railsd_start_time_seconds", MetricKind::kGauge, "", "Start of this daemon, in seconds since 1970."},
    {"process_cpu_seconds_total", MetricKind::kCounter, "", "Processor time of the daemon, user and system."},
    {"process_resident_memory_bytes", MetricKind::kGauge, "", "Memory of the daemon that is in RAM."},
    {"process_virtual_memory_bytes", MetricKind::kGauge, "", "Addresses that the daemon has mapped."},
    {"process_open_fds", MetricKind::kGauge, "", "Open file descriptors of the daemon."},
    {"process_max_fds", MetricKind::kGauge, "", "Limit of open file descriptors. Absent without a limit."},
    {"process_start_time_seconds", MetricKind::kGauge, "",
     "Start of the process by the kernel, in seconds since 1970."},
    {"railsd_config_info", MetricKind::kGauge, "hash", "Hash of the configuration in force; always 1."},
    {"railsd_tls_enabled", MetricKind::kGauge, "", "1 when nodes authenticate each other by mutual TLS."},
    {"railsd_tls_data_enabled", MetricKind::kGauge, "",
     "1 when the kernel encrypts and authenticates the data connections of rails over TCP (tls.data)."},
    {"railsd_tls_certificate_expiry_seconds", MetricKind::kGauge, "",
     "Expiry of the node's certificate in force, or of a certificate that signed it if that is earlier, in seconds "
     "since 1970. Absent without TLS."},
    {"railsd_tls_files_total", MetricKind::kCounter, "result",
     "Readings of changed certificate, key or CA files: the new files came into force (taken), or were wrong and the "
     "ones read before stayed in force (refused)."},
    {"railsd_tls_handshakes_failed_total", MetricKind::kCounter, "",
     "TLS handshakes that failed, of the control port and of dials to peers."},
    {"railsd_draining", MetricKind::kGauge, "", "1 while the daemon refuses new groups and lets running jobs end."},
    {"railsd_balance_max_over_mean", MetricKind::kGauge, "direction,traffic,window",
     "Busiest rail of the node over the mean of its rails, each rail's bytes over its speed, during the window; 1 is "
     "even. Rails that are drained do not count; absent while nothing moves. Actual, and as planned."},
    {"railsd_balance_jain_index", MetricKind::kGauge, "direction,traffic,window",
     "The same as Jain's index: 1 is even, one over the number of rails when one rail carries all."},
    {"railsd_rail_speed_bytes_per_second", MetricKind::kGauge, "rail",
     "Speed as configured, or as the interface or device reports it."},
    {"railsd_rail_plan_speed_bytes_per_second", MetricKind::kGauge, "rail",
     "Speed that the next plan assumes: lower than the configured one if the rail was measured to be slow."},
    {"railsd_rail_measured_speed_bytes_per_second", MetricKind::kGauge, "rail",
     "Speed measured while the rail was busy; 0 until measured."},
    {"railsd_rail_planned_bytes_total", MetricKind::kCounter, "rail,direction",
     "Payload bytes that plans put onto the rail; late binding and failures may have moved them since. Peers report "
     "the bytes to be received (rx) with their next job."},
    {"railsd_rail_queued_bytes", MetricKind::kGauge, "rail", "Bytes planned onto the rail and not posted."},
    {"railsd_rail_in_flight_bytes", MetricKind::kGauge, "rail", "Bytes posted and not acknowledged."},
    {"railsd_rail_window_bytes", MetricKind::kGauge, "rail", "Bytes that may be in flight, shared by the peers."},
    {"railsd_rail_sleeps_total", MetricKind::kCounter, "rail",
     "Sleeps of the rail's thread, each after data.spin without work."},
    {"railsd_rail_queue_depth", MetricKind::kGauge, "rail,queue",
     "Entries in the queues between the engine and the rail's thread."},
    {"railsd_rail_peers_up", MetricKind::kGauge, "rail",
     "Peers that the rail is connected to, without those that have drained their end."},
    {"railsd_rail_state", MetricKind::kGauge, "rail,state",
     "1 for the state that the rail is in: up, suspect, down, probing, drained by an operator here, or "
     "drained_by_peer: by every peer at its end; 0 for the others."},
    {"railsd_rail_state_seconds_total", MetricKind::kCounter, "rail,state",
     "Time that the rail has spent in each state, since a first peer was up."},
    {"railsd_rail_flaps_total", MetricKind::kCounter, "rail",
     "Failures of the rail or of its connections to single peers; a restart of a peer does not count."},
    {"railsd_rail_drains_total", MetricKind::kCounter, "rail", "Drains of the rail by an operator."},
    {"railsd_rail_device_info", MetricKind::kGauge, "rail,device,port,link_layer,zone_keys",
     "RDMA device of a rail over verbs, and whether landing zones have keys of their own (windows) or share their "
     "segment's (weak); always 1."},
    {"railsd_rail_link_up", MetricKind::kGauge, "rail", "1 when the port of the rail's RDMA device is active."},
    {"railsd_rail_queue_pairs", MetricKind::kGauge, "rail", "RDMA queue pairs."},
    {"railsd_rail_port_events_total", MetricKind::kCounter, "rail,counter",
     "Errors, discards, retransmissions and congestion, as counted by the driver (sysfs) of the rail's RDMA port or, "
     "over TCP, of the interface that has the rail's address."},
    {"railsd_rail_interface_bytes_total", MetricKind::kCounter, "rail,direction",
     "All bytes on the interface that has the address of a rail over TCP (sysfs): with headers, and with bytes of "
     "other programs."},
    {"railsd_peers", MetricKind::kGauge, "state", "All peers, by whether the links with them are up: up, down."},
    {"railsd_peer_up", MetricKind::kGauge, "peer",
     "1 when the link to the peer is up. Peers beyond metrics.max_peers have this series only while they are down."},
    {"railsd_rail_paths", MetricKind::kGauge, "rail,state",
     "All peers, by the state of the path to them over the rail: up, suspect, down, probing, drained_by_peer."},
    {"railsd_peer_rail_up", MetricKind::kGauge, "peer,rail",
     "1 when the data connection to the peer is up. Peers beyond metrics.max_peers have this series only for paths "
     "that are not up."},
    {"railsd_peer_rail_state", MetricKind::kGauge, "peer,rail,state",
     "1 for the state of the path to the peer over the rail: up, suspect, down, probing, drained_by_peer; other states "
     "are left out. Peers beyond metrics.max_peers have this series only for paths that are not up."},
    {"railsd_peer_rail_payload_bytes_total", MetricKind::kCounter, "peer,rail,direction",
     "Payload bytes of jobs, each counted once. Peers beyond metrics.max_peers are summed as peer \"other\"."},
    {"railsd_peer_wait_seconds_total", MetricKind::kCounter, "peer",
     "Time for which this node's jobs waited for the peer: from this node's READY until the peer's, summed over jobs. "
     "A wait counts while it lasts. Peers beyond metrics.max_peers are summed as peer \"other\"."},
    {"railsd_control_messages_total", MetricKind::kCounter, "direction", "Messages between daemons, over links."},
    {"railsd_control_messages_ignored_total", MetricKind::kCounter, "",
     "Messages of ended jobs, of unknown groups, or that contradict what is known."},
    {"railsd_control_connections", MetricKind::kGauge, "state",
     "Connections of links to other daemons: open; half_open: the other end is not identified yet."},
    {"railsd_control_errors_total", MetricKind::kCounter, "kind",
     "Errors of links to other daemons: disconnect, refused, protocol, lost, duplicate, dropped; held_back: messages "
     "of jobs to a node that has half an outbox waiting for it; identity: refused because the certificate does not "
     "have the name in the HELLO."},
    {"railsd_control_outbox_messages", MetricKind::kGauge, "outbox",
     "Messages that peers have not acknowledged yet: of all peers together (all), of the peer with the most "
     "(fullest)."},
    {"railsd_control_outbox_bytes", MetricKind::kGauge, "outbox", "The same in bytes."},
    {"railsd_sessions", MetricKind::kGauge, "", "Trainer processes with a session."},
    {"railsd_segments", MetricKind::kGauge, "", "Shared memory segments."},
    {"railsd_segment_bytes", MetricKind::kGauge, "", "Bytes of shared memory segments."},
    {"railsd_tenant_in_use", MetricKind::kGauge, "tenant,quota",
     "Use of each of a tenant's quotas: sessions, segments, segment_bytes, jobs; jobs_per_second: taken "
     "within the last second, where there is such a quota."},
    {"railsd_tenant_quota", MetricKind::kGauge, "tenant,quota",
     "Quotas of a tenant. Quotas that are not configured are left out."},
    {"railsd_tenant_refused_total", MetricKind::kCounter, "tenant,quota",
     "Requests that a tenant's quotas have refused: sessions, segments, submissions."},
    {"railsd_tenant_jobs_finished_total", MetricKind::kCounter, "tenant,result",
     "Finished jobs of a tenant's ranks of this node: ok, failed; replayable jobs are neither."},
    {"railsd_tenant_job_bytes_total", MetricKind::kCounter, "tenant,direction",
     "Bytes that those jobs sent and received."},
    {"railsd_tenant_rail_sent_bytes_total", MetricKind::kCounter, "tenant,rail",
     "Bytes of a tenant's jobs that arrived at other nodes over a rail; counted while jobs run."},
    {"railsd_groups", MetricKind::kGauge, "state", "Groups with a rank on this node: active, broken."},
    {"railsd_groups_formed_total", MetricKind::kCounter, "",
     "Epochs of groups with a rank on this node that have begun."},
    {"railsd_jobs", MetricKind::kGauge, "", "Jobs of ranks of this node that are not finished."},
    {"railsd_jobs_finished_total", MetricKind::kCounter, "result",
     "Finished jobs of ranks of this node, by status; replayable: ended with a daemon, to be submitted again."},
    {"railsd_job_duration_seconds", MetricKind::kHistogram, "",
     "Time from the acceptance of a rank's part of a job to its end, for jobs that were done."},
    {"railsd_job_bytes", MetricKind::kHistogram, "direction",
     "Bytes that a rank's part of a job sent and received, for jobs that were done."},
    {"railsd_job_wait_seconds", MetricKind::kHistogram, "phase",
     "Part of the duration spent waiting for other ranks of the node (ranks), for READY (peers), and from then on "
     "until everything was acknowledged (sending) and everything was here (receiving); the last two overlap."},
    {"railsd_job_ratio_to_bound", MetricKind::kHistogram, "",
     "Time of a job on this node over its lower bound, max(out, in) / sum of rail speeds. Drained rails do not count."},
    {"railsd_job_speedup_over_pinned", MetricKind::kHistogram, "",
     "The least time that a job could take on this node with the bytes of each rank on its own rail (pinned), over the "
     "time that it took. 2: at least twice as fast as pinned."},
    {"railsd_job_placement_seconds_total", MetricKind::kCounter, "placement",
     "Time of the jobs of railsd_job_speedup_over_pinned: time in which at least one was under way (actual), and the "
     "sum of the least possible times with the bytes of each rank on its own rail (pinned) and with even rails "
     "(bound)."},
    {"railsd_job_switching_efficiency", MetricKind::kHistogram, "part",
     "Useful bytes of a job over what the rails could have carried both ways since the last local submission (total), "
     "and its factors: useful over carried bytes (data), time in which every peer was ready (moving), use of the rails "
     "in that time (utilisation). Drained rails do not count."},
    {"railsd_job_balance_max_over_mean", MetricKind::kHistogram, "direction,traffic",
     "Busiest rail over the mean of the rails, for each job that was done; see railsd_balance_max_over_mean. Drained "
     "rails do not count."},
    {"railsd_job_balance_jain_index", MetricKind::kHistogram, "direction,traffic",
     "Jain's index of the rails' use, for each job that was done. Drained rails do not count."},
    {"railsd_submissions_refused_total", MetricKind::kCounter, "", "Submissions that were refused; nothing changed."},
    {"railsd_local_copy_bytes_total", MetricKind::kCounter, "",
     "Bytes copied between ranks of this node, and from a rank to itself."},
    {"railsd_engine_sleeps_total", MetricKind::kCounter, "",
     "Sleeps of the engine's thread, each after data.spin without work."},
    {"railsd_eager_exchanges_total", MetricKind::kCounter, "direction",
     "Eager exchanges: short enough to go over the link with READY. No rail carried them."},
    {"railsd_eager_bytes_total", MetricKind::kCounter, "direction", "Bytes of eager exchanges."},
    {"railsd_plans_total", MetricKind::kCounter, "", "Plans made: one per job and destination node."},
    {"railsd_planning_seconds_total", MetricKind::kCounter, "", "Time spent planning."},
    {"railsd_late_moves_total", MetricKind::kCounter, "",
     "Parts of exchanges that late binding moved from a lagging rail to a dry one."},
    {"railsd_returned_chunks_total", MetricKind::kCounter, "rail",
     "Chunks in flight when the rail failed; bytes that had not arrived went over another rail."},
    {"railsd_rehomed_exchanges_total", MetricKind::kCounter, "",
     "Exchanges that began another round after a rail failed: bytes that had not arrived were sent again."},
    {"railsd_open_zones", MetricKind::kGauge, "", "Exchanges of peers that may write into this node's memory."},
    {"railsd_engine_queue_depth", MetricKind::kGauge, "", "Commands that wait for the engine's thread."},
    {"railsd_copy_queue_depth", MetricKind::kGauge, "", "Copies between ranks of this node that wait for a thread."},
    {"railsd_job_watches", MetricKind::kGauge, "", "Calls that watch the ends of jobs."},
    {"railsd_job_watch_reports", MetricKind::kGauge, "watch",
     "Reports of ended jobs that wait to be sent to a watch: of all watches together (all), of the watch with the most "
     "(fullest)."},
    {"railsd_limit_refused_total", MetricKind::kCounter, "limit",
     "Requests that each limit has refused: connections, sessions, segments, groups, submissions, calls, messages. "
     "Named as in "
     "the configuration."},
    {"railsd_grpc_calls_total", MetricKind::kCounter, "method,code",
     "Calls of trainers and operators that the services have answered, by code."},
    {"railsd_ring_calls_total", MetricKind::kCounter, "method,code",
     "Calls of trainers that came through a ring and were answered, by code."},
    {"railsd_rings", MetricKind::kGauge, "", "Sessions that have a ring."},
    {"railsd_ring_missed_reports_total", MetricKind::kCounter, "",
     "Reports of ended jobs that found no room in a ring. The client asks for them."},
    {"railsd_ring_failures_total", MetricKind::kCounter, "kind",
     "Sessions ended because of their ring: the client wrote an impossible record (broken), or does not read its "
     "answers (full)."},
    {"railsd_descriptor_connections", MetricKind::kGauge, "", "Open connections to the descriptor socket."},
    {"railsd_descriptor_refused_total", MetricKind::kCounter, "", "Connections to the descriptor socket refused."},
    {"railsd_descriptor_bad_packets_total", MetricKind::kCounter, "",
     "Packets on the descriptor socket answered with an error, or connections closed for them."},
    {"railsd_descriptor_denied_total", MetricKind::kCounter, "",
     "Sessions refused because the client is of no tenant, or not of the one whose socket it came to."},
    {"railsd_scrape_failed", MetricKind::kGauge, "", "1 when the engine did not answer this scrape in time."},
});

// One for each of kRailCounters.
inline constexpr auto kRailCounterMetrics = std::to_array<MetricInfo>({
#define RAILSD_COUNTER(name, rails, family, label, value, help) \
  {"railsd_rail_" family "_total", MetricKind::kCounter, sizeof(label) == 1 ? "rail" : "rail," label, help},
    RAILSD_RAIL_COUNTERS(RAILSD_COUNTER)
#undef RAILSD_COUNTER
});

// Counts the families of rail counters. Only the first counter of a family has a help text.
consteval size_t CountFamilies() {
  size_t families = 0;
  for (const MetricInfo& metric : kRailCounterMetrics) families += *metric.help != 0 ? 1 : 0;
  return families;
}

// All metrics, in the order of the exposition.
inline constexpr auto kMetricTable = [] {
  std::array<MetricInfo, kWrittenMetrics.size() + CountFamilies()> table = {};
  size_t size = 0;
  for (const MetricInfo& metric : kWrittenMetrics) table[size++] = metric;
  for (const MetricInfo& metric : kRailCounterMetrics) {
    if (*metric.help != 0) table[size++] = metric;
  }
  return table;
}();

// A metric of the table, by its name. A name that the table lacks does not compile.
class Metric {
 public:
  consteval Metric(const char* name) {  // NOLINT(google-explicit-constructor): a name stands for its metric
    while (absl::string_view(kMetricTable.at(index_).name) != name) ++index_;
  }
  constexpr size_t index() const { return index_; }
  constexpr const MetricInfo& info() const { return kMetricTable[index_]; }

 private:
  size_t index_ = 0;  // in kMetricTable
};

// The table as Markdown, with units taken from the names.
std::string MetricTableMarkdown();

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_METRIC_TABLE_H_
