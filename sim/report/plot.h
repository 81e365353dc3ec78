// A plot with two axes, filled by curves and dots of policies. Private to sim/report.
#ifndef RAILSD_SIM_REPORT_PLOT_H_
#define RAILSD_SIM_REPORT_PLOT_H_

#include <string>
#include <utility>
#include <vector>

#include "sim/report/svg.h"

namespace railsd::sim {

using Curve = std::vector<std::pair<double, double>>;  // values, not places

inline constexpr double kCrossWidth = 10;

class Plot {
 public:
  // `has_never`: leaves a line above the plot for values that are infinite.
  Plot(Axis x, Axis y, const std::string& x_label, const std::string& y_label, const std::string& title,
       bool has_never = false);

  void DrawTicks();
  void DrawTick(double at, const std::string& label);
  void DrawBound(double at);  // a vertical line, unless `at` is beyond the axis
  void DrawLevel(double at);  // a horizontal line

  // Draws values above the y axis at its end. `shift` moves a mark to the right, in pixels.
  void Draw(const Curve& curve, const std::string& policy);
  void DrawDot(double x, double y, double shift, const std::string& policy, const std::string& tip);
  void DrawCross(double x, double y, double shift, const std::string& policy, const std::string& tip);
  // A cross in the line for infinite values.
  void DrawNever(double x, double shift, const std::string& policy, const std::string& tip);
  // Makes the curve go on at its last height to the end of the x axis.
  void Extend(Curve* curve) const;
  // Pixels of a stretch of the x axis.
  double Width(double value) const;

  std::string Finish() && { return std::move(svg_).Finish(); }

 private:
  double X(double value) const;
  double Y(double value) const;

  Axis x_, y_;
  double top_;
  Svg svg_;
};

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_PLOT_H_
