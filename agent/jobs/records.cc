#include "agent/jobs/records.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace railsd {
namespace {

// Finished reports that operators can see.
constexpr size_t kRecentReports = 64;
// The most tombstones of one group: a bound on what peers can make this agent keep.
constexpr size_t kMaxTombstones = 4096;
// Groups whose jobs peers may still ask about, after this node's ranks have left.
constexpr size_t kPastGroups = 256;

}  // namespace

void JobRecords::Add(const NodeJob& job, const RankPart& part, size_t kept) {
  Ended& ended = ended_[job.key.epoch];
  std::shared_ptr<FinishedParts>& parts = ended.reports[job.key.seq];
  if (parts == nullptr) {
    parts = std::make_shared<FinishedParts>();
    parts->reserve(job.parts.size());
  }
  const auto at = std::upper_bound(parts->begin(), parts->end(), part.report.rank,
                                   [](Rank rank, const Finished& finished) { return rank < finished.report.rank; });
  parts->insert(at, {part.submission.session, part.submission.digest, part.report, job.in_bytes});
  recent_.emplace_front(parts, part.report.rank);
  if (recent_.size() > kRecentReports) recent_.pop_back();
  if (ended.reports.size() > kept) ended.reports.erase(ended.reports.begin());
}

const JobRecords::Finished* JobRecords::FindIn(const FinishedParts& parts, Rank rank) {
  const auto at = std::lower_bound(parts.begin(), parts.end(), rank,
                                   [](const Finished& finished, Rank wanted) { return finished.report.rank < wanted; });
  return at != parts.end() && at->report.rank == rank ? &*at : nullptr;
}

const JobRecords::Finished* JobRecords::Find(JobKey key, Rank rank) const {
  const auto ended = ended_.find(key.epoch);
  if (ended == ended_.end()) return nullptr;
  const auto parts = ended->second.reports.find(key.seq);
  return parts == ended->second.reports.end() ? nullptr : FindIn(*parts->second, rank);
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

void JobRecords::ForgetGroup(Epoch epoch) {
  const auto ended = ended_.find(epoch);
  if (ended == ended_.end()) return;
  if (!ended->second.reports.empty()) {
    Past& past = past_.emplace_front(Past{epoch, ended->second.reports.rbegin()->first, {}});
    for (const auto& [seq, why] : ended->second.tombstones) past.aborted.push_back(seq);
    if (past_.size() > kPastGroups) past_.pop_back();
  }
  ended_.erase(ended);
}

bool JobRecords::EndedWell(JobKey key) const {
  const auto past = std::find_if(past_.begin(), past_.end(), [&](const Past& p) { return p.epoch == key.epoch; });
  return past != past_.end() && key.seq <= past->last &&
         std::find(past->aborted.begin(), past->aborted.end(), key.seq) == past->aborted.end();
}

bool JobRecords::TakeTally(const Tally& tally, PeerIndex from, NodeJob* job) {
  if (!context_.traits.binds_zones) return false;  // the rails of this node see what comes
  if (tally.bytes.size() > context_.rail_count()) return false;
  uint64_t total = 0;
  for (const uint64_t bytes : tally.bytes) total = bytes > UINT64_MAX - total ? UINT64_MAX : total + bytes;
  const auto add = [&](auto* rails) {
    rails->resize(context_.rail_count(), 0);
    for (size_t r = 0; r < tally.bytes.size(); ++r) (*rails)[r] += tally.bytes[r];
  };
  const auto ended = ended_.find(tally.job.epoch);
  FinishedParts* finished = nullptr;
  if (ended != ended_.end()) {
    const auto parts = ended->second.reports.find(tally.job.seq);
    if (parts != ended->second.reports.end()) finished = parts->second.get();
  }
  if (job == nullptr && finished == nullptr) return false;
  uint64_t in_bytes = 0, so_far = 0;
  if (job != nullptr) {
    in_bytes = job->in_bytes;
    so_far = std::accumulate(job->rail_rx_bytes.begin(), job->rail_rx_bytes.end(), uint64_t{0});
  } else {
    const BytesByRail& known = finished->front().report.rail_rx_bytes;
    in_bytes = finished->front().node_in_bytes;
    so_far = std::accumulate(known.begin(), known.end(), uint64_t{0});
  }
  if (so_far == in_bytes && total <= in_bytes) return true;  // the rails of this node have seen it all
  if (so_far > in_bytes || total > in_bytes - so_far) return false;
  if (job != nullptr) add(&job->rail_rx_bytes);
  add(&told_rx_bytes_);
  for (size_t r = 0; r < tally.bytes.size(); ++r) context_.peers->Get(from).rails[r].rx_bytes += tally.bytes[r];
  if (finished != nullptr) {
    for (Finished& part : *finished) add(&part.report.rail_rx_bytes);
  }
  return true;
}

std::unique_ptr<JobRecorder> JobRecords::NewRecorder() {
  if (context_.options->explained_jobs == 0) return nullptr;
  std::unique_ptr<JobRecorder> recorder;
  if (spare_recorders_.empty()) {
    recorder = std::make_unique<JobRecorder>();
  } else {
    recorder = std::move(spare_recorders_.back());
    spare_recorders_.pop_back();
  }
  recorder->Reset(context_.rail_count());
  return recorder;
}

void JobRecords::Keep(NodeJob& job, JobExplanation explanation) {
  if (job.recorder == nullptr) return;
  if (job.parts.empty()) {
    Spare(std::move(job.recorder));
    return;
  }
  explained_.push_front({std::move(explanation), std::move(job.recorder), {}});
  explained_.front().flows.reserve(job.exchanges.size());
  for (Exchange& exchange : job.exchanges) {
    explained_.front().flows.emplace_back(exchange.peer, exchange.out.TakeFlows());
  }
  if (explained_.size() <= context_.options->explained_jobs) return;
  Spare(std::move(explained_.back().recorder));
  explained_.pop_back();
}

void JobRecords::Spare(std::unique_ptr<JobRecorder> recorder) {
  if (spare_recorders_.size() < kMaxSpareRecorders) spare_recorders_.push_back(std::move(recorder));
}

JobTimeline JobRecords::Explained::Timeline(absl::Time now) const {
  return recorder->Timeline(now, [this](PeerIndex peer, uint64_t offset) { return FlowsTo(peer).At(offset).source; });
}

}  // namespace railsd
