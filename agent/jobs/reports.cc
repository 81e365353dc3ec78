#include "agent/jobs/reports.h"

#include <spdlog/logger.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/base/log_value.h"
#include "agent/jobs/waits.h"
#include "agent/plan/plan.h"

namespace railsd {
namespace {

// `speed`: of all rails, in bytes per second.
void FillUse(const NodeJob& job, double speed, absl::Time now, JobReport* report) {
  if (!job.running) return;
  report->sending = std::max(absl::ZeroDuration(), job.last_acknowledged - job.running_at);
  report->receiving = std::max(absl::ZeroDuration(), job.last_received - job.running_at);
  double sent = 0, received = 0;
  for (size_t r = 0; r < job.rail_tx_bytes.size(); ++r) {
    sent += static_cast<double>(job.rail_tx_bytes[r]);
    received += static_cast<double>(job.rail_rx_bytes[r]);
  }
  const double capacity = 2 * speed * absl::ToDoubleSeconds(now - job.started_at);
  const double useful = sent + received;
  const double carried = useful + static_cast<double>(job.resent_bytes);
  if (useful == 0 || capacity <= 0) return;
  Efficiency& efficiency = report->efficiency;
  efficiency.total = useful / capacity;
  efficiency.data = useful / carried;
  efficiency.moving = absl::FDivDuration(now - job.running_at, now - job.started_at);
  efficiency.utilisation = efficiency.moving > 0 ? carried / (capacity * efficiency.moving) : 0;
}

// Time of the busiest rail if the bytes of each source rank went over its own rail; 0 while a speed is not known.
absl::Duration PinnedBound(const NodeJob& job, const ExchangeContext& context) {
  double seconds = 0;
  for (size_t r = 0; r < context.rail_count(); ++r) {
    const uint64_t bytes = std::max(job.pinned_tx_bytes[r], job.pinned_rx_bytes[r]);
    if (bytes == 0) continue;
    const double speed = (*context.rails)[r].speed_bytes_per_s;
    if (speed <= 0) return absl::ZeroDuration();
    seconds = std::max(seconds, static_cast<double>(bytes) / speed);
  }
  return absl::Seconds(seconds);
}

// Bytes that have landed for the rank in zones that are open.
uint64_t BytesUnderWay(const NodeJob& job, Rank rank) {
  uint64_t landed = 0;
  for (const Exchange& exchange : job.Undone()) {
    if (exchange.in.quiet()) continue;
    exchange.in.ForEachLanded([&](Rank destination, uint64_t bytes) { landed += destination == rank ? bytes : 0; });
  }
  return landed;
}

}  // namespace

void BeginReport(const CheckedSubmission& submission, const Group& group, JobReport* out) {
  out->job = submission.job;
  out->tag = submission.tag;
  out->tenant = group.key.tenant;
  out->group = group.key.name;
  out->bytes_to_send = submission.send_bytes;
  out->bytes_to_receive = submission.capacities ? 0 : submission.receive_bytes;
  out->received_by_rank.resize(submission.capacities ? group.world_size() : 0);
}

void FillReport(const NodeJob& job, const RankPart& part, const ExchangeContext& context, const RailHealth& health,
                absl::Time now, JobReport* out) {
  JobReport& report = *out;
  report.bytes_received = part.bytes_received + BytesUnderWay(job, part.submission.rank);
  report.elapsed = now - part.accepted;
  report.parts = static_cast<uint32_t>(job.parts.size());
  if (job.started) report.waiting_for_ranks = job.started_at - part.accepted;
  if (job.running) report.waiting_for_peers = job.running_at - job.started_at;
  if (job.first_chunk_at < absl::InfiniteFuture()) report.to_first_chunk = job.first_chunk_at - part.accepted;
  double speed = 0;
  report.drained_rails = 0;
  for (size_t r = 0; r < context.rail_count(); ++r) {
    const bool used = job.rail_planned_bytes[r] + job.rail_tx_bytes[r] + job.rail_rx_bytes[r] > 0;
    if (!used && health.Unwanted(RailIndex(static_cast<uint32_t>(r)))) {
      report.drained_rails |= uint64_t{1} << r;
    } else {
      speed += (*context.rails)[r].speed_bytes_per_s;
    }
  }
  if (job.out_bytes + job.in_bytes > 0 && speed > 0) {
    report.node_bound = absl::Seconds(NodeBoundSeconds(job.out_bytes, job.in_bytes, speed));
    const bool known = job.started && report.node_bound > absl::ZeroDuration();  // of some bytes it rounds to 0
    if (known) report.ratio_to_bound = absl::FDivDuration(now - job.started_at, report.node_bound);
  }
  report.pinned_bound = PinnedBound(job, context);
  FillUse(job, speed, now, out);
  report.rail_tx_bytes = job.rail_tx_bytes;
  report.rail_rx_bytes = job.rail_rx_bytes;
  for (const Exchange& exchange : job.Undone()) exchange.in.AddLanding(&report.rail_rx_bytes);
  report.rail_planned_bytes = job.rail_planned_bytes;
  report.eager_sent_bytes = job.eager_sent_bytes;
  report.eager_received_bytes = job.eager_received_bytes;
  report.highest_vote = std::max(job.vote, job.peers_vote);
}

JobExplanation ExplanationOf(const NodeJob& job, const ExchangeContext& context, const RailHealth& health,
                             absl::Time now) {
  JobExplanation out;
  out.begun = absl::InfiniteFuture();
  const RankPart* told = nullptr;  // the lowest active one, or the one that ended last
  out.ranks.reserve(job.parts.size());
  for (const RankPart* part : job.parts) {
    out.ranks.push_back({part->report.rank, part->accepted, part->report.ended});
    out.begun = std::min(out.begun, part->accepted);
    if (told == nullptr || part->report.ended > told->report.ended) told = part;
  }
  out.exchanges.reserve(job.exchanges.size());
  for (const Exchange& exchange : job.exchanges) {
    out.exchanges.push_back({exchange.peer,
                             {},
                             exchange.out.total_bytes(),
                             exchange.in.total_bytes(),
                             exchange.times,
                             exchange.left_out,
                             exchange.out.eager(),
                             exchange.in.eager()});
  }
  if (told == nullptr) return out;
  out.report = told->report;
  if (!told->terminal()) FillReport(job, *told, context, health, now, &out.report);
  if (!told->terminal()) return out;
  // Several parts may end at the same moment, some of them before the last chunk was counted.
  out.report.rail_tx_bytes = job.rail_tx_bytes;
  out.report.rail_rx_bytes = job.rail_rx_bytes;
  return out;
}

std::vector<JobReport> ActiveReports(const JobMap& jobs, const ExchangeContext& context, const RailHealth& health,
                                     absl::Time now) {
  std::vector<JobReport> reports;
  for (const auto& [key, job] : jobs) {
    for (RankPart* part : job->parts) {
      if (part->terminal()) continue;
      FillReport(*job, *part, context, health, now, &part->report);
      reports.push_back(part->report);
    }
  }
  return reports;
}

std::vector<BytesByRail> LandingByPeer(const JobMap& jobs, const ExchangeContext& context) {
  std::vector<BytesByRail> bytes(context.peers->size(), BytesByRail(context.rail_count()));
  for (const auto& [key, job] : jobs) {
    for (const Exchange& exchange : job->exchanges) exchange.in.AddLanding(&bytes[exchange.peer.value()]);
  }
  return bytes;
}

std::vector<absl::Duration> WaitsByPeer(const JobMap& jobs, const PeerTable& peers, absl::Time now) {
  std::vector<absl::Duration> waits(peers.size());
  for (const auto& [key, job] : jobs) {
    for (const Exchange& exchange : job->exchanges) {
      if (exchange.waits_since < absl::InfiniteFuture()) waits[exchange.peer.value()] += now - exchange.waits_since;
    }
  }
  return waits;
}

namespace {

// One of the two is not null.
struct FoundJob {
  const NodeJob* running = nullptr;
  const JobRecords::Explained* ended = nullptr;
};

absl::StatusOr<FoundJob> FindJob(const WantedJob& wanted, const JobMap& jobs, const JobRecords& records,
                                 const AgentOptions& options) {
  const JobSeq seq = wanted.seq;
  if (options.explained_jobs == 0) {
    return absl::FailedPreconditionError("limits.explained_jobs: 0; this daemon keeps nothing to explain jobs with");
  }
  const auto matches = [&](const JobReport& report) {
    return (wanted.tenant.empty() || report.tenant == wanted.tenant) &&
           (wanted.group.empty() || report.group == wanted.group) && (seq.value() == 0 || report.job.seq == seq);
  };
  const NodeJob* running = nullptr;
  const JobRecords::Explained* ended = nullptr;
  absl::Time begun = absl::InfinitePast();
  std::pair<std::string, std::string> found, other;  // tenant and name of groups that have one
  const auto is_later = [&](const JobReport& report, absl::Time at) {
    std::pair<std::string, std::string> group(report.tenant, report.group);
    (found.second.empty() || found == group ? found : other) = std::move(group);
    if (at < begun) return false;
    begun = at;
    return true;
  };
  for (const JobRecords::Explained& kept : records.explained()) {
    if (matches(kept.explanation.report) && is_later(kept.explanation.report, kept.explanation.begun)) ended = &kept;
  }
  for (const auto& [key, job] : jobs) {
    if (job->parts.empty() || job->recorder == nullptr) continue;
    const RankPart& part = job->parts[0];
    if (matches(part.report) && is_later(part.report, part.accepted)) running = job.get();
  }
  if (seq.value() != 0 && !other.second.empty()) {
    const bool tenants = found.second == other.second;
    return absl::InvalidArgumentError(
        absl::StrCat(tenants ? "tenant: '" : "group: '", tenants ? found.first : found.second, "' and '",
                     tenants ? other.first : other.second, "' both have a job ", seq.value(),
                     tenants ? absl::StrCat(" of a group '", found.second, "'") : "", "; name one of them"));
  }
  if (running == nullptr && ended == nullptr) {
    return absl::NotFoundError(absl::StrCat("no job", seq.value() == 0 ? "" : absl::StrCat(" ", seq.value()),
                                            wanted.group.empty() ? "" : absl::StrCat(" of group '", wanted.group, "'"),
                                            wanted.tenant.empty() ? "" : absl::StrCat(" of tenant ", wanted.tenant),
                                            " runs on ", options.node, " or is among the last ",
                                            records.explained().size(),
                                            " that ended (limits.explained_jobs: ", options.explained_jobs, ")"));
  }
  return FoundJob{running, running == nullptr ? ended : nullptr};
}

// To microseconds. Several times cheaper than formatting a double, and a job does it six times.
void AppendSeconds(std::string* line, absl::string_view name, absl::Duration duration) {
  const int64_t us = std::max<int64_t>(0, absl::ToInt64Microseconds(duration));
  absl::StrAppend(line, name, us / 1000000, ".", absl::Dec(us % 1000000, absl::kZeroPad6));
}

}  // namespace

absl::StatusOr<JobExplanation> ExplainJob(const WantedJob& wanted, const JobMap& jobs, const JobRecords& records,
                                          const ExchangeContext& context, GroupTable& groups, SessionTable& sessions,
                                          const RailHealth& health, absl::Time now) {
  const absl::StatusOr<FoundJob> found = FindJob(wanted, jobs, records, *context.options);
  if (!found.ok()) return found.status();
  const NodeJob* const running = found->running;
  JobExplanation out = running == nullptr ? found->ended->explanation : ExplanationOf(*running, context, health, now);
  if (running == nullptr) {
    out.timeline = found->ended->Timeline(now);
  } else {
    out.timeline = running->recorder->Timeline(
        now, [running](PeerIndex peer, uint64_t offset) { return running->With(peer)->out.flows().At(offset).source; });
    const Group* const group = groups.Find(running->key.epoch);
    if (!running->aborting()) out.waits_for = WaitsFor(*running, group, *context.peers, sessions);
  }
  for (JobExplanation::Exchange& exchange : out.exchanges) exchange.node = context.peer(exchange.peer).node;
  std::sort(out.exchanges.begin(), out.exchanges.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  return out;
}

void LogEnd(const NodeJob& job, const AgentOptions& options) {
  const RankPart* last = nullptr;     // the one that ended last
  const JobReport* failed = nullptr;  // of the first that failed
  uint64_t sent = 0, received = 0;
  absl::Duration elapsed;
  for (const RankPart* part : job.parts) {
    if (last == nullptr || part->report.ended > last->report.ended) last = part;
    if (failed == nullptr && !part->report.status.ok()) failed = &part->report;
    sent += part->report.bytes_sent;
    received += part->report.bytes_received;
    elapsed = std::max(elapsed, part->report.elapsed);
  }
  const char* const event = failed == nullptr ? "done" : failed->replayable ? "replayable" : "failed";
  const bool warns = failed != nullptr && failed->failed();
  const spdlog::level::level_enum level = warns ? spdlog::level::warn : spdlog::level::info;
  if (last == nullptr || !options.log->should_log(level)) return;
  const JobReport& report = last->report;
  const auto rank_name = [](std::string* out, const auto& part) { absl::StrAppend(out, part->report.rank.value()); };
  std::string line = absl::StrCat("job_", event, " group=", LogValue(report.group),
                                  " epoch=", absl::Hex(job.key.epoch.boot.value(), absl::kZeroPad16), ".",
                                  job.key.epoch.counter, " seq=", job.key.seq.value(), " tag=", report.tag,
                                  " ranks=", absl::StrJoin(job.parts, ",", rank_name), " bytes_sent=", sent,
                                  " bytes_received=", received);
  AppendSeconds(&line, " elapsed_seconds=", elapsed);
  AppendSeconds(&line, " waiting_for_ranks_seconds=", report.waiting_for_ranks);
  AppendSeconds(&line, " waiting_for_peers_seconds=", report.waiting_for_peers);
  AppendSeconds(&line, " sending_seconds=", report.sending);
  AppendSeconds(&line, " receiving_seconds=", report.receiving);
  AppendSeconds(&line, " bound_seconds=", report.node_bound);
  const auto thousandths = static_cast<uint64_t>(std::min(report.ratio_to_bound, 1e15) * 1000 + 0.5);
  absl::StrAppend(&line, " ratio_to_bound=", thousandths / 1000, ".", absl::Dec(thousandths % 1000, absl::kZeroPad3));
  if (failed != nullptr) {
    absl::StrAppend(&line, " rank=", failed->rank.value(), " code=", absl::StatusCodeToString(failed->status.code()),
                    " why=", LogValue(failed->status.message()));
  }
  options.log->log(level, spdlog::string_view_t(line));
}

}  // namespace railsd
