#include "sim/scenario/points.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sim/scenario/keys.h"
#include "sim/simulate.h"

namespace railsd::sim {
namespace {

// The error for a mistake of a value. If the mistake begins with a part of the value, such as "'fast' is no rate", the
// error quotes only this part.
absl::Status MistakeIn(const Document& document, const Setting& setting, const Value& value,
                       const std::string& mistake) {
  const size_t end = mistake.find("' ");
  if (mistake[0] != '\'' || end == std::string::npos) return MistakeAt(document, setting, value, mistake);
  return MistakeAt(document, setting, {mistake.substr(1, end - 1), value.line}, mistake.substr(end + 2));
}

// Checks every value by itself.
absl::Status CheckValues(const Document& document) {
  for (const Setting& setting : document.settings) {
    const Key& key = *FindKey(setting.key);
    std::set<std::string> seen;
    for (const Value& value : setting.values) {
      if (!seen.insert(value.text).second)
        return MistakeAt(document, setting, value,
                         "is in the list twice; a list is a sweep, and speeds of rails are one text with commas");
      if (key.set == nullptr) continue;
      Scenario scratch;
      if (const std::string mistake = key.set(value.text, &scratch); !mistake.empty()) {
        return MistakeIn(document, setting, value, mistake);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PoliciesOf(const Document& document) {
  const std::vector<std::string_view> known = PolicyNames();
  std::vector<std::string> policies(known.begin(), known.end());
  const Setting* setting = document.Find("policy");
  if (setting == nullptr || (setting->values.size() == 1 && setting->values[0].text == "all")) return policies;
  const std::string list = absl::StrJoin(policies, ", ");
  policies.clear();
  for (const Value& value : setting->values) {
    if (value.text == "all")
      return MistakeAt(document, *setting, value, "must stand alone, because it means every policy");
    if (std::find(known.begin(), known.end(), value.text) == known.end()) {
      if (value.text == "lpt") return MistakeAt(document, *setting, value, "is called planner here");
      const std::optional<std::string_view> nearest = Nearest(value.text, known);
      return MistakeAt(document, *setting, value,
                       nearest.has_value() ? absl::StrCat("is no policy; did you mean ", std::string(*nearest), "?")
                                           : absl::StrCat("is none of ", list));
    }
    policies.push_back(value.text);
  }
  return policies;
}

absl::Status TooMany(const Document& document, const std::vector<const Setting*>& swept, double count) {
  const std::string factors = absl::StrJoin(swept, " x ", [](std::string* out, const Setting* setting) {
    absl::StrAppend(out, setting->values.size(), " of ", setting->key);
  });
  const Setting& longest = **std::max_element(swept.begin(), swept.end(), [](const Setting* a, const Setting* b) {
    return a->values.size() < b->values.size();
  });
  return absl::InvalidArgumentError(
      absl::StrCat(longest.line == 0 ? std::string(FindKey(longest.key)->flag)
                                     : absl::StrCat(document.path, ":", longest.line, ": ", longest.key),
                   ": the sweep has ", count, " points (", factors, "); ", kMostPoints, " are allowed"));
}

// Refuses a key that has no effect at any point, because it is probably a mistake.
absl::Status CheckUses(const Document& document, const Points& points) {
  const bool crossed = std::any_of(Policies().begin(), Policies().end(), [&](const PolicyInfo& policy) {
    return policy.crosses_rails &&
           std::find(points.policies.begin(), points.policies.end(), policy.name) != points.policies.end();
  });
  for (const Setting& setting : document.settings) {
    if (!crossed && absl::StartsWith(setting.key, "fabric.spine")) {
      return MistakeAt(document, setting, setting.values[0], "changes nothing: no policy of these crosses spines");
    }
    const KeyUse use = FindKey(setting.key)->use;
    const bool used = std::any_of(points.points.begin(), points.points.end(),
                                  [&](const Point& point) { return Applies(use, point.scenario); });
    if (!used)
      return MistakeAt(document, setting, setting.values[0],
                       absl::StrCat("changes nothing: ", std::string(DescribeUse(use))));
  }
  return absl::OkStatus();
}

// A point, and the value of each setting at this point, in the order of the document's settings.
struct Combination {
  Point point;
  std::vector<const Value*> values;
};

bool IsSwept(const Setting& setting) { return setting.key != "policy" && setting.values.size() > 1; }

// A file's name in a scenario is relative to the scenario's folder.
std::string ResolvedFile(const Document& document, const Value& value) {
  const std::filesystem::path path = value.text;
  if (value.line == 0 || path.is_absolute()) return value.text;
  return (std::filesystem::path(document.path).parent_path() / path).string();
}

Combination CombinationAt(const Document& document, size_t index, size_t count) {
  Combination combination;
  Scenario& scenario = combination.point.scenario;
  // If only a file is given, the workload is `file`.
  if (document.Find("workload.file") != nullptr && document.Find("workload.kind") == nullptr) {
    scenario.workload = kFileWorkload;
  }
  for (const Setting& setting : document.settings) {
    const Value* value = &setting.values[0];
    if (IsSwept(setting)) {
      count /= setting.values.size();
      value = &setting.values[index / count];
      index %= count;
      combination.point.values.push_back(value->text);
    }
    combination.values.push_back(value);
    const Key& key = *FindKey(setting.key);
    if (key.set != nullptr) key.set(value->text, &scenario);
    if (setting.key == "workload.file") scenario.file = ResolvedFile(document, *value);
  }
  return combination;
}

absl::Status CheckTogether(const Document& document, const Combination& combination) {
  const std::optional<Contradiction> found = FindContradiction(combination.point.scenario);
  if (!found.has_value()) return absl::OkStatus();
  for (const std::string& name : found->keys) {
    for (size_t i = 0; i < document.settings.size(); ++i) {
      const Setting& setting = document.settings[i];
      if (setting.key == name)
        return MistakeAt(document, setting, *combination.values[i], absl::StrCat("does not fit: ", found->reason));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(document.path, document.path.empty() ? "" : ": ", found->keys[0], ": ", found->reason));
}

}  // namespace

absl::StatusOr<Points> MakePoints(const Document& document) {
  if (absl::Status status = CheckValues(document); !status.ok()) return status;
  Points points;
  absl::StatusOr<std::vector<std::string>> policies = PoliciesOf(document);
  if (!policies.ok()) return policies.status();
  points.policies = *std::move(policies);
  std::vector<const Setting*> swept;
  double count = 1;
  for (const Setting& setting : document.settings) {
    if (!IsSwept(setting)) continue;
    swept.push_back(&setting);
    points.swept.push_back(setting.key);
    count *= static_cast<double>(setting.values.size());
  }
  if (count > static_cast<double>(kMostPoints)) return TooMany(document, swept, count);
  for (size_t index = 0; index < static_cast<size_t>(count); ++index) {
    Combination combination = CombinationAt(document, index, static_cast<size_t>(count));
    if (absl::Status status = CheckTogether(document, combination); !status.ok()) return status;
    points.points.push_back(std::move(combination.point));
  }
  if (absl::Status status = CheckUses(document, points); !status.ok()) return status;
  return points;
}

std::string DescribePoint(const Points& points, const Point& point) {
  std::string text;
  for (size_t i = 0; i < points.swept.size(); ++i) {
    const std::string& key = points.swept[i];
    absl::StrAppend(&text, text.empty() ? "" : ", ", key.substr(key.rfind('.') + 1), " ", point.values[i]);
  }
  return text;
}

}  // namespace railsd::sim
