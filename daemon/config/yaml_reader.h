// A place in a YAML document that reads itself into typed values and remembers every mistake.
//
// Private to daemon/config: nothing else sees yaml-cpp. Its exceptions must be caught by the caller of Read functions.
#ifndef RAILSD_DAEMON_CONFIG_YAML_READER_H_
#define RAILSD_DAEMON_CONFIG_YAML_READER_H_

#include <yaml-cpp/yaml.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace railsd {

// Mistakes in the order in which they were found. Reporting stops, not reading, after `kMaxReported`.
class ConfigErrors {
 public:
  explicit ConfigErrors(absl::string_view file) : file_(file) {}
  // `line` counts from 1; 0 for the file as a whole. Empty `key` or `value` are left out.
  void Add(int line, absl::string_view key, absl::string_view value, absl::string_view reason);
  bool empty() const { return count_ == 0; }
  // INVALID_ARGUMENT with one mistake a line.
  absl::Status ToStatus() const;

 private:
  static constexpr size_t kMaxReported = 100;
  const std::string file_;
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

class YamlReader {
 public:
  YamlReader(YAML::Node node, std::string key, ConfigErrors* errors)
      : node_(std::move(node)), key_(std::move(key)), errors_(errors) {}

  const std::string& key() const { return key_; }
  int line() const { return node_.Mark().line + 1; }
  // The text of a scalar; empty for anything else.
  std::string text() const { return node_.IsScalar() ? node_.Scalar() : std::string(); }
  // Reports this place.
  void Fail(absl::string_view reason) const { errors_->Add(line(), key_, text(), reason); }

  // Reports that `name` is missing from the mapping at this place; `hint` follows.
  void Missing(absl::string_view name, absl::string_view hint) const;

  using Field = std::function<void(const YamlReader&)>;
  // Calls the handler of each key present. Unknown keys and keys given twice are mistakes; `required` ones too when
  // they are missing. An empty value counts as an empty mapping.
  void Map(const std::map<absl::string_view, Field>& fields, std::vector<absl::string_view> required = {}) const;
  // Calls `item` for each element.
  void List(size_t max_items, const Field& item) const;

  // Each leaves `out` alone and reports when the text is no such value.
  void String(std::string* out, size_t max_length = 4096) const;
  void Name(std::string* out, size_t max_length) const;
  template <typename Int>
  void Number(Int* out, uint64_t min, uint64_t max) const {
    uint64_t value = 0;
    if (ReadNumber(min, max, &value)) *out = static_cast<Int>(value);
  }
  void Bytes(uint64_t* out, uint64_t min, uint64_t max) const;
  void Rate(uint64_t* out) const;
  void Time(absl::Duration* out, absl::Duration min, absl::Duration max) const;
  void Mode(uint32_t* out) const;  // "0660"
  // host:port; reports what is neither. `numeric` wants an IP address.
  void Address(std::string* out, bool port_optional, bool numeric, bool allow_empty) const;

 private:
  bool ReadNumber(uint64_t min, uint64_t max, uint64_t* out) const;
  bool WantScalar() const;

  YAML::Node node_;
  std::string key_;
  ConfigErrors* errors_;
};

// Parses one document under limits on nesting, without anchors, aliases or tags; reports what it refuses and returns
// a null node then. Throws only what yaml-cpp throws.
YAML::Node ParseYaml(const std::string& text, ConfigErrors* errors);

}  // namespace railsd

#endif  // RAILSD_DAEMON_CONFIG_YAML_READER_H_
