#include "sim/report/results.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/format.h"

namespace railsd::sim {
namespace {

std::string DescribeRails(const std::vector<double>& speeds) {
  const std::string rails = rails::ctl::FormatCount(speeds.size(), "rail");
  if (speeds.empty()) return rails;
  const auto [least, most] = std::minmax_element(speeds.begin(), speeds.end());
  if (*least == *most) return absl::StrCat(rails, " of ", rails::ctl::FormatBitRate(*most));
  return absl::StrCat(rails, " of ", *least > 0 ? rails::ctl::FormatBitRate(*least) : "0", " to ",
                      rails::ctl::FormatBitRate(*most));
}

// "8 rails of 400 Gbit/s", or the part of it that all points have in common.
std::string CommonRails(const Report& report) {
  const std::vector<double>& first = report.points.front().rail_speeds;
  const auto all = [&](const auto& holds) {
    return std::all_of(report.points.begin(), report.points.end(),
                       [&](const PointResult& point) { return holds(point.rail_speeds); });
  };
  if (all([&](const std::vector<double>& speeds) { return speeds == first; })) return DescribeRails(first);
  if (all([&](const std::vector<double>& speeds) { return speeds.size() == first.size(); })) {
    return rails::ctl::FormatCount(first.size(), "rail");
  }
  const auto is_first = [&](double speed) { return speed == first.front(); };
  if (!first.empty() &&
      all([&](const std::vector<double>& speeds) { return std::all_of(speeds.begin(), speeds.end(), is_first); })) {
    return absl::StrCat("rails of ", rails::ctl::FormatBitRate(first.front()));
  }
  return "";
}

}  // namespace

bool PointResult::IsBest(size_t index) const {
  const auto competes = [](const PolicyResult& policy) {
    return policy.policy != kFloorPolicy && policy.error.empty() && policy.Ends();
  };
  if (!competes(policies[index])) return false;
  return std::all_of(policies.begin(), policies.end(), [&](const PolicyResult& policy) {
    return !competes(policy) || policies[index].seconds() <= policy.seconds() * (1 + kTie);
  });
}

std::optional<size_t> PointResult::Best() const {
  for (size_t i = 0; i < policies.size(); ++i) {
    if (IsBest(i)) return i;
  }
  return std::nullopt;
}

std::string PointResult::BestNames() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < policies.size(); ++i) {
    if (IsBest(i)) names.push_back(policies[i].policy);
  }
  return JoinNames(names);
}

std::string PointResult::BestTime() const {
  const std::optional<size_t> best = Best();
  return best.has_value() ? rails::ctl::FormatSeconds(policies[*best].PointSeconds()) : "-";
}

std::string_view TimeName(const Report& report) {
  const bool iterates = std::any_of(report.points.begin(), report.points.end(), [](const PointResult& point) {
    return std::any_of(point.policies.begin(), point.policies.end(),
                       [](const PolicyResult& policy) { return policy.iteration.has_value(); });
  });
  return iterates ? "iteration time" : "completion time";
}

double PointResult::BoundSeconds() const {
  const auto ran =
      std::find_if(policies.begin(), policies.end(), [](const PolicyResult& policy) { return policy.error.empty(); });
  return ran == policies.end() ? 0 : ran->bound_seconds;
}

std::string KeyLabel(const std::string& key) {
  if (key == "workload.kind") return "workload";
  std::string name = key.substr(key.rfind('.') + 1);
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string PointLabel(const Report& report, const PointResult& point) {
  if (report.swept.empty()) return point.workload;
  std::string label;
  for (size_t i = 0; i < report.swept.size(); ++i) {
    const std::string& key = report.swept[i];
    absl::StrAppend(&label, label.empty() ? "" : ", ", key == "workload.kind" ? "" : absl::StrCat(KeyLabel(key), " "),
                    ValueLabel(point.values[i]));
  }
  return label;
}

std::string ValueLabel(const std::string& value) { return value.empty() ? "none" : value; }

std::string PointFacts(const PointResult& point) {
  std::string facts = absl::StrCat(point.workload, ": ", rails::ctl::FormatCount(point.nodes, "node"), " x ",
                                   rails::ctl::FormatCount(point.gpus, "GPU"), ", ", DescribeRails(point.rail_speeds));
  absl::StrAppend(&facts, "; ", rails::ctl::FormatCount(point.exchanges, "exchange"), ", ",
                  rails::ctl::FormatBytes(point.bytes_between_nodes), " between nodes");
  if (point.BoundSeconds() > 0) {
    absl::StrAppend(&facts, ", bound ", rails::ctl::FormatSeconds(point.BoundSeconds()));
  }
  if (point.scale != 1) absl::StrAppendFormat(&facts, "; volumes are scaled by %.6g", point.scale);
  if (point.packets) absl::StrAppend(&facts, "; packet by packet");
  return facts;
}

std::string CommonFacts(const Report& report) {
  if (report.points.empty()) return "";
  const PointResult& first = report.points.front();
  const auto same = [&](auto PointResult::*member) {
    return std::all_of(report.points.begin(), report.points.end(),
                       [&](const PointResult& point) { return point.*member == first.*member; });
  };
  std::vector<std::string> facts;
  const bool gpus = same(&PointResult::gpus);
  const std::string gpus_text = rails::ctl::FormatCount(first.gpus, "GPU");
  if (same(&PointResult::workload)) facts.push_back(first.workload);
  if (same(&PointResult::nodes)) {
    facts.push_back(absl::StrCat(rails::ctl::FormatCount(first.nodes, "node"), gpus ? " x " + gpus_text : ""));
  } else if (gpus) {
    facts.push_back(gpus_text + " a node");
  }
  if (const std::string rails = CommonRails(report); !rails.empty()) facts.push_back(rails);
  if (same(&PointResult::exchanges)) facts.push_back(rails::ctl::FormatCount(first.exchanges, "exchange"));
  if (same(&PointResult::bytes_between_nodes)) {
    facts.push_back(rails::ctl::FormatBytes(first.bytes_between_nodes) + " between nodes");
  }
  if (first.scale != 1 && same(&PointResult::scale)) {
    facts.push_back(absl::StrFormat("volumes scaled by %.6g", first.scale));
  }
  if (first.packets && same(&PointResult::packets)) facts.emplace_back("packet by packet");
  return absl::StrJoin(facts, ", ");
}

std::string JoinNames(const std::vector<std::string>& names) {
  constexpr size_t kMost = 4;
  if (names.size() < 2) return names.empty() ? "" : names[0];
  const size_t told = names.size() > kMost ? kMost - 1 : names.size() - 1;
  const std::string last = told + 1 == names.size() ? names.back() : absl::StrCat(names.size() - told, " more");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(told), ", "), " and ",
                      last);
}

}  // namespace railsd::sim
