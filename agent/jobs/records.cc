#include "agent/jobs/records.h"

#include <numeric>
#include <utility>

namespace railsd {
namespace {

// Finished reports that operators can see.
constexpr size_t kRecentReports = 64;
// Tombstones of one group that peers can make this agent keep.
constexpr size_t kMaxTombstones = 4096;

}  // namespace

void JobRecords::Add(const NodeJob& job, const RankPart& part, size_t kept) {
  recent_.push_front(part.report);
  if (recent_.size() > kRecentReports) recent_.pop_back();
  Ended& ended = ended_[job.key.epoch];
  ended.reports[{job.key.seq, part.submission.rank}] = {part.submission.session, part.submission.digest, part.report,
                                                        job.in_bytes};
  if (ended.reports.size() > kept) ended.reports.erase(ended.reports.begin());
}

const JobRecords::Finished* JobRecords::Find(JobKey key, Rank rank) const {
  const auto ended = ended_.find(key.epoch);
  if (ended == ended_.end()) return nullptr;
  const auto report = ended->second.reports.find({key.seq, rank});
  return report == ended->second.reports.end() ? nullptr : &report->second;
}

bool JobRecords::AddTombstone(JobKey key, const absl::Status& why, uint64_t taken_by_all) {
  std::map<JobSeq, absl::Status>& tombstones = ended_[key.epoch].tombstones;
  tombstones.erase(tombstones.begin(), tombstones.lower_bound(JobSeq(taken_by_all)));
  return tombstones.size() < kMaxTombstones && tombstones.emplace(key.seq, why).second;
}

const absl::Status* JobRecords::Tombstone(JobKey key) const {
  const auto ended = ended_.find(key.epoch);
  if (ended == ended_.end()) return nullptr;
  const auto tombstone = ended->second.tombstones.find(key.seq);
  return tombstone == ended->second.tombstones.end() ? nullptr : &tombstone->second;
}

bool JobRecords::TakeTally(const Tally& tally, PeerIndex from, NodeJob* job) {
  if (tally.bytes.size() > context_.rail_count()) return false;
  uint64_t total = 0;
  for (const uint64_t bytes : tally.bytes) total = bytes > UINT64_MAX - total ? UINT64_MAX : total + bytes;
  const auto add = [&](std::vector<uint64_t>* rails) {
    rails->resize(context_.rail_count(), 0);
    for (size_t r = 0; r < tally.bytes.size(); ++r) (*rails)[r] += tally.bytes[r];
  };
  const auto ended = ended_.find(tally.job.epoch);
  if (job == nullptr && ended == ended_.end()) return false;
  uint64_t in_bytes = 0, so_far = 0;
  if (job != nullptr) {
    in_bytes = job->in_bytes;
    so_far = std::accumulate(job->rail_rx_bytes.begin(), job->rail_rx_bytes.end(), uint64_t{0});
  } else {
    const auto report = ended->second.reports.lower_bound({tally.job.seq, Rank(0)});
    if (report == ended->second.reports.end() || report->first.first != tally.job.seq) return false;
    const std::vector<uint64_t>& known = report->second.report.rail_rx_bytes;
    in_bytes = report->second.node_in_bytes;
    so_far = std::accumulate(known.begin(), known.end(), uint64_t{0});
  }
  if (so_far == in_bytes && total <= in_bytes) return true;  // the rails of this node have seen it all
  if (so_far > in_bytes || total > in_bytes - so_far) return false;
  if (job != nullptr) add(&job->rail_rx_bytes);
  add(&told_rx_bytes_);
  for (size_t r = 0; r < tally.bytes.size(); ++r) context_.peers->Get(from).rails[r].rx_bytes += tally.bytes[r];
  for (JobReport& report : recent_) {
    if (report.job == tally.job) add(&report.rail_rx_bytes);
  }
  if (ended == ended_.end()) return true;
  auto& reports = ended->second.reports;
  for (auto it = reports.lower_bound({tally.job.seq, Rank(0)}); it != reports.end() && it->first.first == tally.job.seq;
       ++it) {
    add(&it->second.report.rail_rx_bytes);
  }
  return true;
}

std::unique_ptr<JobTimeline> JobRecords::NewTimeline() {
  if (context_.options->explained_jobs == 0) return nullptr;
  std::unique_ptr<JobTimeline> timeline = std::move(spare_timeline_);
  if (timeline == nullptr) timeline = std::make_unique<JobTimeline>();
  timeline->Reset(context_.rail_count());
  return timeline;
}

void JobRecords::Keep(NodeJob& job, JobExplanation explanation) {
  if (job.timeline == nullptr) return;
  if (job.parts.empty()) {
    spare_timeline_ = std::move(job.timeline);
    return;
  }
  explained_.push_front(std::move(explanation));
  explained_.front().timeline = std::move(*job.timeline);
  if (explained_.size() <= context_.options->explained_jobs) return;
  spare_timeline_ = std::move(job.timeline);
  *spare_timeline_ = std::move(explained_.back().timeline);
  explained_.pop_back();
}

}  // namespace railsd
