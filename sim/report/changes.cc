#include "sim/report/changes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/railsctl/format.h"

namespace railsd::sim {
namespace {

constexpr size_t kMostNamed = 4;

std::string RailName(const RailChange& change) {
  return absl::StrCat("rail ", change.rail, change.node.has_value() ? absl::StrCat(" of node ", *change.node) : "");
}

std::string WithoutTime(const RailChange& change) {
  if (change.bytes_per_second <= 0) return absl::StrCat(RailName(change), " is dead");
  return absl::StrCat(RailName(change), " runs at ", rails::ctl::FormatBitRate(change.bytes_per_second));
}

std::string WithTime(const RailChange& change) {
  const double seconds = absl::ToDoubleSeconds(change.at);
  return absl::StrCat(WithoutTime(change), " from ",
                      seconds > 0 ? rails::ctl::FormatSeconds(seconds) + " on" : "the start");
}

// True if a later change gives the same NICs a speed again. A change of one node does not revive a rail that has died
// on all nodes.
bool IsRevived(const std::vector<RailChange>& changes, size_t index) {
  const RailChange& death = changes[index];
  return std::any_of(changes.begin() + static_cast<std::ptrdiff_t>(index) + 1, changes.end(),
                     [&](const RailChange& later) {
                       return later.rail == death.rail && later.bytes_per_second > 0 &&
                              (!later.node.has_value() || later.node == death.node);
                     });
}

}  // namespace

std::string ChangeFacts(const PointResult& point) {
  if (point.changes.empty()) return "";
  std::string facts = point.exchanges > 1 ? "Changes in each exchange: " : "Changes: ";
  const size_t named = std::min(point.changes.size(), kMostNamed);
  for (size_t i = 0; i < named; ++i) absl::StrAppend(&facts, i == 0 ? "" : "; ", WithTime(point.changes[i]));
  if (named < point.changes.size()) absl::StrAppend(&facts, "; ", point.changes.size() - named, " more");
  return facts;
}

std::string CommonChanges(const Report& report) {
  if (report.points.empty()) return "";
  const PointResult& first = report.points.front();
  const bool same = std::all_of(report.points.begin(), report.points.end(), [&](const PointResult& point) {
    return point.changes == first.changes && (point.exchanges > 1) == (first.exchanges > 1);
  });
  return same ? ChangeFacts(first) : "";
}

std::string BecauseRailsDie(const PointResult& point) {
  std::vector<std::string> names;
  for (size_t i = 0; i < point.changes.size(); ++i) {
    const RailChange& change = point.changes[i];
    if (change.bytes_per_second > 0 || change.at <= absl::ZeroDuration() || IsRevived(point.changes, i)) continue;
    const std::string name = RailName(change);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "";
  return absl::StrCat(", because ", JoinNames(names), names.size() == 1 ? " dies" : " die");
}

std::string LateChange(const PointResult& point) {
  double last = 0;  // at least as long as any exchange
  for (const PolicyResult& policy : point.policies) {
    if (policy.error.empty()) last = std::max(last, policy.network_seconds);
  }
  for (const RailChange& change : point.changes) {
    if (absl::ToDoubleSeconds(change.at) <= last) continue;
    return absl::StrCat("R", RailName(change).substr(1), " changes after every exchange has ended.");
  }
  return "";
}

std::vector<ChangeMark> ChangeMarks(const PointResult& point) {
  std::vector<ChangeMark> marks;
  size_t together = 0;  // changes at the time of the last mark
  for (const RailChange& change : point.changes) {
    const double seconds = absl::ToDoubleSeconds(change.at);
    if (seconds <= 0) continue;
    if (!marks.empty() && marks.back().seconds == seconds) {
      marks.back().label = absl::StrCat(++together, " changes");
      continue;
    }
    together = 1;
    marks.push_back({seconds, WithoutTime(change)});
  }
  return marks;
}

}  // namespace railsd::sim
