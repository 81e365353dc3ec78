// Joins groups and submits jobs to the daemon, for one rank.
#ifndef RAILS_CLIENT_SRC_MEMBERSHIP_H_
#define RAILS_CLIENT_SRC_MEMBERSHIP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/src/session.h"
#include "rails/client.h"
#include "rails/v1/group.pb.h"
#include "rails/v1/job.pb.h"

namespace rails::internal {

// INVALID_ARGUMENT: the field and its value.
absl::Status CheckGroupOptions(const GroupOptions& options);

// Blocks until every rank has joined, at most for `timeout`, or for the daemon's limit if it is infinite. `next_seq`:
// the first job that this rank has not finished. `caller`: for Session::GiveUpJoins().
absl::StatusOr<v1::JoinGroupResponse> JoinGroup(Session& session, const GroupOptions& options, uint64_t next_seq,
                                                absl::Duration timeout, const void* caller);

// Submits a job of `group`. `*known`: whether the daemon has accepted it is known. It is not if the daemon has not
// answered within `timeout`, or the session is lost.
// Request: SubmitAllToAllRequest or SubmitPreparedRequest.
template <typename Request>
absl::Status HandOver(Session& session, const std::string& group, const Request& request, absl::Duration timeout,
                      bool* known);

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_MEMBERSHIP_H_
