// Copies between ranks of this node.
#ifndef RAILSD_AGENT_JOBS_LOCAL_COPIES_H_
#define RAILSD_AGENT_JOBS_LOCAL_COPIES_H_

#include "agent/groups/groups.h"
#include "agent/jobs/copier.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// Has the copier copy what the rank exchanges with those ranks of this node that have submitted before it.
void BeginCopies(NodeJob& job, const Group& group, RankPart& part, Copier* copier);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_LOCAL_COPIES_H_
