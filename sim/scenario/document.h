// A scenario as written: keys with the texts of their values, and where they stand.
#ifndef RAILSD_SIM_SCENARIO_DOCUMENT_H_
#define RAILSD_SIM_SCENARIO_DOCUMENT_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace railsd::sim {

inline constexpr size_t kMostScenarioBytes = 1 << 20;

struct Value {
  std::string text;
  size_t line = 0;  // from 1; 0: the command line
};

// One key and its values; more than one makes a sweep.
struct Setting {
  std::string key;  // of the table, such as "fabric.nodes"
  std::vector<Value> values;
  size_t line = 0;  // as of Value
};

struct Document {
  std::string path;  // empty: flags only
  std::vector<Setting> settings;
  const Setting* Find(std::string_view key) const;
};

// Reads YAML: sections of keys, each with a value or a list of values. Errors: of the file system, or INVALID_ARGUMENT
// with file, line, key, value and reason; an unknown key comes with the nearest known one.
absl::StatusOr<Document> ReadDocument(const std::string& path);
absl::StatusOr<Document> ParseDocument(const std::string& content, const std::string& path);

// Replaces the setting of this key, or adds it.
void Override(const Setting& setting, Document* document);
// Removes the setting of this key if it stands in the file.
void RemoveWritten(std::string_view key, Document* document);

// "a.yaml:12: fabric.nodes: \"0\" is not between 1 and 4096", or with the flag in place of line and key.
absl::Status MistakeAt(const Document& document, const Setting& setting, const Value& value, std::string_view reason);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SCENARIO_DOCUMENT_H_
