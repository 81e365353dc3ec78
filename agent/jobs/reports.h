// Reports and explanations of jobs.
#ifndef RAILSD_AGENT_JOBS_REPORTS_H_
#define RAILSD_AGENT_JOBS_REPORTS_H_

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"
#include "agent/jobs/records.h"
#include "agent/rails/health.h"

namespace railsd {

// Brings the report of a part that is not terminal up to date.
void FillReport(const NodeJob& job, const RankPart& part, const ExchangeContext& context, const RailHealth& health,
                absl::Time now, JobReport* report);

// All of an explanation but its timeline.
JobExplanation ExplanationOf(const NodeJob& job, const ExchangeContext& context, const RailHealth& health,
                             absl::Time now);

// Finds the latest job that was meant among those that run and those that are remembered: one of the two is not null.
// Errors as Agent::Explain().
struct FoundJob {
  const NodeJob* running = nullptr;
  const JobExplanation* ended = nullptr;
};
absl::StatusOr<FoundJob> FindJob(const WantedJob& wanted, const JobMap& jobs, const JobRecords& records,
                                 const AgentOptions& options);

// Logs the end of a job: one line for all ranks of this node.
void LogEnd(const NodeJob& job, const AgentOptions& options);

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_REPORTS_H_
