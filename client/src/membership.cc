#include "client/src/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/src/deadline.h"

namespace rails::internal {

absl::Status CheckGroupOptions(const GroupOptions& options) {
  if (options.name.empty()) return absl::InvalidArgumentError("name is empty");
  if (options.world_size == 0) return absl::InvalidArgumentError("world_size is 0");
  if (options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is outside world_size ", options.world_size));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout ", absl::FormatDuration(options.timeout), " is not positive"));
  }
  const bool waits = options.recovery == Recovery::kWait;
  if (waits ? options.wait_limit <= absl::ZeroDuration() : options.wait_limit != absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "wait_limit ", absl::FormatDuration(options.wait_limit),
        waits ? ": a group with recovery wait needs a positive one" : ": only a group with recovery wait has one"));
  }
  if (options.restart_limit < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("restart_limit ", absl::FormatDuration(options.restart_limit), " is negative"));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::JoinGroupResponse> JoinGroup(Session& session, const GroupOptions& options, uint64_t next_seq,
                                                absl::Duration timeout, const void* caller) {
  v1::JoinGroupRequest request;
  request.set_name(options.name);
  request.set_join_key(options.join_key);
  request.set_world_size(options.world_size);
  request.set_rank(options.rank);
  request.set_next_seq(next_seq);
  request.set_recovery(static_cast<v1::RecoveryPolicy>(options.recovery));
  request.set_wait_limit_milliseconds(WholeMilliseconds(std::min(options.wait_limit, absl::Hours(24))));
  // With an infinite timeout the daemon's own limit ends the call.
  const absl::Duration bounded = std::min(timeout, absl::Hours(24));
  if (timeout != absl::InfiniteDuration()) request.set_timeout_milliseconds(WholeMilliseconds(bounded));
  absl::StatusOr<v1::JoinGroupResponse> joined = session.Join(request, Deadline::After(bounded + kCallTimeout), caller);
  if (!joined.ok()) {
    if (absl::Status lost = session.Usable(); !lost.ok()) return lost;
    return joined.status();
  }
  if (static_cast<uint32_t>(joined->members_size()) != options.world_size) {
    return absl::InternalError(absl::StrCat("railsd names ", joined->members_size(), " members of group ", options.name,
                                            ", which has ", options.world_size, " ranks"));
  }
  return joined;
}

template <typename Request>
absl::Status HandOver(Session& session, const std::string& group, const Request& request, absl::Duration timeout,
                      bool* known) {
  absl::Status status = session.Submit(request, Deadline::After(timeout), known);
  if (*known) return status;
  if (absl::Status lost = session.Usable(); !lost.ok()) return lost;
  return absl::UnavailableError(absl::StrCat("whether railsd accepted job ", request.job().seq(), " of group ", group,
                                             " is not known after ", absl::FormatDuration(timeout), " (",
                                             status.message(), "): leave the group and join again"));
}

template absl::Status HandOver(Session&, const std::string&, const v1::SubmitAllToAllRequest&, absl::Duration, bool*);
template absl::Status HandOver(Session&, const std::string&, const v1::SubmitPreparedRequest&, absl::Duration, bool*);

}  // namespace rails::internal
