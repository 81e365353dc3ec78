#include "sim/report/svg.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "sim/report/colors.h"
#include "sim/simulate.h"

namespace railsd::sim {
namespace {

std::string ClassOf(std::string_view css) {
  return css.empty() ? "" : absl::StrCat(" class=\"", std::string(css), "\"");
}

// The end of an element with or without a tip.
std::string EndOf(const char* element, std::string_view tip) {
  if (tip.empty()) return "/>";
  return absl::StrCat("><title>", Escaped(tip), "</title></", element, ">");
}

// 1, 2, 2.5 or 5 times a power of ten, such that `most` has about five steps.
double RoundStep(double most) {
  const double rough = most / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (rough <= factor * power * 1.0001) return factor * power;
  }
  return 10 * power;
}

}  // namespace

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string Coordinate(double value) {
  std::string text = absl::StrFormat("%.2f", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::vector<double> Axis::Ticks() const {
  std::vector<double> ticks;
  const int count = static_cast<int>(std::floor(most / step + 1e-6));
  for (int i = 0; i <= count; ++i) ticks.push_back(step * i);
  return ticks;
}

std::string Axis::Label(double value) const { return absl::StrFormat("%.4g", value * factor); }

Axis PlainAxis(double most, std::string unit) {
  Axis axis;
  axis.unit = std::move(unit);
  if (!(most > 0) || !std::isfinite(most)) most = 1;
  axis.step = RoundStep(most);
  axis.most = axis.step * std::ceil(most / axis.step - 1e-6);
  return axis;
}

Axis TimeAxis(double most_seconds) {
  constexpr std::pair<double, const char*> kUnits[] = {{1, "s"}, {1e3, "ms"}, {1e6, "us"}, {1e9, "ns"}};
  if (!(most_seconds > 0) || !std::isfinite(most_seconds)) most_seconds = 1;
  auto unit = std::begin(kUnits);
  while (most_seconds * unit->first < 1 && std::next(unit) != std::end(kUnits)) ++unit;
  Axis axis = PlainAxis(most_seconds * unit->first, unit->second);
  axis.most = most_seconds;
  axis.step /= unit->first;
  axis.factor = unit->first;
  return axis;
}

Axis PercentAxis() { return {.most = 1, .step = 0.25, .factor = 100, .unit = "%"}; }

double TextWidth(std::string_view text) { return 6.4 * static_cast<double>(text.size()); }

Svg::Svg(double width, double height, std::string_view title) {
  out_ = absl::StrCat("<svg viewBox=\"0 0 ", Coordinate(width), " ", Coordinate(height),
                      "\" style=\"max-width:", Coordinate(width), "px\" role=\"img\" aria-label=\"", Escaped(title),
                      "\">");
}

void Svg::Rect(double x, double y, double width, double height, std::string_view css, std::string_view tip) {
  absl::StrAppend(&out_, "<rect", ClassOf(css), " x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" width=\"",
                  Coordinate(width), "\" height=\"", Coordinate(height), "\"", EndOf("rect", tip));
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view css) {
  absl::StrAppend(&out_, "<line", ClassOf(css), " x1=\"", Coordinate(x1), "\" y1=\"", Coordinate(y1), "\" x2=\"",
                  Coordinate(x2), "\" y2=\"", Coordinate(y2), "\"/>");
}

void Svg::Text(double x, double y, std::string_view text, std::string_view anchor, std::string_view css) {
  absl::StrAppend(&out_, "<text", ClassOf(css), " x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\"",
                  anchor == "start" ? "" : absl::StrCat(" text-anchor=\"", std::string(anchor), "\""), ">",
                  Escaped(text), "</text>");
}

void Svg::Upwards(double x, double y, std::string_view text) {
  absl::StrAppend(&out_, "<text class=\"quiet\" text-anchor=\"middle\" transform=\"translate(", Coordinate(x), " ",
                  Coordinate(y), ") rotate(-90)\">", Escaped(text), "</text>");
}

void Svg::Path(const std::vector<std::pair<double, double>>& points, std::string_view css, std::string_view tip) {
  if (points.empty()) return;
  absl::StrAppend(&out_, "<path", ClassOf(css), " d=\"M");
  for (const auto& [x, y] : points) absl::StrAppend(&out_, Coordinate(x), " ", Coordinate(y), " ");
  out_.back() = '"';
  absl::StrAppend(&out_, EndOf("path", tip));
}

void Svg::Dot(double x, double y, double radius, std::string_view css, std::string_view tip) {
  absl::StrAppend(&out_, "<circle", ClassOf(css), " cx=\"", Coordinate(x), "\" cy=\"", Coordinate(y), "\" r=\"",
                  Coordinate(radius), "\"", EndOf("circle", tip));
}

void Svg::Cross(double x, double y, double radius, std::string_view css, std::string_view tip) {
  const auto at = [&](double dx, double dy) { return absl::StrCat(Coordinate(x + dx), " ", Coordinate(y + dy)); };
  absl::StrAppend(&out_, "<path", ClassOf(css), " d=\"M", at(-radius, -radius), " ", at(radius, radius), "M",
                  at(-radius, radius), " ", at(radius, -radius), "\"", EndOf("path", tip));
}

std::string Svg::Finish() && { return std::move(out_) + "</svg>\n"; }

std::string SeriesClass(std::string_view policy) {
  const std::vector<std::string_view> names = PolicyNames();
  const auto place = static_cast<size_t>(std::find(names.begin(), names.end(), policy) - names.begin());
  return absl::StrCat("s", place % kSeries);
}

}  // namespace railsd::sim
