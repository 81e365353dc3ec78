// Messages of rails.v1 as JSON, the same wherever the project prints or serves them.
#ifndef RAILS_COMMON_JSON_JSON_H_
#define RAILS_COMMON_JSON_JSON_H_

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace rails {

// Every field by its name in the proto, in the order of the proto, whether it is set or not. It is the mapping of
// protobuf, but for what scripts would have to convert:
//   - numbers of 64 bits are numbers, and those whose name ends in `_id` sixteen hexadecimal digits;
//   - an enum's value is its word in lower case, without the enum's name;
//   - an int32 named `code` is the name of the status code;
//   - a list of messages with a `name` and a `value` is an object;
//   - a message that is not set is null.
nlohmann::ordered_json MessageJson(const google::protobuf::Message& message);

// The text of any JSON. Bytes that are no UTF-8, as in names that the system or another machine gives, become U+FFFD.
template <typename Json>
std::string DumpJson(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Are objects and arrays nested more deeply than in any message of rails.v1? A parser's time grows with the square of
// the depth, and its stack with the depth.
bool IsDeepJson(absl::string_view json);

}  // namespace rails

#endif  // RAILS_COMMON_JSON_JSON_H_
