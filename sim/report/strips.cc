// Rails over time: a band for each policy, a line of the band for each rail.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "sim/report/changes.h"
#include "sim/report/colors.h"
#include "sim/report/plots.h"
#include "sim/report/svg.h"

namespace railsd::sim {
namespace {

constexpr double kBandsWidth = 940;
constexpr double kBandsRight = 16;
constexpr double kBandGap = 8;        // between bands
constexpr double kNumberHeight = 11;  // of a rail's number

// Places of the plot.
struct Layout {
  Axis axis;
  size_t rails = 1;
  double left = 60;
  double top = 6;
  double height = 16;  // of a band
  double bottom = 0;   // of the last band's gap

  double Scale() const { return (kBandsWidth - left - kBandsRight) / axis.most; }
  double Row() const { return height / static_cast<double>(rails); }
  // Every how many rails a number stands, so that numbers do not cover each other.
  size_t NumberStep() const { return static_cast<size_t>(std::max(1.0, std::ceil(kNumberHeight / Row()))); }
  double NumberWidth() const { return TextWidth(absl::StrCat(rails - 1)); }
};

bool HasTimeline(const PolicyResult& policy) {
  return policy.details.has_value() && policy.details->timeline.bins() > 0;
}

double LongestTimeline(const PointResult& point) {
  double most = 0;
  for (const PolicyResult& policy : point.policies) {
    if (!policy.details.has_value()) continue;
    const Timeline& timeline = policy.details->timeline;
    most = std::max(most, timeline.bin_seconds * static_cast<double>(timeline.bins()));
  }
  return most;
}

std::string LabelOf(const PolicyResult& policy) {
  return absl::StrCat(policy.policy, policy.details->Ends() ? "" : ", never ends");
}

Layout LayoutOf(const PointResult& point) {
  Layout layout;
  layout.axis = TimeAxis(LongestTimeline(point));
  layout.rails = std::max<size_t>(point.rail_speeds.size(), 1);
  layout.height = std::clamp(kNumberHeight * static_cast<double>(layout.rails), 16.0, 48.0);
  if (!ChangeMarks(point).empty()) layout.top = 24;  // leaves a line for labels
  size_t count = 0;
  for (const PolicyResult& policy : point.policies) {
    if (!HasTimeline(policy)) continue;
    layout.left = std::max(layout.left, TextWidth(LabelOf(policy)) + layout.NumberWidth() + 22);
    ++count;
  }
  layout.bottom = layout.top + static_cast<double>(count) * (layout.height + kBandGap);
  return layout;
}

// Draws the line of one rail. Neighbouring bins of one colour are one rectangle.
void DrawRail(const std::vector<double>& use, const Layout& layout, double y, double cell, Svg* svg) {
  for (size_t i = 0; i < use.size();) {
    size_t end = i + 1;
    while (end < use.size() && HeatClass(use[end]) == HeatClass(use[i])) ++end;
    svg->Rect(layout.left + cell * static_cast<double>(i), y, cell * static_cast<double>(end - i), layout.Row(),
              HeatClass(use[i]));
    i = end;
  }
}

void DrawBand(const PointResult& point, const Timeline& timeline, const Layout& layout, double y, Svg* svg) {
  const double cell = timeline.bin_seconds * layout.Scale();
  for (size_t rail = 0; rail < timeline.rails; ++rail) {
    std::vector<double> use;
    const double speed = point.rail_speeds[rail] * static_cast<double>(point.nodes) * timeline.bin_seconds;
    for (size_t bin = 0; bin < timeline.bins(); ++bin) {
      // 1 is the rail's speed at the start. Rounding, or a change to a higher speed, can exceed it.
      use.push_back(speed > 0 ? std::min(timeline.bytes[bin * timeline.rails + rail] / speed, 1.0) : 0);
    }
    const double top = y + layout.Row() * static_cast<double>(rail);
    DrawRail(use, layout, top, cell, svg);
    if (rail % layout.NumberStep() != 0) continue;
    svg->Text(layout.left - 4, top + layout.Row() / 2 + 3, absl::StrCat(rail), "end", "small");
  }
}

void DrawPolicy(const PointResult& point, const PolicyResult& policy, const Layout& layout, double y, Svg* svg) {
  const Timeline& timeline = policy.details->timeline;
  const bool ends = policy.details->Ends();
  svg->Text(layout.left - layout.NumberWidth() - 12, y + layout.height / 2 + 4, LabelOf(policy), "end",
            ends ? "" : "bad");
  DrawBand(point, timeline, layout, y, svg);
  if (ends) return;
  // The rails stay idle until the end of the axis.
  const double width = timeline.bin_seconds * static_cast<double>(timeline.bins()) * layout.Scale();
  const double rest = kBandsWidth - kBandsRight - layout.left - width;
  if (rest > 0) svg->Rect(layout.left + width, y, rest, layout.height, HeatClass(0), policy.policy + " never ends");
}

// Draws a vertical line for each time at which rails change. Leaves out a label that would cover the one before.
void DrawChanges(const PointResult& point, const Layout& layout, Svg* svg) {
  double labelled = 0;  // the end of the last label
  for (const ChangeMark& mark : ChangeMarks(point)) {
    if (mark.seconds > layout.axis.most) return;
    const double x = layout.left + mark.seconds * layout.Scale();
    svg->Rect(x - 0.5, layout.top - 5, 1, layout.bottom - kBandGap - layout.top + 8, "change", mark.label);
    const double half = TextWidth(mark.label) / 2;
    const double middle = std::clamp(x, half, std::max(half, kBandsWidth - half));
    if (middle - half < labelled) continue;
    svg->Text(middle, layout.top - 10, mark.label, "middle", "quiet");
    labelled = middle + half + 6;
  }
}

void DrawTimeAxis(const Layout& layout, Svg* svg) {
  for (const double tick : layout.axis.Ticks()) {
    const double x = layout.left + tick * layout.Scale();
    svg->Line(x, layout.bottom - kBandGap / 2, x, layout.bottom, "tick");
    svg->Text(x, layout.bottom + 14, layout.axis.Label(tick), "middle", "quiet");
  }
  svg->Text(layout.left + (kBandsWidth - layout.left - kBandsRight) / 2, layout.bottom + 32,
            absl::StrCat("Time since the start (", layout.axis.unit, ")"), "middle", "quiet");
}

}  // namespace

std::string RailStrips(const PointResult& point) {
  const Layout layout = LayoutOf(point);
  Svg svg(kBandsWidth, layout.bottom + 38, "Use of each rail over time, by policy");
  double y = layout.top;
  for (const PolicyResult& policy : point.policies) {
    if (!HasTimeline(policy)) continue;
    DrawPolicy(point, policy, layout, y, &svg);
    y += layout.height + kBandGap;
  }
  DrawChanges(point, layout, &svg);
  DrawTimeAxis(layout, &svg);
  return std::move(svg).Finish();
}

}  // namespace railsd::sim
