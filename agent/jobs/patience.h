// How long jobs wait for peers that no rail reaches, or that take nothing.
#ifndef RAILSD_AGENT_JOBS_PATIENCE_H_
#define RAILSD_AGENT_JOBS_PATIENCE_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/groups/groups.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// Until when jobs of a group wait for a rail to the peer; null: the earliest end of any group's wait. Infinite future
// when some rail reaches the peer.
absl::Time StrandedUntil(const Peer& peer, const Group* group, const AgentOptions& options);

// Jobs that have waited too long for a rail to a peer, and why they fail. Lowers `*next` to when to look again.
std::vector<std::pair<NodeJob*, absl::Status>> FindStranded(const JobMap& jobs, const GroupTable& groups,
                                                            const ExchangeContext& context, absl::Time now,
                                                            absl::Time* next);

// Call when a round begins. UNAVAILABLE when several rounds have begun and the receiver has accepted no byte for as
// long as the group's jobs wait for a rail to a peer. A slow network begins no round, nor does the wait for a rail.
absl::Status CheckFruitless(const NodeJob& job, const Group* group, const Exchange& exchange,
                            const ExchangeContext& context);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_PATIENCE_H_
