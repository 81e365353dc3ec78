#include "proto/json/names.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace rails {

std::string JobStateName(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_QUEUED:
      return "queued";
    case v1::JOB_STATE_MATCHING:
      return "matching";
    case v1::JOB_STATE_RUNNING:
      return "running";
    case v1::JOB_STATE_DONE:
      return "done";
    case v1::JOB_STATE_FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

std::string RailStateName(v1::RailState state) {
  switch (state) {
    case v1::RAIL_STATE_UP:
      return "up";
    case v1::RAIL_STATE_SUSPECT:
      return "suspect";
    case v1::RAIL_STATE_DOWN:
      return "down";
    case v1::RAIL_STATE_PROBING:
      return "probing";
    case v1::RAIL_STATE_DRAINED_BY_PEER:
      return "drained_by_peer";
    default:
      return "unknown";
  }
}

std::string CodeName(int code) {
  const std::string name = absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
  return name.empty() ? absl::StrCat("code ", code) : name;
}

std::string RecoveryText(const v1::GroupStatus& group) {
  if (group.recovery() == v1::RECOVERY_POLICY_DEGRADE) return "degrade";
  if (group.recovery() != v1::RECOVERY_POLICY_WAIT) return "fail";
  return absl::StrCat("wait ", absl::FormatDuration(absl::Milliseconds(group.wait_limit_milliseconds())));
}

std::string FormatId(uint64_t id) { return absl::StrFormat("%016x", id); }

}  // namespace rails
