// Records of jobs that have ended.
#ifndef RAILSD_AGENT_JOBS_RECORDS_H_
#define RAILSD_AGENT_JOBS_RECORDS_H_

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/explanation.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// Owned by the engine's thread.
class JobRecords {
 public:
  struct Finished {
    SessionId session;
    Digest digest{};
    JobReport report;
    uint64_t node_in_bytes = 0;  // of the job on this node, from other nodes
  };

  explicit JobRecords(const ExchangeContext* context) : context_(*context), told_rx_bytes_(context->rail_count()) {}

  // Reports. At most `kept` of the epoch.
  void Add(const NodeJob& job, const RankPart& part, size_t kept);
  const Finished* Find(JobKey key, Rank rank) const;
  // Reports of all groups, newest first.
  std::vector<JobReport> Recent() const { return {recent_.begin(), recent_.end()}; }
  void ForgetGroup(Epoch epoch) { ended_.erase(epoch); }

  // Tombstones of aborted jobs. `taken_by_all`: every local rank has its outcome of the jobs below, so that nobody can
  // ask any more. False: it was there, or there are too many.
  bool AddTombstone(JobKey key, const absl::Status& why, uint64_t taken_by_all);
  const absl::Status* Tombstone(JobKey key) const;

  // A peer says what its rails carried of the job. False: it cannot be.
  bool TakeTally(const Tally& tally, PeerIndex from, NodeJob* job);
  // Bytes that peers say they have written over the rail.
  uint64_t told_rx_bytes(size_t rail) const { return told_rx_bytes_[rail]; }

  // Explanations. Null when none are kept.
  std::unique_ptr<JobTimeline> NewTimeline();
  // Keeps the timeline of a job that is about to be forgotten. `explanation`: all of it but the timeline.
  void Keep(NodeJob& job, JobExplanation explanation);
  const std::deque<JobExplanation>& explained() const { return explained_; }

 private:
  struct Ended {
    std::map<std::pair<JobSeq, Rank>, Finished> reports;
    std::map<JobSeq, absl::Status> tombstones;
  };
  const ExchangeContext& context_;
  absl::flat_hash_map<Epoch, Ended> ended_;
  std::deque<JobReport> recent_;
  std::deque<JobExplanation> explained_;         // newest first
  std::unique_ptr<JobTimeline> spare_timeline_;  // storage for the next job
  std::vector<uint64_t> told_rx_bytes_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_RECORDS_H_
