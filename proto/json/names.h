// Names of values of rails.v1, for people and in JSON.
#ifndef RAILS_PROTO_JSON_NAMES_H_
#define RAILS_PROTO_JSON_NAMES_H_

#include <cstdint>
#include <string>

#include "rails/v1/job.pb.h"
#include "rails/v1/operator.pb.h"

namespace rails {

// "queued", "matching", "running", "done", "failed".
std::string JobStateName(v1::JobState state);
// "up", "suspect", "down", "probing", "drained_by_peer".
std::string RailStateName(v1::RailState state);
// "UNAVAILABLE" for 14.
std::string CodeName(int code);
// The group's reaction to the loss of a node: "fail", "wait 30s", "degrade".
std::string RecoveryText(const v1::GroupStatus& group);
// Sixteen hexadecimal digits.
std::string FormatId(uint64_t id);

}  // namespace rails

#endif  // RAILS_PROTO_JSON_NAMES_H_
