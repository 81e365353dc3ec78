// Jobs with capacities: a receiver says how much it can take, and learns from READY how much comes.
#ifndef RAILSD_AGENT_JOBS_CAPACITIES_H_
#define RAILSD_AGENT_JOBS_CAPACITIES_H_

#include <cstdint>

#include "agent/base/ids.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// True when a sent length agrees with the length or the capacity that is expected.
inline bool Fits(uint64_t sent_bytes, uint64_t expected_bytes, bool capacities) {
  return capacities ? sent_bytes <= expected_bytes : sent_bytes == expected_bytes;
}

// The job has a local rank's submission. Its other ranks must say the same, else the job fails.
inline bool HasCapacities(const NodeJob& job) { return job.parts[0].submission.capacities; }

// Records how many bytes the part's rank receives from `source`.
void AddReceived(RankPart& part, Rank source, uint64_t bytes);

// Cuts the receiving stream of the exchange to what the peer's READY says, which has been compared. No zone is open for
// it. The cost grows with the flows and ranges of the exchange.
void TakeLengths(NodeJob& job, Exchange& exchange, const Ready::Flows& sent);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_CAPACITIES_H_
