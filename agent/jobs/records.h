// Records of jobs that have ended.
#ifndef RAILSD_AGENT_JOBS_RECORDS_H_
#define RAILSD_AGENT_JOBS_RECORDS_H_

#include <algorithm>
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

  // Adds the part's report. Keeps the reports of at most `kept` jobs of the epoch.
  void Add(const NodeJob& job, const RankPart& part, size_t kept);
  const Finished* Find(JobKey key, Rank rank) const;
  // Reports of all groups, newest first.
  std::vector<JobReport> Recent() const {
    std::vector<JobReport> reports;
    for (const auto& [finished, rank] : recent_) reports.push_back(FindIn(*finished, rank)->report);
    return reports;
  }
  void ForgetGroup(Epoch epoch);
  // True when the job's group was forgotten not long ago and the job ended well at this node.
  bool EndedWell(JobKey key) const;

  // Adds the tombstone of an aborted job, and drops those below `taken_by_all`: every local rank has the outcome of
  // these jobs, so none of them is needed. False: it was there, or there are too many.
  bool AddTombstone(JobKey key, const absl::Status& why, uint64_t taken_by_all);
  const absl::Status* Tombstone(JobKey key) const;

  // A peer tells how much of the job its rails carried. False: the tally is not needed, or cannot be true.
  bool TakeTally(const Tally& tally, PeerIndex from, NodeJob* job);
  // Bytes that peers say they have written over the rail.
  uint64_t told_rx_bytes(size_t rail) const { return told_rx_bytes_[rail]; }

  // Null when jobs are not explained (AgentOptions::explained_jobs is 0).
  std::unique_ptr<JobRecorder> NewRecorder();
  // Keeps what rails have recorded of a job that is about to be forgotten. `explanation`: as ExplanationOf() makes it.
  void Keep(NodeJob& job, JobExplanation explanation);
  struct Explained {
    JobExplanation explanation;  // as Keep() got it
    std::unique_ptr<JobRecorder> recorder;
    std::vector<std::pair<PeerIndex, StreamFlows>> flows;  // to each peer
    const StreamFlows& FlowsTo(PeerIndex peer) const {
      return std::find_if(flows.begin(), flows.end(), [peer](const auto& to) { return to.first == peer; })->second;
    }
    JobTimeline Timeline(absl::Time now) const;
  };
  const std::deque<Explained>& explained() const { return explained_; }

 private:
  using FinishedParts = std::vector<Finished>;  // of one job, by rank
  // A READY begins the next job before this one is forgotten, so groups that are busy need two at a time. Each has some
  // 230 KB.
  static constexpr size_t kMaxSpareRecorders = 4;
  void Spare(std::unique_ptr<JobRecorder> recorder);
  // Null when it has none.
  static const Finished* FindIn(const FinishedParts& parts, Rank rank);

  struct Ended {
    std::map<JobSeq, std::shared_ptr<FinishedParts>> reports;
    std::map<JobSeq, absl::Status> tombstones;
  };
  const ExchangeContext& context_;
  // A group that was forgotten.
  struct Past {
    Epoch epoch;
    JobSeq last;                  // the latest job that has ended
    std::vector<JobSeq> aborted;  // as far as was remembered
  };
  absl::flat_hash_map<Epoch, Ended> ended_;
  std::deque<Past> past_;  // newest first
  std::deque<std::pair<std::shared_ptr<const FinishedParts>, Rank>> recent_;
  std::deque<Explained> explained_;                            // newest first
  std::vector<std::unique_ptr<JobRecorder>> spare_recorders_;  // storage for the next jobs
  std::vector<uint64_t> told_rx_bytes_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_RECORDS_H_
