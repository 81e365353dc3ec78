// Names of values of rails.v1, for people and in JSON.
#ifndef RAILS_COMMON_JSON_NAMES_H_
#define RAILS_COMMON_JSON_NAMES_H_

#include <cstdint>
#include <string>

#include "rails/v1/job.pb.h"
#include "rails/v1/operator.pb.h"

namespace rails {

// A value's word in lower case, without the enum's name: "drained_by_peer" for RAIL_STATE_DRAINED_BY_PEER.
std::string EnumWord(const google::protobuf::EnumDescriptor& type, int value);
inline std::string JobStateName(v1::JobState state) { return EnumWord(*v1::JobState_descriptor(), state); }
inline std::string RailStateName(v1::RailState state) { return EnumWord(*v1::RailState_descriptor(), state); }
// "UNAVAILABLE" for 14.
std::string CodeName(int code);
// The group's reaction to the loss of a node: "fail", "wait 30s", "degrade".
std::string RecoveryText(const v1::GroupStatus& group);
// Sixteen hexadecimal digits.
std::string FormatId(uint64_t id);

}  // namespace rails

#endif  // RAILS_COMMON_JSON_NAMES_H_
