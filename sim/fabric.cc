#include "sim/fabric.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace railsd::sim {
namespace {

absl::Status CheckSpeed(const std::string& name, double speed, bool may_be_infinite, bool may_be_zero) {
  const bool fits = speed >= 0 && (speed > 0 || may_be_zero) && (std::isfinite(speed) || may_be_infinite);
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", speed, " bytes/s; give ", may_be_zero ? "0 or " : "",
                                                 "a", may_be_infinite ? "" : " finite", " speed above 0"));
}

absl::Status CheckChange(const Fabric& fabric, size_t index) {
  const RailChange& change = fabric.changes[index];
  const std::string name = absl::StrCat("changes[", index, "]");
  if (change.at < absl::ZeroDuration() || change.at == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".at is ", absl::FormatDuration(change.at), "; give a time of 0 or more"));
  }
  if (change.rail >= fabric.rails()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".rail is ", change.rail, "; there are ", fabric.rails(), " rails"));
  }
  if (change.node.has_value() && *change.node >= fabric.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".node is ", *change.node, "; there are ", fabric.nodes, " nodes"));
  }
  return CheckSpeed(absl::StrCat(name, ".bytes_per_second"), change.bytes_per_second, false, true);
}

absl::Status CheckCounts(const Fabric& fabric) {
  constexpr size_t kMostNodes = 65'536, kMostPerNode = 1'024, kMostSpines = 65'536;
  if (fabric.nodes == 0 || fabric.nodes > kMostNodes) {
    return absl::InvalidArgumentError(absl::StrCat("nodes is ", fabric.nodes, "; give 1 to ", kMostNodes));
  }
  if (fabric.gpus_per_node == 0 || fabric.gpus_per_node > kMostPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpus_per_node is ", fabric.gpus_per_node, "; give 1 to ", kMostPerNode));
  }
  if (fabric.rails() == 0 || fabric.rails() > kMostPerNode) {
    return absl::InvalidArgumentError(
        absl::StrCat("rail_bytes_per_second has ", fabric.rails(), " rails; give 1 to ", kMostPerNode));
  }
  if (fabric.spines > kMostSpines) {
    return absl::InvalidArgumentError(absl::StrCat("spines is ", fabric.spines, "; give 0 to ", kMostSpines));
  }
  return absl::OkStatus();
}

}  // namespace

double Fabric::SpineLinkSpeed() const {
  if (spine_bytes_per_second > 0 || spines == 0) return spine_bytes_per_second;
  double fastest = *std::max_element(rail_bytes_per_second.begin(), rail_bytes_per_second.end());
  for (const RailChange& change : changes) fastest = std::max(fastest, change.bytes_per_second);
  return fastest * std::max(1.0, static_cast<double>(nodes) / static_cast<double>(spines));
}

absl::Status Validate(const Fabric& fabric) {
  if (absl::Status status = CheckCounts(fabric); !status.ok()) return status;
  for (size_t rail = 0; rail < fabric.rails(); ++rail) {
    const std::string name = absl::StrCat("rail_bytes_per_second[", rail, "]");
    if (absl::Status status = CheckSpeed(name, fabric.rail_bytes_per_second[rail], false, true); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = CheckSpeed("inner_bytes_per_second", fabric.inner_bytes_per_second, true, false);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckSpeed("spine_bytes_per_second", fabric.spine_bytes_per_second, false, true);
      !status.ok()) {
    return status;
  }
  if (fabric.propagation < absl::ZeroDuration() || fabric.propagation > absl::Seconds(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("propagation is ", absl::FormatDuration(fabric.propagation), "; give 0 to 1 s"));
  }
  for (size_t i = 0; i < fabric.changes.size(); ++i) {
    if (absl::Status status = CheckChange(fabric, i); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<RailChange> ChangesByTime(const Fabric& fabric) {
  std::vector<RailChange> changes = fabric.changes;
  std::stable_sort(changes.begin(), changes.end(),
                   [](const RailChange& a, const RailChange& b) { return a.at < b.at; });
  return changes;
}

std::vector<SpeedPeriod> SpeedPeriods(const Fabric& fabric) {
  SpeedPeriod start;
  for (size_t node = 0; node < fabric.nodes; ++node) {
    start.speeds.insert(start.speeds.end(), fabric.rail_bytes_per_second.begin(), fabric.rail_bytes_per_second.end());
  }
  std::vector<SpeedPeriod> periods = {start};
  for (const RailChange& change : ChangesByTime(fabric)) {
    const double at = absl::ToDoubleSeconds(change.at);
    if (at > periods.back().since) periods.push_back({at, periods.back().speeds});
    for (size_t node = 0; node < fabric.nodes; ++node) {
      if (change.node.value_or(node) != node) continue;
      periods.back().speeds[fabric.Nic(node, change.rail)] = change.bytes_per_second;
    }
  }
  return periods;
}

std::vector<double> NominalSpeeds(const std::vector<SpeedPeriod>& periods) {
  std::vector<double> nominal = periods.front().speeds;
  for (const SpeedPeriod& period : periods) {
    for (size_t nic = 0; nic < nominal.size(); ++nic) {
      if (nominal[nic] <= 0) nominal[nic] = period.speeds[nic];
    }
  }
  return nominal;
}

}  // namespace railsd::sim
