// Bars by policy.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/format.h"
#include "sim/report/plots.h"
#include "sim/report/svg.h"

namespace railsd::sim {
namespace {

using rails::ctl::FormatSeconds;

constexpr double kBarsWidth = 940;
constexpr double kRow = 27;
constexpr double kBar = 17;
constexpr double kBarsRight = 150;  // for the text behind a bar

struct Part {
  double seconds = 0;
  std::string css;
  std::string name;
};

struct Bar {
  std::string label;
  std::string css;  // of the label
  std::vector<Part> parts;
  std::string text;  // to the right of the bar
};

double LengthOf(const Bar& bar) {
  double sum = 0;
  for (const Part& part : bar.parts) sum += part.seconds;
  return sum;
}

double LabelWidth(const std::vector<Bar>& bars) {
  double width = 60;
  for (const Bar& bar : bars) width = std::max(width, TextWidth(bar.label) + 18);
  return width;
}

void DrawAxis(const Axis& axis, double left, double top, double bottom, Svg* svg) {
  const double scale = (kBarsWidth - left - kBarsRight) / axis.most;
  for (const double tick : axis.Ticks()) {
    const double x = left + tick * scale;
    svg->Line(x, top - 4, x, bottom, "grid");
    svg->Text(x, bottom + 16, axis.Label(tick), "middle", "quiet");
  }
}

void DrawBar(const Bar& bar, double left, double y, double scale, Svg* svg) {
  svg->Text(left - 10, y + kBar - 4, bar.label, "end", bar.css);
  double x = left;
  for (const Part& part : bar.parts) {
    const double width = part.seconds * scale;
    if (width <= 0) continue;
    svg->Rect(x, y, std::max(width, 0.5), kBar, part.css,
              absl::StrCat(bar.label, ", ", part.name, ": ", FormatSeconds(part.seconds)));
    x += width;
  }
  svg->Text(x + 8, y + kBar - 4, bar.text);
}

// Horizontal bars with a time axis and, if above 0, a marked time.
std::string DrawBars(const std::vector<Bar>& bars, double marked, const std::string& mark_label,
                     const std::string& axis_label, const std::string& title) {
  double most = marked;
  for (const Bar& bar : bars) most = std::max(most, LengthOf(bar));
  const Axis axis = TimeAxis(most);
  const double left = LabelWidth(bars);
  const double top = marked > 0 ? 22 : 5;  // above: the mark's label
  const double bottom = top + kRow * static_cast<double>(bars.size());
  const double scale = (kBarsWidth - left - kBarsRight) / axis.most;
  Svg svg(kBarsWidth, bottom + 40, title);
  DrawAxis(axis, left, top, bottom, &svg);
  double y = top + (kRow - kBar) / 2;
  for (const Bar& bar : bars) {
    DrawBar(bar, left, y, scale, &svg);
    y += kRow;
  }
  if (marked > 0) {
    svg.Line(left + marked * scale, top - 6, left + marked * scale, bottom, "bound");
    svg.Text(left + marked * scale, top - 10, mark_label, "middle", "strong");
  }
  svg.Text(left + (kBarsWidth - left - kBarsRight) / 2, bottom + 34, absl::StrCat(axis_label, " (", axis.unit, ")"),
           "middle", "quiet");
  return std::move(svg).Finish();
}

}  // namespace

std::string CompletionBars(const PointResult& point) {
  std::vector<Bar> bars;
  for (size_t i = 0; i < point.policies.size(); ++i) {
    const PolicyResult& policy = point.policies[i];
    Bar bar = {.label = policy.policy, .css = point.IsBest(i) ? "strong" : "", .parts = {}, .text = {}};
    if (!policy.error.empty()) {
      bar.text = "cannot run";
    } else if (!policy.Ends()) {
      bar.text = "never ends";
    } else {
      bar.parts = {{policy.network_seconds, SeriesClass(policy.policy), "network"},
                   {policy.fixed.Sum(), "fixed", "fixed cost"}};
      bar.text = absl::StrFormat("%s, %.3f x bound", FormatSeconds(policy.seconds()), policy.OverBound());
    }
    bars.push_back(std::move(bar));
  }
  return DrawBars(bars, point.BoundSeconds(), "bound", "Completion of all exchanges", "Completion time by policy");
}

std::string IterationBars(const PointResult& point) {
  std::vector<Bar> bars;
  for (size_t i = 0; i < point.policies.size(); ++i) {
    const PolicyResult& policy = point.policies[i];
    if (!policy.iteration.has_value() || !std::isfinite(policy.iteration->seconds)) continue;
    const IterationTime& time = *policy.iteration;
    Bar bar = {.label = policy.policy, .css = point.IsBest(i) ? "strong" : "", .parts = {}, .text = {}};
    bar.parts = {{time.compute_seconds - time.hidden_seconds, "compute", "compute"},
                 {time.hidden_seconds, "hidden", "compute with exchanges behind it"},
                 {time.exchange_seconds - time.hidden_seconds, SeriesClass(policy.policy), "exchanges"}};
    bar.text = FormatSeconds(time.seconds);
    bars.push_back(std::move(bar));
  }
  if (bars.empty()) return "";
  return DrawBars(bars, 0, "", "Iteration", "Iteration time by policy");
}

}  // namespace railsd::sim
