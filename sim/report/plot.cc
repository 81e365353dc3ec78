#include "sim/report/plot.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace railsd::sim {
namespace {

constexpr double kWidth = 460;
constexpr double kHeight = 270;
constexpr double kLeft = 58;
constexpr double kBottom = 44;
constexpr double kTop = 10;
constexpr double kRight = 14;
constexpr double kNeverHeight = 20;  // of the line for infinite values
constexpr double kMark = 3.5;        // half a dot or cross

std::string WithUnit(const std::string& label, const std::string& unit) {
  return unit.empty() ? label : absl::StrCat(label, " (", unit, ")");
}

}  // namespace

Plot::Plot(Axis x, Axis y, const std::string& x_label, const std::string& y_label, const std::string& title,
           bool has_never)
    : x_(std::move(x)), y_(std::move(y)), top_(kTop + (has_never ? kNeverHeight : 0)), svg_(kWidth, kHeight, title) {
  for (const double tick : y_.Ticks()) {
    svg_.Line(kLeft, Y(tick), kWidth - kRight, Y(tick), "grid");
    svg_.Text(kLeft - 7, Y(tick) + 4, y_.Label(tick), "end", "quiet");
  }
  if (has_never) {
    svg_.Line(kLeft, kTop, kWidth - kRight, kTop, "grid");
    svg_.Text(kLeft - 7, kTop + 4, "never", "end", "bad");
  }
  svg_.Upwards(14, kTop + (kHeight - kTop - kBottom) / 2, WithUnit(y_label, y_.unit));
  svg_.Text(kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 8, WithUnit(x_label, x_.unit), "middle", "quiet");
}

double Plot::Width(double value) const { return value / x_.most * (kWidth - kLeft - kRight); }
double Plot::X(double value) const { return kLeft + Width(value); }
double Plot::Y(double value) const {
  return kHeight - kBottom - std::min(value, y_.most) / y_.most * (kHeight - top_ - kBottom);
}

void Plot::DrawTicks() {
  for (const double tick : x_.Ticks()) DrawTick(tick, x_.Label(tick));
}

void Plot::DrawTick(double at, const std::string& label) {
  svg_.Line(X(at), Y(0), X(at), Y(0) + 4, "tick");
  svg_.Text(X(at), Y(0) + 17, label, "middle", "quiet");
}

void Plot::DrawBound(double at) {
  if (at <= x_.most) svg_.Line(X(at), Y(0), X(at), top_, "bound");
}

void Plot::DrawLevel(double at) { svg_.Line(kLeft, Y(at), kWidth - kRight, Y(at), "bound"); }

void Plot::Draw(const Curve& curve, const std::string& policy) {
  Curve placed;
  for (const auto& [x, y] : curve) placed.emplace_back(X(x), Y(y));
  svg_.Path(placed, absl::StrCat("curve ", SeriesClass(policy)), policy);
}

void Plot::DrawDot(double x, double y, double shift, const std::string& policy, const std::string& tip) {
  svg_.Dot(X(x) + shift, Y(y), kMark, SeriesClass(policy), tip);
}

void Plot::DrawCross(double x, double y, double shift, const std::string& policy, const std::string& tip) {
  svg_.Cross(X(x) + shift, Y(y), kMark, absl::StrCat("cross ", SeriesClass(policy)), tip);
}

void Plot::DrawNever(double x, double shift, const std::string& policy, const std::string& tip) {
  svg_.Cross(X(x) + shift, kTop, kMark, absl::StrCat("cross ", SeriesClass(policy)), tip);
}

void Plot::Extend(Curve* curve) const { curve->emplace_back(x_.most, curve->back().second); }

}  // namespace railsd::sim
