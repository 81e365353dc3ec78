#include "sim/report/text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/railsctl/format.h"
#include "client/railsctl/table.h"
#include "sim/report/changes.h"

namespace railsd::sim {
namespace {

using rails::ctl::Cell;
using rails::ctl::FormatByteRate;
using rails::ctl::FormatBytes;
using rails::ctl::FormatRatio;
using rails::ctl::FormatSeconds;
using rails::ctl::Mark;
using rails::ctl::Table;
using Align = Table::Align;

constexpr size_t kMostTables = 12;  // more points share one table

Mark MarkOf(double ratio, bool best) {
  if (best) return Mark::kGood;
  return ratio <= 1.1 ? Mark::kNone : Mark::kWarn;
}

std::string Percent(double share) { return absl::StrFormat("%.1f %%", share * 100); }

std::string Line(const std::string& text) { return text.empty() ? "" : absl::StrCat(text, "\n"); }

std::string Time(double seconds) { return std::isfinite(seconds) ? FormatSeconds(seconds) : "never"; }

// "-" if no bytes move between nodes, so that there is no bound. With a few bytes, the ratio shows fixed cost alone.
Cell RatioCell(const PolicyResult& policy, bool best, const char* mark = "") {
  if (!policy.error.empty() || policy.bound_seconds <= 0) return {"-"};
  const double ratio = policy.OverBound();
  return {absl::StrCat(mark, ratio < 1000 || !std::isfinite(ratio) ? FormatRatio(ratio) : "> 1000"),
          MarkOf(ratio, best)};
}

std::vector<Cell> RowOf(const PointResult& point, size_t index) {
  const PolicyResult& policy = point.policies[index];
  const bool best = point.IsBest(index);
  if (!policy.error.empty()) return {absl::StrCat("  ", policy.policy), {"cannot run", Mark::kBad}};
  std::vector<Cell> row = {{absl::StrCat(best ? "* " : "  ", policy.policy), best ? Mark::kGood : Mark::kNone},
                           {Time(policy.seconds()), policy.Ends() ? Mark::kNone : Mark::kBad},
                           RatioCell(policy, best),
                           {policy.Ends() ? FormatByteRate(policy.bus_bytes_per_second) : "-"},
                           {FormatRatio(policy.send_imbalance)},
                           {FormatRatio(policy.receive_imbalance)}};
  if (point.packets) {
    row.emplace_back(FormatBytes(static_cast<uint64_t>(policy.queue_peak_bytes)));
    row.emplace_back(absl::StrCat(policy.dropped_packets));
  }
  row.emplace_back(policy.Ends() ? Percent(policy.FixedShare()) : "-");
  if (policy.iteration.has_value()) row.emplace_back(Time(policy.iteration->seconds));
  return row;
}

std::string PointTable(const PointResult& point, bool color) {
  std::vector<Table::Column> columns = {{"  POLICY"},
                                        {"COMPLETION", Align::kRight},
                                        {"/ BOUND", Align::kRight},
                                        {"BUS/GPU", Align::kRight},
                                        {"SEND", Align::kRight},
                                        {"RECEIVE", Align::kRight}};
  if (point.packets) {
    columns.push_back({"QUEUE PEAK", Align::kRight});
    columns.push_back({"DROPS", Align::kRight});
  }
  columns.push_back({"FIXED", Align::kRight});
  const bool iterates = std::any_of(point.policies.begin(), point.policies.end(),
                                    [](const PolicyResult& policy) { return policy.iteration.has_value(); });
  if (iterates) columns.push_back({"ITERATION", Align::kRight});
  Table table(columns);
  std::string notes;
  for (size_t i = 0; i < point.policies.size(); ++i) {
    table.AddRow(RowOf(point, i));
    const PolicyResult& policy = point.policies[i];
    if (!policy.error.empty()) absl::StrAppend(&notes, policy.policy, ": ", policy.error, "\n");
    if (policy.unfinished_bytes > 0) {
      absl::StrAppend(&notes, policy.policy, ": ", FormatBytes(policy.unfinished_bytes), " never arrive",
                      BecauseRailsDie(point), "\n");
    }
  }
  return absl::StrCat(table.Render(color), notes, Line(LateChange(point)));
}

// One line for each point, one column of ratios for each policy.
std::string SweepTable(const Report& report, bool color) {
  std::vector<Table::Column> columns = {{"POINT"}, {"BEST TIME", Align::kRight}, {"BOUND", Align::kRight}};
  const PointResult* full = nullptr;
  for (const PointResult& point : report.points) {
    if (full == nullptr && !point.policies.empty()) full = &point;
  }
  if (full != nullptr) {
    for (const PolicyResult& policy : full->policies) columns.push_back({policy.policy, Align::kRight});
  }
  Table table(columns);
  for (const PointResult& point : report.points) {
    std::vector<Cell> row = {PointLabel(report, point), point.BestTime(), FormatSeconds(point.BoundSeconds())};
    for (size_t i = 0; i < point.policies.size(); ++i) {
      const PolicyResult& policy = point.policies[i];
      const bool best = point.IsBest(i);
      const bool ends = !policy.error.empty() || policy.Ends();
      row.push_back(ends ? RatioCell(policy, best, best ? "* " : "") : Cell("never", Mark::kBad));
    }
    table.AddRow(std::move(row));
  }
  const std::string facts = CommonFacts(report);
  return absl::StrCat(facts.empty() ? "" : absl::StrCat("All points: ", facts, "\n"), Line(CommonChanges(report)),
                      "Completion time over the bound\n", table.Render(color));
}

std::vector<Cell> StepRow(const char* name, double seconds, double sum, double completion) {
  return {name, FormatSeconds(seconds), sum > 0 ? Percent(seconds / sum) : "-",
          completion > 0 ? Percent(seconds / completion) : "-"};
}

}  // namespace

std::string RenderText(const Report& report, bool color) {
  std::string text;
  if (report.points.size() > kMostTables) {
    text = SweepTable(report, color);
  } else {
    for (const PointResult& point : report.points) {
      if (!text.empty()) absl::StrAppend(&text, "\n");
      if (!report.swept.empty()) absl::StrAppend(&text, PointLabel(report, point), "\n");
      absl::StrAppend(&text, PointFacts(point), "\n", Line(ChangeFacts(point)), PointTable(point, color));
    }
  }
  const bool tables = report.points.size() <= kMostTables;
  const bool any_best = std::any_of(report.points.begin(), report.points.end(),
                                    [](const PointResult& point) { return point.Best().has_value(); });
  std::vector<std::string> notes;
  if (any_best) notes.push_back(absl::StrCat("* is the best besides ", std::string(kFloorPolicy), "."));
  if (!tables) {
    notes.push_back(
        absl::StrCat("Ratios compare the policies of a point, each with a bound of its own. BEST TIME, the ",
                     std::string(TimeName(report)), " of the best policy, compares points."));
  }
  if (tables) notes.emplace_back("SEND, RECEIVE: the busiest NIC over the mean of the busiest node; 1 is even.");
  return absl::StrCat(text, notes.empty() ? "" : absl::StrCat("\n", absl::StrJoin(notes, " "), "\n"));
}

std::string RenderExplanation(const Report& report, bool color) {
  std::string text;
  for (const PointResult& point : report.points) {
    const std::optional<size_t> best = point.Best();
    if (!best.has_value()) continue;
    const PolicyResult& policy = point.policies[*best];
    const FixedSeconds& fixed = policy.fixed;
    const double completion = policy.seconds();
    Table table({{"STEP"}, {"TIME", Align::kRight}, {"OF FIXED", Align::kRight}, {"OF COMPLETION", Align::kRight}});
    table.AddRow(StepRow("job", fixed.job, fixed.Sum(), completion));
    table.AddRow(StepRow("peers", fixed.peers, fixed.Sum(), completion));
    table.AddRow(StepRow("flows", fixed.flows, fixed.Sum(), completion));
    table.AddRow(StepRow("shares", fixed.shares, fixed.Sum(), completion));
    table.AddRow(StepRow("READY", fixed.ready, fixed.Sum(), completion));
    table.AddRow(StepRow("network", policy.network_seconds, 0, completion));
    absl::StrAppend(&text, "\nFixed cost", report.swept.empty() ? "" : absl::StrCat(", ", PointLabel(report, point)),
                    ", under ", policy.policy, ": ", FormatSeconds(fixed.Sum()), " of ", FormatSeconds(completion),
                    "\n", table.Render(color));
  }
  return text;
}

}  // namespace railsd::sim
