// JobTable: what is remembered of a job's course.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/job/jobs.h"

namespace railsd {

std::unique_ptr<JobTimeline> JobTable::NewTimeline() {
  if (options_.explained_jobs == 0) return nullptr;
  std::unique_ptr<JobTimeline> timeline = std::move(spare_timeline_);
  if (timeline == nullptr) timeline = std::make_unique<JobTimeline>();
  timeline->Reset(rails_.size());
  return timeline;
}

void JobTable::NoteReceived(NodeJob& job, PeerExchange& exchange, RailIndex rail) {
  job.last_received = exchange.times.last_received = now_;
  if (job.timeline != nullptr) job.timeline->OnReceived(rail, now_);
}

void JobTable::FillUse(const NodeJob& job, double speed, JobReport* report) const {
  if (!job.running) return;
  report->sending = std::max(absl::ZeroDuration(), job.last_acknowledged - job.running_at);
  report->receiving = std::max(absl::ZeroDuration(), job.last_received - job.running_at);
  double sent = 0, received = 0;
  for (size_t r = 0; r < rails_.size(); ++r) {
    sent += static_cast<double>(job.rail_tx_bytes[r]);
    received += static_cast<double>(job.rail_rx_bytes[r]);
  }
  const double capacity = 2 * speed * absl::ToDoubleSeconds(now_ - job.started_at);
  const double useful = sent + received;
  const double carried = std::max(sent, static_cast<double>(job.posted_bytes)) + received;
  if (useful == 0 || capacity <= 0) return;
  Efficiency& efficiency = report->efficiency;
  efficiency.total = useful / capacity;
  efficiency.data = useful / carried;
  efficiency.moving = absl::FDivDuration(now_ - job.running_at, now_ - job.started_at);
  efficiency.utilisation = efficiency.moving > 0 ? carried / (capacity * efficiency.moving) : 0;
}

JobExplanation JobTable::ExplanationOf(const NodeJob& job) const {
  JobExplanation out;
  out.begun = absl::InfiniteFuture();
  const RankPart* told = nullptr;  // the lowest active one, or the one that ended last
  for (const auto& [rank, part] : job.parts) {
    out.ranks.push_back({rank, part.accepted, part.ended});
    out.begun = std::min(out.begun, part.accepted);
    if (told == nullptr || part.ended > told->ended) told = &part;
  }
  for (const auto& [peer, exchange] : job.peers) {
    const uint64_t in_bytes = exchange.in_bytes;
    out.exchanges.push_back(
        {peer, peers_.Get(peer).node, exchange.out_bytes, in_bytes, exchange.times, exchange.left_out});
  }
  std::sort(out.exchanges.begin(), out.exchanges.end(), [](const auto& a, const auto& b) { return a.node < b.node; });
  if (told == nullptr) return out;
  out.report = told->report;
  if (!told->terminal()) FillReport(job, *told, &out.report);
  // Two may have ended at the same moment, one before the last chunk was counted.
  out.report.rail_tx_bytes = job.rail_tx_bytes;
  out.report.rail_rx_bytes = job.rail_rx_bytes;
  return out;
}

void JobTable::KeepExplanation(NodeJob& job) {
  if (job.timeline == nullptr) return;
  if (job.parts.empty()) {
    spare_timeline_ = std::move(job.timeline);
    return;
  }
  explained_.push_front(ExplanationOf(job));
  explained_.front().timeline = std::move(*job.timeline);
  if (explained_.size() <= options_.explained_jobs) return;
  spare_timeline_ = std::move(job.timeline);
  *spare_timeline_ = std::move(explained_.back().timeline);
  explained_.pop_back();
}

absl::StatusOr<JobExplanation> JobTable::Explain(const WantedJob& wanted) const {
  const JobSeq seq = wanted.seq;
  if (options_.explained_jobs == 0) {
    return absl::FailedPreconditionError("limits.explained_jobs: 0; this daemon keeps nothing to explain jobs with");
  }
  const auto matches = [&](const JobReport& report) {
    return (wanted.tenant.empty() || report.tenant == wanted.tenant) &&
           (wanted.group.empty() || report.group == wanted.group) && (seq.value() == 0 || report.job.seq == seq);
  };
  const NodeJob* running = nullptr;
  const JobExplanation* ended = nullptr;
  absl::Time begun = absl::InfinitePast();
  std::pair<std::string, std::string> found, other;  // tenant and name of groups that have one
  const auto is_later = [&](const JobReport& report, absl::Time at) {
    std::pair<std::string, std::string> group(report.tenant, report.group);
    (found.second.empty() || found == group ? found : other) = std::move(group);
    if (at < begun) return false;
    begun = at;
    return true;
  };
  for (const JobExplanation& explanation : explained_) {
    if (matches(explanation.report) && is_later(explanation.report, explanation.begun)) ended = &explanation;
  }
  for (const auto& [key, job] : jobs_) {
    if (job->parts.empty() || job->timeline == nullptr) continue;
    const RankPart& part = job->parts.begin()->second;
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
                                            " runs on ", peers_.self(), " or is among the last ", explained_.size(),
                                            " that ended (limits.explained_jobs: ", options_.explained_jobs, ")"));
  }
  JobExplanation out = running == nullptr ? *ended : ExplanationOf(*running);
  if (running != nullptr) {
    out.timeline = *running->timeline;
    if (!running->aborting()) out.waits_for = WaitsFor(*running);
  }
  out.age = now_ - out.begun;
  return out;
}

}  // namespace railsd
