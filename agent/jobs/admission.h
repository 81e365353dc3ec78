// Decides whether a submission becomes a part of a job: the checks that need the engine's state, before any byte moves.
#ifndef RAILSD_AGENT_JOBS_ADMISSION_H_
#define RAILSD_AGENT_JOBS_ADMISSION_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/groups/groups.h"
#include "agent/jobs/node_job.h"
#include "agent/jobs/records.h"
#include "agent/sessions/sessions.h"

namespace railsd {

// Owned by the engine's thread.
class Admission {
 public:
  Admission(const AgentOptions* options, PeerTable* peers, SessionTable* sessions, GroupTable* groups,
            const JobMap* jobs, const JobRecords* records)
      : options_(*options), peers_(*peers), sessions_(*sessions), groups_(*groups), jobs_(*jobs), records_(*records) {}

  // OK: the submission takes the next number of its rank, and `*group` and `*session` are set; or it was accepted
  // before with the same content, and `*repeated` is true. Otherwise the reason for the refusal.
  absl::Status Check(const CheckedSubmission& submission, absl::Time now, Group** group, Session** session,
                     bool* repeated);

  // A peer's READY names a job that this node does not have. OK when the job can begin, else why the peer must abort
  // it.
  absl::Status CheckAnnounced(const Group& group, JobKey key, const Peer& from);
  // The highest job that any rank of the group can have submitted, given the jobs of this node's ranks.
  uint64_t LastExpected(const Group& group) const {
    return group.LastTaken().value() + 2 * uint64_t{options_.limits.max_jobs_per_group};
  }

  // Keeps checked ranges as a prepared exchange of their rank. Counts the limits that refuse it.
  absl::Status Keep(CheckedSubmission& layout);

  // While draining, only submissions up to each group's cut are taken: the highest sequence number that any member is
  // known to have submitted when the drain begins.
  void SetDraining(bool draining);

 private:
  const RankPart* UnderWay(const CheckedSubmission& submission) const;
  absl::Status CheckMember(const CheckedSubmission& submission, Group** group, Session** session) const;
  absl::Status CheckRepeated(const CheckedSubmission& submission) const;
  absl::Status CheckAlive(const CheckedSubmission& submission, const Group& group) const;
  absl::Status CheckRanges(const CheckedSubmission& submission, const Group& group) const;
  absl::Status CheckLocalFlows(const CheckedSubmission& submission, const Group& group) const;
  absl::Status CheckNew(const CheckedSubmission& submission, Group& group, Session& session, absl::Time now);

  const AgentOptions& options_;
  PeerTable& peers_;
  SessionTable& sessions_;
  GroupTable& groups_;
  const JobMap& jobs_;
  const JobRecords& records_;
  bool draining_ = false;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_ADMISSION_H_
