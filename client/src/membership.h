// A rank's dealings with the daemon: joining a group, and handing jobs over.
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

// Blocks until every rank has joined, for `timeout` at most; infinite: for the daemon's limit. `next_seq`: the first
// job that this rank has not finished.
absl::StatusOr<v1::JoinGroupResponse> JoinGroup(Session& session, const GroupOptions& options, uint64_t next_seq,
                                                absl::Duration timeout);

// Hands a job of `group` over; for `timeout` again while it is unknown whether it was accepted. `*known` says whether
// it is known in the end. OK: it was accepted, by this attempt or an earlier one. Sets the request's attempt.
absl::Status HandOver(Session& session, const std::string& group, v1::SubmitAllToAllRequest& request,
                      absl::Duration timeout, bool* known);

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_MEMBERSHIP_H_
