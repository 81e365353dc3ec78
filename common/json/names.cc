#include "common/json/names.h"

#include <google/protobuf/descriptor.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace rails {

std::string EnumWord(const google::protobuf::EnumDescriptor& type, int value) {
  const google::protobuf::EnumValueDescriptor* const found = type.FindValueByNumber(value);
  if (found == nullptr) return absl::StrCat("unknown ", value);
  // Each value begins with the enum's name: RAIL_STATE_UP of RailState.
  size_t words = 0;
  for (const char letter : type.name()) words += absl::ascii_isupper(static_cast<unsigned char>(letter)) ? 1 : 0;
  return absl::AsciiStrToLower(found->name().substr(type.name().size() + words));
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
