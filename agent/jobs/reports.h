// Reports and explanations of jobs.
#ifndef RAILSD_AGENT_JOBS_REPORTS_H_
#define RAILSD_AGENT_JOBS_REPORTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/groups/groups.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"
#include "agent/jobs/records.h"
#include "agent/rails/health.h"
#include "agent/sessions/sessions.h"

namespace railsd {

// Fills the part of a report that is known from acceptance on.
void BeginReport(const CheckedSubmission& submission, const Group& group, JobReport* out);
// Brings the report of a part that is not terminal up to date.
void FillReport(const NodeJob& job, const RankPart& part, const ExchangeContext& context, const RailHealth& health,
                absl::Time now, JobReport* report);

// All of an explanation but its timeline and the names of nodes.
JobExplanation ExplanationOf(const NodeJob& job, const ExchangeContext& context, const RailHealth& health,
                             absl::Time now);

// Reports of the parts that are not terminal.
std::vector<JobReport> ActiveReports(const JobMap& jobs, const ExchangeContext& context, const RailHealth& health,
                                     absl::Time now);
// Bytes in zones that are open, by peer and rail.
std::vector<BytesByRail> LandingByPeer(const JobMap& jobs, const ExchangeContext& context);

// As JobTable::WaitsByPeer().
std::vector<absl::Duration> WaitsByPeer(const JobMap& jobs, const PeerTable& peers, absl::Time now);

// The latest job that matches, among those that run and those that are remembered. As Agent::Explain().
absl::StatusOr<JobExplanation> ExplainJob(const WantedJob& wanted, const JobMap& jobs, const JobRecords& records,
                                          const ExchangeContext& context, GroupTable& groups, SessionTable& sessions,
                                          const RailHealth& health, absl::Time now);

// Logs the end of a job: one line for all ranks of this node.
void LogEnd(const NodeJob& job, const AgentOptions& options);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_REPORTS_H_
