// The state of a node for operators and live views, built from the engine's snapshot and the daemon's own state.
#ifndef RAILSD_DAEMON_SERVICES_OVERVIEW_H_
#define RAILSD_DAEMON_SERVICES_OVERVIEW_H_

#include <algorithm>
#include <vector>

#include "agent/agent.h"
#include "daemon/services/conversion.h"
#include "daemon/services/services.h"

namespace rails::v1 {
class ExplainJobResponse;
class GetOverviewResponse;
class GetStatusResponse;
class PeerStatus;
class RailStatus;
}  // namespace rails::v1

namespace railsd {

void RailTo(const RailView& rail, const ServiceContext& context, rails::v1::RailStatus* out);
// Adds all rails. Response has the field.
template <typename Response>
void RailsTo(const AgentSnapshot& snapshot, const ServiceContext& context, Response* out) {
  for (const RailView& rail : snapshot.rails) RailTo(rail, context, out->add_rails());
}
void PeerTo(const PeerView& peer, rails::v1::PeerStatus* out);
void StatusTo(const AgentSnapshot& snapshot, const ServiceContext& context, rails::v1::GetStatusResponse* out);
// All peers by name. The agent knows the rails of peers that were up. The hub knows why a peer is down or silent.
std::vector<PeerView> AllPeers(const AgentSnapshot& snapshot, const ServiceContext& context);
// Adds active jobs, and at most `finished_limit` finished jobs, latest first. Response has both fields.
template <typename Response>
void JobsTo(const AgentSnapshot& snapshot, uint32_t finished_limit, Response* out) {
  for (const JobReport& job : snapshot.active_jobs) ReportTo(job, out->add_active());
  const size_t count = std::min<size_t>(finished_limit, snapshot.finished_jobs.size());
  for (size_t i = 0; i < count; ++i) ReportTo(snapshot.finished_jobs[i], out->add_finished());
}
void OverviewTo(const AgentSnapshot& snapshot, const ServiceContext& context, uint32_t finished_limit,
                rails::v1::GetOverviewResponse* out);
// The history of a job. Times become seconds since the job's begin; 0 if the event has not happened.
void ExplanationTo(const JobExplanation& explanation, const ServiceContext& context,
                   rails::v1::ExplainJobResponse* out);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICES_OVERVIEW_H_
