#include "sim/scenario/document.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/scenario/keys.h"

namespace railsd::sim {
namespace {

constexpr size_t kMostValues = 10'000;

size_t LineOf(const YAML::Node& node) { return static_cast<size_t>(std::max(node.Mark().line, 0)) + 1; }

absl::Status Mistake(const std::string& path, size_t line, std::string_view key, std::string_view reason) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ":", line, ": ", std::string(key), key.empty() ? "" : ": ", std::string(reason)));
}

// All keys, and all sections.
std::vector<std::string_view> KnownNames() {
  std::vector<std::string_view> names;
  for (const Key& key : Keys()) {
    names.push_back(key.name);
    const size_t dot = key.name.find('.');
    if (dot == std::string_view::npos) continue;
    const std::string_view section = key.name.substr(0, dot);
    if (std::find(names.begin(), names.end(), section) == names.end()) names.push_back(section);
  }
  return names;
}

bool IsSection(std::string_view name) {
  return std::any_of(Keys().begin(), Keys().end(), [&](const Key& key) {
    return key.name.size() > name.size() && key.name.substr(0, name.size()) == name && key.name[name.size()] == '.';
  });
}

std::string UnknownKey(std::string_view name) {
  const std::vector<std::string_view> names = KnownNames();
  std::string reason = "is no key";
  std::optional<std::string_view> nearest = Nearest(name, names);
  // A key in the wrong section, or in none.
  const std::string_view last = name.substr(name.rfind('.') + 1);
  for (const Key& key : Keys()) {
    if (key.name.substr(key.name.rfind('.') + 1) == last) nearest = key.name;
  }
  if (nearest.has_value()) absl::StrAppend(&reason, "; did you mean ", std::string(*nearest), "?");
  return reason;
}

class Reader {
 public:
  explicit Reader(const std::string& path) { document_.path = path; }

  absl::StatusOr<Document> Read(const YAML::Node& root) {
    if (root.IsNull()) return Mistake(document_.path, 1, "", "is empty; it needs keys such as workload");
    if (!root.IsMap())
      return Mistake(document_.path, LineOf(root), "", "is no mapping of keys; a trace or a matrix is given as --file");
    if (absl::Status status = ReadMapping(root, ""); !status.ok()) return status;
    return std::move(document_);
  }

 private:
  absl::Status ReadMapping(const YAML::Node& mapping, const std::string& section) {
    for (const auto& entry : mapping) {
      const size_t line = LineOf(entry.first);
      if (!entry.first.IsScalar()) return Mistake(document_.path, line, section, "has a key that is no text");
      const std::string name = absl::StrCat(section, section.empty() ? "" : ".", entry.first.Scalar());
      if (!seen_.insert(name).second) return Mistake(document_.path, line, name, "is given twice");
      if (section.empty() && IsSection(name)) {
        if (absl::Status status = ReadSection(entry.second, name, line); !status.ok()) return status;
        continue;
      }
      if (FindKey(name) == nullptr) return Mistake(document_.path, line, name, UnknownKey(name));
      if (absl::Status status = ReadValues(entry.second, name, line); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status ReadSection(const YAML::Node& node, const std::string& name, size_t line) {
    if (node.IsMap()) return ReadMapping(node, name);
    if (node.IsNull()) return absl::OkStatus();
    // `workload: zipf` is short for `workload: {kind: zipf}`.
    if (name == "workload" && (node.IsScalar() || node.IsSequence())) return ReadValues(node, "workload.kind", line);
    return Mistake(document_.path, line, name,
                   "is a section of keys, not a value; write its keys below it, or {key: value} behind it");
  }

  absl::Status ReadValues(const YAML::Node& node, const std::string& name, size_t line) {
    Setting setting = {.key = name, .values = {}, .line = line};
    if (node.IsScalar()) {
      setting.values.push_back({node.Scalar(), LineOf(node)});
    } else if (node.IsSequence()) {
      for (const YAML::Node& element : node) {
        if (!element.IsScalar()) return Mistake(document_.path, LineOf(element), name, "has a value that is no text");
        if (setting.values.size() >= kMostValues) {
          return Mistake(document_.path, line, name, absl::StrCat("has more than ", kMostValues, " values"));
        }
        setting.values.push_back({element.Scalar(), LineOf(element)});
      }
      if (setting.values.empty()) return Mistake(document_.path, line, name, "is an empty list");
    } else {
      return Mistake(document_.path, line, name, node.IsNull() ? "has no value" : "is a key, not a section");
    }
    document_.settings.push_back(std::move(setting));
    return absl::OkStatus();
  }

  Document document_;
  std::set<std::string> seen_;
};

}  // namespace

const Setting* Document::Find(std::string_view key) const {
  const auto at =
      std::find_if(settings.begin(), settings.end(), [&](const Setting& setting) { return setting.key == key; });
  return at == settings.end() ? nullptr : &*at;
}

absl::StatusOr<Document> ParseDocument(const std::string& content, const std::string& path) {
  if (content.size() > kMostScenarioBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is longer than ", kMostScenarioBytes, " bytes"));
  }
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(content);
    if (documents.size() > 1) return Mistake(path, LineOf(documents[1]), "", "is a second document; one is allowed");
    return Reader(path).Read(documents.empty() ? YAML::Node() : documents[0]);
  } catch (const YAML::Exception& error) {
    const size_t line = error.mark.is_null() ? 1 : static_cast<size_t>(std::max(error.mark.line, 0)) + 1;
    return Mistake(path, line, "", absl::StrCat("is no YAML: ", error.msg));
  }
}

absl::StatusOr<Document> ReadDocument(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string content;
  if (file) {
    content.resize(kMostScenarioBytes + 1);
    file.read(content.data(), static_cast<std::streamsize>(content.size()));
    content.resize(static_cast<size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad() || (content.empty() && errno != 0)) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return ParseDocument(content, path);
}

void Override(const Setting& setting, Document* document) {
  for (Setting& existing : document->settings) {
    if (existing.key != setting.key) continue;
    existing = setting;
    return;
  }
  document->settings.push_back(setting);
}

void RemoveWritten(std::string_view key, Document* document) {
  std::erase_if(document->settings, [&](const Setting& setting) { return setting.key == key && setting.line != 0; });
}

absl::Status MistakeAt(const Document& document, const Setting& setting, const Value& value, std::string_view reason) {
  const Key* key = FindKey(setting.key);
  const std::string place = value.line == 0 ? std::string(key == nullptr ? setting.key : key->flag)
                                            : absl::StrCat(document.path, ":", value.line, ": ", setting.key);
  return absl::InvalidArgumentError(absl::StrCat(place, ": \"", value.text, "\" ", std::string(reason)));
}

}  // namespace railsd::sim
