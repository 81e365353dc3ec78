// A sweep: curves over a swept key, and points by policies in colours.
#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/colors.h"
#include "sim/report/plot.h"
#include "sim/report/plots.h"

namespace railsd::sim {
namespace {

constexpr double kMostRatio = 6;  // larger ones lie at the edge
constexpr size_t kMostPlots = 12;
constexpr double kLetterWidth = 6.5;  // of a label, in pixels

// The places of a swept key's values on an axis: numeric if all values are numbers, otherwise evenly spaced.
struct Places {
  bool numbers = true;
  bool joined = true;  // lines join the values: all are numbers, with or without a unit
  std::vector<std::string> values;
};

// True for a number with or without a unit, such as "400gbit", "16MiB" and "4"; false for "3:1ms:0" and "zipf".
bool IsMeasure(const std::string& value) {
  const size_t unit = std::min(value.find_first_not_of("0123456789."), value.size());
  return unit > 0 && std::all_of(value.begin() + static_cast<std::ptrdiff_t>(unit), value.end(),
                                 [](char c) { return absl::ascii_isalpha(static_cast<unsigned char>(c)) || c == '/'; });
}

Places PlacesOf(const Report& report, size_t key) {
  Places places;
  for (const PointResult& point : report.points) {
    const std::string& value = point.values[key];
    if (std::find(places.values.begin(), places.values.end(), value) != places.values.end()) continue;
    places.values.push_back(value);
    double number = 0;
    const bool is_number = absl::SimpleAtod(value, &number) && number >= 0;
    places.numbers = places.numbers && is_number;
    places.joined = places.joined && (is_number || IsMeasure(value));
  }
  return places;
}

double PlaceOf(const Places& places, const std::string& value) {
  double number = 0;
  if (places.numbers && absl::SimpleAtod(value, &number)) return number;
  return static_cast<double>(std::find(places.values.begin(), places.values.end(), value) - places.values.begin()) +
         0.5;
}

// As much of a label as fits into pixels; the table below the plot has all of it.
std::string Fitted(const std::string& label, double width) {
  const auto letters = static_cast<size_t>(std::max(2.0, width / kLetterWidth));
  return label.size() <= letters ? label : label.substr(0, letters - 1) + "\u2026";
}

// The result of a policy at a point; null where it cannot run.
const PolicyResult* Ran(const PointResult& point, size_t policy) {
  if (policy >= point.policies.size() || !point.policies[policy].error.empty()) return nullptr;
  return &point.policies[policy];
}

bool AnyNeverEnds(const PointResult& point) {
  return std::any_of(point.policies.begin(), point.policies.end(),
                     [](const PolicyResult& policy) { return policy.error.empty() && !policy.Ends(); });
}

// Points that differ in one key only.
class SweepPlot {
 public:
  SweepPlot(const Report& report, size_t key, std::vector<const PointResult*> points)
      : key_(key), name_(KeyLabel(report.swept[key])), places_(PlacesOf(report, key)), points_(std::move(points)) {
    std::stable_sort(points_.begin(), points_.end(),
                     [this](const PointResult* a, const PointResult* b) { return Place(*a) < Place(*b); });
  }

  std::string Draw(const std::string& title) const {
    const bool never =
        std::any_of(points_.begin(), points_.end(), [](const auto* point) { return AnyNeverEnds(*point); });
    Plot plot(XAxis(), YAxis(), name_, "Completion over the bound", title, never);
    if (places_.numbers) plot.DrawTicks();
    for (size_t i = 0; i < places_.values.size() && !places_.numbers; ++i) {
      plot.DrawTick(static_cast<double>(i) + 0.5, Fitted(ValueLabel(places_.values[i]), plot.Width(1)));
    }
    plot.DrawLevel(1);
    for (size_t policy = 0; policy < points_[0]->policies.size(); ++policy) {
      if (places_.joined) DrawLines(policy, &plot);
      for (const PointResult* point : points_) DrawMark(*point, policy, &plot);
    }
    return std::move(plot).Finish();
  }

 private:
  double Place(const PointResult& point) const { return PlaceOf(places_, point.values[key_]); }

  Axis XAxis() const {
    if (places_.numbers) return PlainAxis(Place(*points_.back()), "");
    Axis axis = PlainAxis(1, "");
    axis.most = static_cast<double>(places_.values.size());
    return axis;
  }

  Axis YAxis() const {
    double most = 1;
    for (const PointResult* point : points_) {
      for (const PolicyResult& policy : point->policies) {
        if (policy.error.empty() && policy.Ends()) most = std::max(most, policy.OverBound());
      }
    }
    return PlainAxis(std::min(most, kMostRatio) * 1.02, "");
  }

  // Lines end beside a point at which the policy cannot run or never ends.
  void DrawLines(size_t policy, Plot* plot) const {
    Curve curve;
    const auto end = [&] {
      if (curve.size() > 1) plot->Draw(curve, points_[0]->policies[policy].policy);
      curve.clear();
    };
    for (const PointResult* point : points_) {
      const PolicyResult* ran = Ran(*point, policy);
      if (ran == nullptr || !ran->Ends()) {
        end();
      } else {
        curve.emplace_back(Place(*point), ran->OverBound());
      }
    }
    end();
  }

  // Puts the marks of policies side by side above the plot, and inside it if no lines join them.
  void DrawMark(const PointResult& point, size_t policy, Plot* plot) const {
    const PolicyResult* ran = Ran(point, policy);
    if (ran == nullptr) return;
    const double count = static_cast<double>(point.policies.size());
    const double gap = places_.numbers ? kCrossWidth : std::min(kCrossWidth, 0.8 * plot->Width(1) / count);
    const double shift = (static_cast<double>(policy) - (count - 1) / 2) * gap;
    const std::string what = absl::StrCat(ran->policy, ", ", name_, " ", ValueLabel(point.values[key_]), ": ");
    if (!ran->Ends()) {
      plot->DrawNever(Place(point), shift, ran->policy, what + "never ends");
    } else {
      plot->DrawDot(Place(point), ran->OverBound(), places_.joined ? 0 : shift, ran->policy,
                    what + absl::StrFormat("%.3f", ran->OverBound()));
    }
  }

  const size_t key_;
  const std::string name_;
  const Places places_;
  std::vector<const PointResult*> points_;
};

std::string MapCell(const PointResult& point, size_t index) {
  const PolicyResult& policy = point.policies[index];
  if (!policy.error.empty()) return "<td>-</td>";
  const double ratio = policy.Ends() ? policy.OverBound() : std::numeric_limits<double>::infinity();
  return absl::StrCat("<td class=\"", RatioClass(ratio), point.IsBest(index) ? " best" : "", "\">",
                      policy.Ends() ? absl::StrFormat("%.3f", ratio) : "never", "</td>");
}

}  // namespace

std::string SweepCurves(const Report& report, size_t key) {
  // Groups the points by the values of the other keys, so that points of a group differ in this key only.
  std::map<std::string, std::vector<const PointResult*>> groups;
  std::vector<std::string> order;
  for (const PointResult& point : report.points) {
    if (point.policies.empty()) continue;
    std::string others;
    for (size_t i = 0; i < report.swept.size(); ++i) {
      if (i == key) continue;
      absl::StrAppend(&others, others.empty() ? "" : ", ", KeyLabel(report.swept[i]), " ", ValueLabel(point.values[i]));
    }
    if (groups[others].empty()) order.push_back(others);
    groups[others].push_back(&point);
  }
  std::string out;
  for (size_t i = 0; i < std::min(order.size(), kMostPlots); ++i) {
    const std::string title = absl::StrCat("Completion over the bound", order[i].empty() ? "" : ", ", order[i]);
    absl::StrAppend(&out, "<figure>", SweepPlot(report, key, groups[order[i]]).Draw(title), "<figcaption>",
                    Escaped(order[i]), "</figcaption></figure>\n");
  }
  return out;
}

std::string SweepMap(const Report& report) {
  std::string out = "<table class=\"map\"><thead><tr><th>Point</th><th>Best time</th>";
  const auto full = std::find_if(report.points.begin(), report.points.end(),
                                 [](const PointResult& point) { return !point.policies.empty(); });
  if (full == report.points.end()) return "";
  for (const PolicyResult& policy : full->policies) {
    absl::StrAppend(&out, "<th>", Escaped(policy.policy), "</th>");
  }
  absl::StrAppend(&out, "</tr></thead><tbody>\n");
  for (const PointResult& point : report.points) {
    absl::StrAppend(&out, "<tr><td>", Escaped(PointLabel(report, point)), "</td><td>", point.BestTime(), "</td>");
    for (size_t i = 0; i < point.policies.size(); ++i) out += MapCell(point, i);
    absl::StrAppend(&out, "</tr>\n");
  }
  return out + "</tbody></table>\n";
}

}  // namespace railsd::sim
