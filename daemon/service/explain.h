// Converts the history of a job for OperatorService.
#ifndef RAILSD_DAEMON_SERVICE_EXPLAIN_H_
#define RAILSD_DAEMON_SERVICE_EXPLAIN_H_

#include "agent/agent.h"
#include "daemon/service/services.h"

namespace rails::v1 {
class ExplainJobResponse;
}  // namespace rails::v1

namespace railsd {

// Times become seconds since the job's begin; 0 if the event has not happened.
void ExplanationTo(const JobExplanation& explanation, const ServiceContext& context,
                   rails::v1::ExplainJobResponse* out);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICE_EXPLAIN_H_
