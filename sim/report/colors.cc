#include "sim/report/colors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace railsd::sim {
namespace {

constexpr size_t kDashedFrom = 6;      // later curves differ by dashes as well as by colour
constexpr double kAtBound = 1.02;      // use of a NIC up to which it counts as at the bound
constexpr double kModelError = 1.001;  // completion over the bound up to which there is no difference
constexpr double kDoublings = 2.5;     // the last shade begins there: 5.7 times the bound
constexpr double kBend = 0.7;          // below 1: more shades close to the bound

using Palette = std::array<const char*, kSeries>;
constexpr Palette kLightSeries = {"#6b7580", "#1f6feb", "#00a08b", "#ab75ff", "#f76019", "#da4899", "#a08e00",
                                  "#b91502", "#008900", "#00403a", "#0033ab", "#65364d", "#8333b7"};
constexpr Palette kDarkSeries = {"#9aa5b1", "#6ea3f2", "#049a96", "#ab5cde", "#ff9e61", "#fb63aa", "#ffdd00",
                                 "#e44b0a", "#3cc349", "#5fff99", "#42e5ff", "#9c8600", "#f1b0ff"};

// A colour in OKLCH (Ottosson 2020), where equal steps of lightness look equal.
struct Oklch {
  double lightness, chroma, hue;  // hue in degrees
};

// From one colour to another; each component moves evenly.
struct Ramp {
  Oklch from, to;
  Oklch At(double part) const {
    const auto mix = [part](double a, double b) { return a + (b - a) * part; };
    return {mix(from.lightness, to.lightness), mix(from.chroma, to.chroma), mix(from.hue, to.hue)};
  }
};

constexpr Ramp kLightCool = {{0.955, 0.006, 250}, {0.73, 0.035, 250}};
constexpr Ramp kLightWarm = {{0.70, 0.13, 62}, {0.33, 0.12, 25}};
constexpr Ramp kDarkCool = {{0.265, 0.012, 250}, {0.50, 0.035, 250}};
constexpr Ramp kDarkWarm = {{0.53, 0.15, 32}, {0.90, 0.13, 85}};
constexpr Ramp kLightRatio = {{0.955, 0.03, 80}, {0.36, 0.13, 25}};
constexpr Ramp kDarkRatio = {{0.29, 0.04, 30}, {0.90, 0.13, 85}};

// Channels of an sRGB colour in linear light, clipped to what a screen can show.
std::string Hex(double red, double green, double blue) {
  std::string out = "#";
  for (const double linear : {red, green, blue}) {
    const double value = std::clamp(linear, 0.0, 1.0);
    const double coded = value <= 0.0031308 ? 12.92 * value : 1.055 * std::pow(value, 1 / 2.4) - 0.055;
    absl::StrAppendFormat(&out, "%02x", static_cast<int>(std::lround(coded * 255)));
  }
  return out;
}

std::string ToHex(const Oklch& color) {
  const double angle = color.hue * std::numbers::pi / 180;
  const double a = color.chroma * std::cos(angle);
  const double b = color.chroma * std::sin(angle);
  const double l = std::pow(color.lightness + 0.3963377774 * a + 0.2158037573 * b, 3);
  const double m = std::pow(color.lightness - 0.1055613458 * a - 0.0638541728 * b, 3);
  const double s = std::pow(color.lightness - 0.0894841775 * a - 1.2914855480 * b, 3);
  return Hex(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
             -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
             -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s);
}

// Shade 1 to kShades of a value above the bound.
int ShadeAbove(double value) {
  const double part = std::isfinite(value) ? std::log2(std::max(value, 1.0)) / kDoublings : 1;
  return std::clamp(static_cast<int>(std::ceil(std::pow(part, kBend) * kShades)), 1, kShades);
}

std::string Variables(Theme theme) {
  std::string css = ":root {";
  for (size_t i = 0; i < kSeries; ++i) absl::StrAppend(&css, " --s", i, ": ", SeriesColor(i, theme), ";");
  for (int i = 0; i <= kShades; ++i) absl::StrAppend(&css, " --n", i, ": ", HeatColor(i, theme), ";");
  for (int i = 1; i <= kShades; ++i) {
    absl::StrAppend(&css, " --x", i, ": ", HeatColor(kShades + i, theme), "; --m", i, ": ", RatioColor(i, theme),
                    "; --t", i, ": ", RatioTextColor(i, theme), ";");
  }
  return css + " }\n";
}

}  // namespace

std::string SeriesColor(size_t series, Theme theme) {
  return (theme == Theme::kLight ? kLightSeries : kDarkSeries)[series % kSeries];
}

std::string HeatColor(int shade, Theme theme) {
  const bool light = theme == Theme::kLight;
  if (shade <= kShades) return ToHex((light ? kLightCool : kDarkCool).At(static_cast<double>(shade) / kShades));
  return ToHex((light ? kLightWarm : kDarkWarm).At(static_cast<double>(shade - kShades - 1) / (kShades - 1)));
}

std::string RatioColor(int shade, Theme theme) {
  return ToHex((theme == Theme::kLight ? kLightRatio : kDarkRatio).At(static_cast<double>(shade - 1) / (kShades - 1)));
}

std::string RatioTextColor(int shade, Theme theme) {
  constexpr double kMiddle = 0.18;  // black and white are equally far from it
  return Luminance(RatioColor(shade, theme)) > kMiddle ? "#000000" : "#ffffff";
}

double Luminance(const std::string& color) {
  constexpr double kWeights[] = {0.2126, 0.7152, 0.0722};
  double sum = 0;
  for (size_t i = 0; i < 3; ++i) {
    int byte = 0;
    if (!absl::SimpleHexAtoi(color.substr(1 + 2 * i, 2), &byte)) return 0;
    const double value = byte / 255.0;
    sum += kWeights[i] * (value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4));
  }
  return sum;
}

std::string HeatClass(double value) {
  if (!(value > 0)) return "n0";
  if (value > kAtBound) return absl::StrCat("x", ShadeAbove(value));
  return absl::StrCat("n", std::clamp(static_cast<int>(std::ceil(value * kShades - 0.2)), 1, kShades));
}

std::string RatioClass(double ratio) { return absl::StrCat("m", ratio > kModelError ? ShadeAbove(ratio) : 0); }

std::string ColorStyle() {
  std::string css = Variables(Theme::kLight);
  absl::StrAppend(&css, "@media (prefers-color-scheme: dark) { ", Variables(Theme::kDark), "}\n");
  for (size_t i = 0; i < kSeries; ++i) {
    absl::StrAppendFormat(&css, ".s%d { fill: var(--s%d); } .curve.s%d, .cross.s%d { fill: none; stroke: var(--s%d); }",
                          i, i, i, i, i);
    absl::StrAppend(&css, i >= kDashedFrom ? absl::StrCat(" .curve.s", i, " { stroke-dasharray: 6 3; }") : "", "\n");
  }
  for (int i = 0; i <= kShades; ++i) {
    absl::StrAppendFormat(&css, ".n%d { fill: var(--n%d); background: var(--n%d); }\n", i, i, i);
    if (i == 0) continue;
    absl::StrAppendFormat(&css, ".x%d { fill: var(--x%d); background: var(--x%d); }\n", i, i, i);
    absl::StrAppendFormat(&css, ".m%d { background: var(--m%d); color: var(--t%d); }\n", i, i, i);
  }
  return css;
}

}  // namespace railsd::sim
