// Pieces of SVG with axes and units. Colours come from classes of the page's style sheet. Private to sim/report.
#ifndef RAILSD_SIM_REPORT_SVG_H_
#define RAILSD_SIM_REPORT_SVG_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace railsd::sim {

// Escapes a text for HTML and SVG.
std::string Escaped(std::string_view text);
// Prints at most two decimals, without trailing zeros.
std::string Coordinate(double value);

// A linear axis from 0 with round ticks.
struct Axis {
  double most = 1;    // the end, which need not be a tick
  double step = 1;    // between ticks
  double factor = 1;  // from values to printed numbers
  std::string unit;   // "ms", "%"
  std::vector<double> Ticks() const;
  std::string Label(double value) const;  // the number alone
};
Axis TimeAxis(double most_seconds);             // in ns, us, ms or s; ends at the value
Axis PlainAxis(double most, std::string unit);  // ends at a tick
Axis PercentAxis();                             // of a share, 0 to 1

// Width of a text in pixels, about.
double TextWidth(std::string_view text);

class Svg {
 public:
  // `title`: the text that screen readers read.
  Svg(double width, double height, std::string_view title);
  void Rect(double x, double y, double width, double height, std::string_view css, std::string_view tip = {});
  void Line(double x1, double y1, double x2, double y2, std::string_view css);
  // `anchor`: start, middle or end.
  void Text(double x, double y, std::string_view text, std::string_view anchor = "start", std::string_view css = {});
  // Text that reads upwards.
  void Upwards(double x, double y, std::string_view text);
  void Path(const std::vector<std::pair<double, double>>& points, std::string_view css, std::string_view tip = {});
  void Dot(double x, double y, double radius, std::string_view css, std::string_view tip = {});
  void Cross(double x, double y, double radius, std::string_view css, std::string_view tip = {});
  std::string Finish() &&;

 private:
  std::string out_;
};

// The class of a policy's colour and dashes; the same in every report.
std::string SeriesClass(std::string_view policy);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_SVG_H_
