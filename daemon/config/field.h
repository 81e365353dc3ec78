// One key of the configuration, or one element of a list. Private to daemon/config.
#ifndef RAILSD_DAEMON_CONFIG_FIELD_H_
#define RAILSD_DAEMON_CONFIG_FIELD_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/config/units.h"

namespace railsd {

struct FieldOptions {
  bool live = false;             // a running daemon takes over a change
  bool required = false;         // the mapping must have the key
  bool omit = false;             // not printed
  bool id = false;               // names an element of a list
  bool flow = false;             // a mapping or list that is printed on one line
  bool quoted = false;           // printed in quotes, so that a name like "no" or "0660" stays a text
  bool lenient = false;          // a node that is not one value counts as an empty text
  const char* unique = nullptr;  // the mistake if two fields with this `unique` have the same text; null: they may
};

// Returns why a text is not a valid value; empty: it is valid.
using Mistake = std::function<std::string(const std::string& text)>;
// Values by key.
using Texts = std::map<std::string, std::string>;
// Mistakes, each after its key in a mapping; an empty key: the whole mapping.
using Mistakes = std::vector<std::pair<std::string, std::string>>;
// Called after a mapping or list has been read, for checks across keys. `given`: the keys of the mapping that the file
// has, with their texts.
using Check = std::function<Mistakes(const Texts& given)>;

struct Field {
  enum class Kind : uint8_t { kValue, kMapping, kList };

  std::string name;  // of the key; for an element of a list: the value of its `id`
  Kind kind = Kind::kValue;
  FieldOptions options = {};
  // A value:
  std::string text = {};  // as printed
  // Gives the member this value, or returns why it is not valid. A list has it if a word may stand in its place.
  Mistake set = {};
  // Keys of a mapping in the order of printing; elements of a list.
  std::vector<Field> fields = {};
  // A list: adds an element.
  std::function<Field()> add = {};
  size_t max_items = 0;
  Check check = {};  // of a mapping or list
};

// Every key of the configuration, bound to the members of `config`.
std::vector<Field> ConfigFields(Config& config);

// The kinds of keys. Whole numbers, sizes and times are from `min` to `max`.
template <class T, class V>
Field Within(const char* name, T& member, V min, V max, absl::StatusOr<V> (*parse)(absl::string_view),
             std::string (*print)(V), FieldOptions options) {
  const auto set = [=, &member](const std::string& text) -> std::string {
    const absl::StatusOr<V> value = parse(text);
    if (!value.ok()) return std::string(value.status().message());
    if (*value < min || *value > max) return absl::StrCat("outside ", print(min), " to ", print(max));
    member = static_cast<T>(*value);
    return "";
  };
  return {.name = name, .options = options, .text = print(member), .set = set};
}
template <class T>
Field Number(const char* name, T& member, uint64_t min, uint64_t max, FieldOptions options = {}) {
  return Within(name, member, min, max, ParseNumber, FormatNumber, options);
}
template <class T>
Field Bytes(const char* name, T& member, uint64_t min, uint64_t max, FieldOptions options = {}) {
  return Within(name, member, min, max, ParseBytes, FormatBytes, options);
}
inline Field Time(const char* name, absl::Duration& member, absl::Duration min, absl::Duration max,
                  FieldOptions options = {}) {
  return Within(name, member, min, max, ParseTime, absl::FormatDuration, options);
}
Field FileMode(const char* name, uint32_t& member);

Mistake Printable(size_t max_length, bool may_be_empty = true);  // ASCII
Mistake AbsolutePath(size_t max_length, bool may_be_empty);
// `hint`: text of the mistake; null: a list of the names that are not empty.
Mistake OneOf(const std::vector<std::string>& names, const char* hint = nullptr);
Mistake Name(size_t max_length);
std::string TenantNameMistake(const std::string& text);
std::string DeviceMistake(const std::string& text);
Mistake HostAndPort(bool may_be_empty);
std::string IpAddressMistake(const std::string& text);  // with or without a port
std::string ListenMistake(const std::string& text);     // "host:port", or a network or interface and a port, or empty
std::string MetricsListenMistake(const std::string& text);  // the same, without IPv6
std::string PortRuleMistake(const std::string& text);

Field Text(const char* name, std::string& member, const Mistake& mistake, FieldOptions options = {});
Field TextList(const char* name, std::vector<std::string>& members, size_t max_items, const Mistake& mistake);

// One of `names`, in the order of the enum's values.
template <class Enum>
Field Choice(const char* name, Enum& member, const std::vector<std::string>& names, FieldOptions options = {},
             const char* hint = nullptr) {
  const auto set = [=, &member](const std::string& text) {
    const auto name = std::find(names.begin(), names.end(), text);
    if (name != names.end()) member = static_cast<Enum>(name - names.begin());
    return OneOf(names, hint)(text);
  };
  options.lenient = true;
  return {.name = name, .options = options, .text = names[static_cast<size_t>(member)], .set = set};
}

inline Field Section(const std::string& name, const std::vector<Field>& fields, FieldOptions options = {},
                     const Check& check = {}) {
  return {.name = name, .kind = Field::Kind::kMapping, .options = options, .fields = fields, .check = check};
}
// `element(member)` gives the field of one element.
template <class T, class Element>
Field List(const char* name, std::vector<T>& members, size_t max_items, Element element, FieldOptions options = {}) {
  Field out{.name = name, .kind = Field::Kind::kList, .options = options, .max_items = max_items};
  for (T& member : members) out.fields.push_back(element(member));
  out.add = [&members, element] { return element(members.emplace_back()); };
  return out;
}

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_FIELD_H_
