// Curves over time.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/plot.h"
#include "sim/report/plots.h"

namespace railsd::sim {
namespace {

constexpr size_t kMostSamples = 200;

// The longest finite time of the exchanges that are drawn.
double LongestDetail(const PointResult& point) {
  double most = 0;
  for (const PolicyResult& policy : point.policies) {
    if (!policy.details.has_value()) continue;
    most = std::max(most, policy.details->bound_seconds);
    if (policy.details->Ends()) most = std::max(most, policy.details->seconds);
    for (const double end : policy.details->pair_ends) {
      if (std::isfinite(end)) most = std::max(most, end);
    }
  }
  return most;
}

double BoundOfDetail(const PointResult& point) {
  for (const PolicyResult& policy : point.policies) {
    if (policy.details.has_value()) return policy.details->bound_seconds;
  }
  return 0;
}

// Steps of the cumulative distribution, thinned. Pairs that never end count among all and make no step.
Curve EndCurve(const std::vector<double>& ends) {
  Curve curve = {{0, 0}};
  const auto never = std::find_if(ends.begin(), ends.end(), [](double end) { return !std::isfinite(end); });
  const auto finite = static_cast<size_t>(never - ends.begin());
  const size_t stride = std::max<size_t>(1, finite / kMostSamples);
  const auto count = static_cast<double>(ends.size());
  for (size_t i = 0; i < finite; i = i + 1 == finite ? finite : std::min(i + stride, finite - 1)) {
    curve.emplace_back(ends[i], curve.back().second);
    curve.emplace_back(ends[i], static_cast<double>(i + 1) / count);
  }
  return curve;
}

double SpeedOfAll(const PointResult& point) {
  double sum = 0;
  for (const double speed : point.rail_speeds) sum += speed;
  return sum * static_cast<double>(point.nodes);
}

Curve UseCurve(const Timeline& timeline, double speed) {
  Curve curve;
  for (size_t bin = 0; bin < timeline.bins(); ++bin) {
    double bytes = 0;
    for (size_t rail = 0; rail < timeline.rails; ++rail) bytes += timeline.bytes[bin * timeline.rails + rail];
    const double use = bytes / (timeline.bin_seconds * speed);
    curve.emplace_back(timeline.bin_seconds * static_cast<double>(bin), use);
    curve.emplace_back(timeline.bin_seconds * static_cast<double>(bin + 1), use);
  }
  return curve;
}

// Draws one curve for each policy. If a policy never ends, its curve goes on to the edge and ends there with a cross.
template <typename CurveOf>
std::string DrawCurves(const PointResult& point, const std::string& y_label, const std::string& title,
                       const CurveOf& curve_of) {
  Plot plot(TimeAxis(LongestDetail(point)), PercentAxis(), "Time since the start", y_label, title);
  plot.DrawTicks();
  plot.DrawBound(BoundOfDetail(point));
  double shift = 0;  // puts crosses side by side
  for (const PolicyResult& policy : point.policies) {
    if (!policy.details.has_value()) continue;
    const Details& details = *policy.details;
    Curve curve = curve_of(details);
    const bool never = !details.Ends() && !curve.empty();
    if (never) plot.Extend(&curve);
    plot.Draw(curve, policy.policy);
    if (!never) continue;
    const auto [x, y] = curve.back();
    plot.DrawCross(x, y, shift, policy.policy, policy.policy + " never ends");
    shift -= kCrossWidth;
  }
  return std::move(plot).Finish();
}

}  // namespace

std::string EndCurves(const PointResult& point) {
  return DrawCurves(point, "Pairs of nodes that are done", "Share of pairs of nodes that are done, over time",
                    [](const Details& details) { return EndCurve(details.pair_ends); });
}

std::string UseCurves(const PointResult& point) {
  const double speed = SpeedOfAll(point);
  return DrawCurves(point, "Use of all NICs, sending", "Share of all NICs' speed in use, over time",
                    [&](const Details& details) {
                      Curve curve = UseCurve(details.timeline, speed);
                      const bool never = !details.Ends() && !curve.empty();
                      if (never) curve.emplace_back(curve.back().first, 0);  // nothing moves any more
                      return curve;
                    });
}

std::string Legend(const PointResult& point) {
  std::string out = "<p class=\"legend\">";
  for (const PolicyResult& policy : point.policies) {
    absl::StrAppend(&out, "<span><svg viewBox=\"0 0 26 10\"><path class=\"curve ", SeriesClass(policy.policy),
                    "\" d=\"M1 5 25 5\"/></svg>", Escaped(policy.policy), "</span> ");
  }
  return out + "</p>\n";
}

}  // namespace railsd::sim
