// Converts rails.v1 messages to the agent's structures and back, with every check that needs no state. Errors name the
// field, as in the proto, and the value.
#ifndef RAILSD_DAEMON_SERVICES_CONVERSION_H_
#define RAILSD_DAEMON_SERVICES_CONVERSION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/agent.h"

namespace rails::v1 {
class Epoch;
class JobId;
class JobReport;
class JoinGroupRequest;
class JoinGroupResponse;
class PrepareAllToAllRequest;
class SubmitAllToAllRequest;
class SubmitPreparedRequest;
}  // namespace rails::v1

namespace railsd {

// A job of one rank, as requests name it.
struct JobOfRank {
  JobKey job;
  Rank rank;
};

// INVALID_ARGUMENT: the name is empty or over its limit, the join key is over its limit, the world size is 0 or over
// the limit, or the rank is outside it. 0 milliseconds become an infinite timeout, which the agent caps.
absl::StatusOr<JoinRequest> JoinFrom(const rails::v1::JoinGroupRequest& request, SessionId session,
                                     const AgentLimits& limits);
void JoinTo(const GroupView& group, rails::v1::JoinGroupResponse* out);

void EpochTo(const Epoch& epoch, rails::v1::Epoch* out);
absl::StatusOr<Epoch> EpochFrom(const rails::v1::Epoch& epoch, const char* field);
// `present`: the request has the field.
absl::StatusOr<JobOfRank> JobFrom(const rails::v1::JobId& job, bool present);

// INVALID_ARGUMENT: columns of unequal length, offset + length past 64 bits, two flows with one rank, or a total past
// 64 bits. RESOURCE_EXHAUSTED: more ranges or flows than the limits.
absl::StatusOr<Submission> SubmissionFrom(const rails::v1::SubmitAllToAllRequest& request, SessionId session,
                                          const AgentLimits& limits);
// The same for ranges to be prepared.
absl::StatusOr<Submission> LayoutFrom(const rails::v1::PrepareAllToAllRequest& request, SessionId session,
                                      const AgentLimits& limits);
// The lengths are the request's own, which outlives the submission.
absl::StatusOr<Submission> PreparedSubmissionFrom(const rails::v1::SubmitPreparedRequest& request, SessionId session);
void ReportTo(const JobReport& report, rails::v1::JobReport* out);

// Large values become an infinite duration.
absl::Duration FromMilliseconds(uint64_t milliseconds);

}  // namespace railsd

#endif  // RAILSD_DAEMON_SERVICES_CONVERSION_H_
