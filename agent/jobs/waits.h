// Texts that say what a job waits for.
#ifndef RAILSD_AGENT_JOBS_WAITS_H_
#define RAILSD_AGENT_JOBS_WAITS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/groups/groups.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// Local ranks that have not submitted; as many as a text names.
std::vector<Unsubmitted::Member> UnsubmittedHere(const NodeJob& job, const Group& group, SessionTable& sessions);

// "for rank 3 on n1 (pid 42) to submit". `group` is null when it is forgotten.
std::string WaitsFor(const NodeJob& job, const Group* group, const PeerTable& peers, SessionTable& sessions);

// The ranks that WaitsFor() names. Empty unless it waits for ranks to submit.
std::vector<Rank> AwaitedRanks(const NodeJob& job, const Group& group, SessionTable& sessions);

// Why a part has not ended in time.
absl::Status DeadlineStatus(const NodeJob& job, const RankPart& part, const Group* group, const PeerTable& peers,
                            SessionTable& sessions);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_WAITS_H_
