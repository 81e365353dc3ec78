// Messages of rails.v1 as JSON, in one form for all commands and pages.
#ifndef RAILS_COMMON_JSON_JSON_H_
#define RAILS_COMMON_JSON_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace rails {

// The message as JSON, with every field under its name in the proto, in the order of the proto, set or not. Protobuf's
// own mapping, with these exceptions, so that scripts need not convert values:
//   - a 64-bit number is a number; if its name ends in `_id`, it is a text of sixteen hexadecimal digits;
//   - an enum's value is its word in lower case, without the enum's name;
//   - an int32 named `code` is the name of the status code;
//   - a list of messages with a `name` and a `value` is an object;
//   - a message that is not set is null.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

// The text of any JSON. Bytes that are not UTF-8 become U+FFFD; names from the system or another machine may have them.
template <typename Json>
std::string DumpJson(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// True if objects and arrays are nested more deeply than in any message of rails.v1. A parser's time grows with the
// square of the depth, and its stack with the depth.
bool IsDeepJson(absl::string_view json);

}  // namespace rails

#endif  // RAILS_COMMON_JSON_JSON_H_
