// Colours of the page in its light and its dark theme. Private to sim/report.
#ifndef RAILSD_SIM_REPORT_COLORS_H_
#define RAILSD_SIM_REPORT_COLORS_H_

#include <cstddef>
#include <string>

namespace railsd::sim {

inline constexpr size_t kSeries = 13;  // colours of policies; more policies begin again
inline constexpr int kShades = 16;     // of a map of NICs: up to the bound, and as many above it; of a sweep: above it

enum class Theme { kLight, kDark };

// All colours are "#rrggbb".
std::string SeriesColor(size_t series, Theme theme);
// Colour in maps of NICs. `shade`: 0 is idle, kShades at the bound, 2 * kShades the end. Grey up to the bound, warm
// above it. In the light theme each is darker than the one before, in the dark theme brighter.
std::string HeatColor(int shade, Theme theme);
// Colour in the map of a sweep: 1 is little above the bound, kShades the end. Darker or brighter in the same way.
std::string RatioColor(int shade, Theme theme);
// Colour of text on RatioColor().
std::string RatioTextColor(int shade, Theme theme);

// How bright a colour is for people: 0 is black, 1 is white (WCAG's relative luminance).
double Luminance(const std::string& color);

// Class of a time over the bound, or of a use, in maps of NICs: "n0" is idle, "n16" at the bound, "x16" the end.
std::string HeatClass(double value);
// Class of a completion time over the bound in the map of a sweep: "m0", without a colour, at the bound; "m16" the end,
// as for one that is infinite.
std::string RatioClass(double ratio);

// The style sheet with all colours and classes.
std::string ColorStyle();

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_COLORS_H_
