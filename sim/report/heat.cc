// Maps of NICs in colours, and the legends of all maps.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sim/report/colors.h"
#include "sim/report/plots.h"
#include "sim/report/svg.h"

namespace railsd::sim {
namespace {

constexpr size_t kMostRows = 32;  // of a map of NICs; more nodes share a row

void DrawRow(const std::vector<double>& values, double x, double y, double cell, double height, const std::string& name,
             Svg* svg) {
  for (size_t i = 0; i < values.size(); ++i) {
    svg->Rect(x + cell * static_cast<double>(i), y, cell - 1, height, HeatClass(values[i]),
              absl::StrFormat("%s, rail %d: %.3f of the bound", name, i, values[i]));
  }
}

// Rows of a map of NICs: one for each node, or the largest values of several nodes.
std::vector<std::vector<double>> NicRows(const std::vector<double>& busy, size_t rails, double bound) {
  const size_t nodes = busy.size() / rails;
  const size_t band = (nodes + kMostRows - 1) / kMostRows;
  std::vector<std::vector<double>> rows;
  for (size_t first = 0; first < nodes; first += band) {
    std::vector<double> row(rails, 0);
    for (size_t node = first; node < std::min(first + band, nodes); ++node) {
      for (size_t rail = 0; rail < rails; ++rail) row[rail] = std::max(row[rail], busy[node * rails + rail] / bound);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void DrawNics(const std::vector<std::vector<double>>& rows, double x, double y, double cell, double height,
              const char* direction, Svg* svg) {
  for (size_t r = 0; r < rows.size(); ++r) {
    DrawRow(rows[r], x, y + static_cast<double>(r) * (height + 1), cell, height,
            absl::StrFormat("%s, row %d", direction, r), svg);
  }
}

std::string NicMap(const PolicyResult& policy, size_t rails) {
  const Details& details = *policy.details;
  const double bound = details.bound_seconds > 0 ? details.bound_seconds : 1;
  const auto send = NicRows(details.send_busy, rails, bound);
  const auto receive = NicRows(details.receive_busy, rails, bound);
  const double height = send.size() > 16 ? 6 : send.size() > 8 ? 9 : 13;
  const double cell = std::clamp(96.0 / static_cast<double>(rails), 1.5, 24.0);
  const double width = cell * static_cast<double>(rails);
  const double top = 34;
  const double bottom = top + static_cast<double>(send.size()) * (height + 1);
  const double left = 22;
  Svg svg(left + 2 * width + 20, bottom + 22, absl::StrCat("NICs under ", policy.policy));
  svg.Text(left, 13, policy.policy, "start", "strong");
  svg.Text(left + width / 2, 28, "sending", "middle", "quiet");
  svg.Text(left + width * 1.5 + 16, 28, "receiving", "middle", "quiet");
  DrawNics(send, left, top, cell, height, "sending", &svg);
  DrawNics(receive, left + width + 16, top, cell, height, "receiving", &svg);
  svg.Upwards(12, top + (bottom - top) / 2, "nodes");
  svg.Text(left + width / 2, bottom + 15, "rails", "middle", "quiet");
  svg.Text(left + width * 1.5 + 16, bottom + 15, "rails", "middle", "quiet");
  return std::move(svg).Finish();
}

std::string Swatches(const char* css, int first) {
  std::string out = "<b>";
  for (int shade = first; shade <= kShades; ++shade) absl::StrAppend(&out, "<i class=\"", css, shade, "\"></i>");
  return out + "</b>";
}

}  // namespace

std::string NicMaps(const PointResult& point) {
  std::string out;
  for (const PolicyResult& policy : point.policies) {
    if (!policy.details.has_value() || point.rail_speeds.empty()) continue;
    absl::StrAppend(&out, "<figure>", NicMap(policy, point.rail_speeds.size()), "</figure>\n");
  }
  return out;
}

std::string HeatLegend() {
  return absl::StrCat("<p class=\"legend\">idle ", Swatches("n", 0), " at the bound ", Swatches("x", 1),
                      " 5.7 x and more</p>\n");
}

std::string SweepLegend() {
  return absl::StrCat("<p class=\"legend\">at the bound ", Swatches("m", 1), " 5.7 x and more, or never</p>\n");
}

}  // namespace railsd::sim
