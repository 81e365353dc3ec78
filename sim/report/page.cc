#include "sim/report/page.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/format.h"
#include "sim/report/changes.h"
#include "sim/report/colors.h"
#include "sim/report/plots.h"
#include "sim/report/style.h"
#include "sim/report/svg.h"

namespace railsd::sim {
namespace {

using rails::ctl::FormatByteRate;
using rails::ctl::FormatBytes;
using rails::ctl::FormatRatio;
using rails::ctl::FormatSeconds;

std::string Tile(const std::string& value, const std::string& meaning) {
  return absl::StrCat("<div><b>", Escaped(value), "</b><span>", Escaped(meaning), "</span></div>\n");
}

// Policies that end, without the floor and the best ones, by time.
std::vector<const PolicyResult*> Behind(const PointResult& point) {
  std::vector<const PolicyResult*> behind;
  for (size_t i = 0; i < point.policies.size(); ++i) {
    const PolicyResult& policy = point.policies[i];
    if (!policy.error.empty() || policy.policy == kFloorPolicy || !policy.Ends()) continue;
    if (!point.IsBest(i)) behind.push_back(&policy);
  }
  std::stable_sort(behind.begin(), behind.end(),
                   [](const PolicyResult* a, const PolicyResult* b) { return a->seconds() < b->seconds(); });
  return behind;
}

std::string Times(double factor) {
  return factor < 1.1 ? absl::StrFormat("%.3f x", factor) : absl::StrFormat("%.2f x", factor);
}

// How much faster the best is than the next policy, and than the slowest one; "" when no other ends.
std::string FasterTile(const PointResult& point, const PolicyResult& best) {
  const std::vector<const PolicyResult*> behind = Behind(point);
  if (behind.empty()) return "";
  const PolicyResult& next = *behind.front();
  const PolicyResult& slowest = *behind.back();
  std::string meaning = absl::StrCat("faster than ", next.policy, ", the next");
  if (behind.size() > 1) {
    absl::StrAppend(&meaning, "; ", Times(slowest.seconds() / best.seconds()), " than ", slowest.policy,
                    ", the slowest that ends");
  }
  return Tile(Times(next.seconds() / best.seconds()), meaning);
}

std::string NeverTile(const PointResult& point) {
  std::vector<std::string> names;
  for (const PolicyResult& policy : point.policies) {
    if (policy.error.empty() && !policy.Ends()) names.push_back(policy.policy);
  }
  return names.empty()
             ? ""
             : Tile(JoinNames(names), (names.size() == 1 ? "never ends" : "never end") + BecauseRailsDie(point));
}

std::string Tiles(const PointResult& point) {
  const std::optional<size_t> index = point.Best();
  if (!index.has_value()) return "";
  const PolicyResult& best = point.policies[*index];
  const std::string names = point.BestNames();
  std::string out = "<div class=\"tiles\">\n";
  out += Tile(names, names == best.policy ? "is the best" : "are the best");
  out += Tile(FormatSeconds(best.seconds()), absl::StrFormat("completion, %.3f x the bound", best.OverBound()));
  out += Tile(FormatByteRate(best.bus_bytes_per_second), "bus bandwidth of a GPU");
  out += FasterTile(point, best) + NeverTile(point);
  if (best.fixed.Sum() > 0) {
    out += Tile(absl::StrFormat("%.1f %%", best.FixedShare() * 100), "share of fixed cost");
  }
  return out + "</div>\n";
}

std::string HtmlCell(const std::string& text, const char* css = "") {
  return absl::StrCat("<td", *css == '\0' ? "" : absl::StrCat(" class=\"", css, "\""), ">", Escaped(text), "</td>");
}

std::string Row(const PointResult& point, size_t index, bool iterates) {
  const PolicyResult& policy = point.policies[index];
  std::string row = absl::StrCat("<tr", point.IsBest(index) ? " class=\"best\"" : "", ">", HtmlCell(policy.policy));
  if (!policy.error.empty())
    return absl::StrCat(row, "<td class=\"bad\" colspan=\"9\">", Escaped(policy.error), "</td></tr>\n");
  const bool ends = policy.Ends();
  row += HtmlCell(ends ? FormatSeconds(policy.seconds()) : "never", ends ? "" : "bad");
  row += HtmlCell(FormatRatio(policy.OverBound())) + HtmlCell(ends ? FormatByteRate(policy.bus_bytes_per_second) : "-");
  row += HtmlCell(FormatRatio(policy.send_imbalance)) + HtmlCell(FormatRatio(policy.receive_imbalance));
  if (point.packets) {
    row += HtmlCell(FormatBytes(static_cast<uint64_t>(policy.queue_peak_bytes))) +
           HtmlCell(absl::StrCat(policy.dropped_packets));
  }
  row += HtmlCell(ends ? absl::StrFormat("%.1f %%", policy.FixedShare() * 100) : "-");
  if (iterates) row += HtmlCell(policy.iteration.has_value() ? FormatSeconds(policy.iteration->seconds) : "-");
  return row + "</tr>\n";
}

bool Iterates(const PointResult& point) {
  return std::any_of(point.policies.begin(), point.policies.end(),
                     [](const PolicyResult& policy) { return policy.iteration.has_value(); });
}

std::string Numbers(const PointResult& point) {
  std::string out =
      "<div class=\"wide\"><table><thead><tr><th>Policy</th><th>Completion</th><th>Over bound</th><th>Bus "
      "bandwidth</th>"
      "<th>Sending</th><th>Receiving</th>";
  if (point.packets) out += "<th>Queue peak</th><th>Drops</th>";
  out += "<th>Fixed cost</th>";
  if (Iterates(point)) out += "<th>Iteration</th>";
  out += "</tr></thead><tbody>\n";
  for (size_t i = 0; i < point.policies.size(); ++i) out += Row(point, i, Iterates(point));
  return out +
         "</tbody></table></div>\n<p class=\"note\">Sending and receiving: the busiest NIC over the mean of the "
         "busiest node; 1 is even.</p>\n";
}

std::string Heading(const char* title, const std::string& note) {
  return absl::StrCat("<h3>", title, "</h3>\n<p class=\"note\">", Escaped(note), "</p>\n");
}

// Lets the plot scroll on a narrow screen, where it would become illegible.
std::string Wide(const std::string& plot) { return absl::StrCat("<div class=\"wide\">", plot, "</div>\n"); }

std::string Plots(const PointResult& point) {
  std::string out = Heading("Completion time", "All exchanges of the point, one after the other. Grey: fixed cost.");
  out += Wide(CompletionBars(point));
  if (const std::string bars = IterationBars(point); !bars.empty()) {
    out += Heading("Iteration time",
                   "All layers. Grey: compute, darker where it hides exchanges. Colour: exchanges that nothing hides.");
    out += Wide(bars);
  }
  const bool detailed = std::any_of(point.policies.begin(), point.policies.end(),
                                    [](const PolicyResult& policy) { return policy.details.has_value(); });
  if (!detailed) return out;
  const bool never = std::any_of(point.policies.begin(), point.policies.end(), [](const PolicyResult& policy) {
    return policy.details.has_value() && !policy.details->Ends();
  });
  out += Heading("The first exchange over time",
                 never ? absl::StrCat("The dashed line is the bound. A cross: some pairs are never done",
                                      BecauseRailsDie(point), ", and the policy never ends.")
                       : "The dashed line is the bound.");
  out += Legend(point);
  out +=
      "<div class=\"pair\"><figure>" + EndCurves(point) + "</figure><figure>" + UseCurves(point) + "</figure></div>\n";
  out += Heading("NICs",
                 "Time that each NIC is busy in the first exchange, over the bound. A row is a node; of more than 32 "
                 "nodes some share a row, which shows the busiest.");
  out += HeatLegend() + "<div class=\"maps\">\n" + NicMaps(point) + "</div>\n";
  out += Heading("Rails over time",
                 absl::StrCat("Each line of a band is a rail, numbered from 0 at the top; its colour is the use of the "
                              "rail's NICs, sending.",
                              ChangeMarks(point).empty() ? "" : " A vertical line: a rail changes."));
  out += Wide(RailStrips(point));
  return out;
}

std::string SecondLine(const std::string& text) { return text.empty() ? "" : absl::StrCat("<br>", Escaped(text)); }

std::string PointBody(const PointResult& point, bool plots) {
  std::string out = absl::StrCat("<p class=\"facts\">", Escaped(PointFacts(point)), SecondLine(ChangeFacts(point)),
                                 "</p>\n", Tiles(point));
  if (plots) out += Plots(point);
  return out + "<h3>Numbers</h3>\n" + Numbers(point);
}

std::string Sweep(const Report& report) {
  std::string out = "<section><h2>The sweep</h2>\n<p class=\"facts\">";
  absl::StrAppend(&out, "All points: ", Escaped(CommonFacts(report)), SecondLine(CommonChanges(report)),
                  "</p>\n<p class=\"note\">Completion time over the bound. ",
                  "A cross or \"never\": the policy does not end there. The best of each point is underlined.</p>\n");
  const auto full = std::find_if(report.points.begin(), report.points.end(),
                                 [](const PointResult& point) { return !point.policies.empty(); });
  if (full != report.points.end()) out += Legend(*full);
  // Draws curves over the key with the most values.
  size_t key = 0;
  size_t most = 0;
  for (size_t i = 0; i < report.swept.size(); ++i) {
    std::vector<std::string> values;
    for (const PointResult& point : report.points) values.push_back(point.values[i]);
    std::sort(values.begin(), values.end());
    const auto count = static_cast<size_t>(std::unique(values.begin(), values.end()) - values.begin());
    if (count > most) key = i;
    most = std::max(most, count);
  }
  out += "<div class=\"pair\">\n" + SweepCurves(report, key) + "</div>\n";
  return out + SweepLegend() +
         "<p>Ratios compare the policies of a point, each with a bound of its own. <i>Best time</i>, the " +
         std::string(TimeName(report)) + " of the best policy, compares points.</p>\n<div class=\"wide\">" +
         SweepMap(report) + "</div></section>\n";
}

std::string Sections(const Report& report) {
  std::string out;
  for (size_t i = 0; i < report.points.size(); ++i) {
    const PointResult& point = report.points[i];
    if (report.swept.empty()) {
      out += absl::StrCat("<section>", PointBody(point, true), "</section>\n");
      continue;
    }
    const std::optional<size_t> best = point.Best();
    const std::string result =
        best.has_value() ? absl::StrFormat("%s, %.3f x bound", point.BestNames(), point.policies[*best].OverBound())
                         : "";
    out += absl::StrCat("<details", i == 0 ? " open" : "", "><summary>", Escaped(PointLabel(report, point)), "<small>",
                        Escaped(result), "</small></summary>\n", PointBody(point, i < kMostDetailedPoints),
                        "</details>\n");
  }
  return out;
}

}  // namespace

std::string RenderPage(const Report& report) {
  std::string out = absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src "
      "data:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>",
      Escaped(report.title), "</title>\n<style>", kStyle, ColorStyle(), "</style>\n</head>\n<body>\n<header><h1>",
      Escaped(report.title), "</h1>\n");
  const std::string points = report.swept.empty() ? "" : absl::StrCat(report.points.size(), " points. ");
  absl::StrAppend(&out, "<p class=\"facts\">", points,
                  "Simulated exchanges between GPUs over the rails of a cluster, by policy.</p></header>\n<main>\n");
  if (!report.swept.empty()) out += Sweep(report);
  out += Sections(report);
  return out + "</main>\n<footer><p>Made by railsctl sim.</p></footer>\n</body>\n</html>\n";
}

}  // namespace railsd::sim
