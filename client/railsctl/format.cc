#include "client/railsctl/format.h"

#include <cmath>
#include <initializer_list>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace rails::ctl {
namespace {

struct Unit {
  absl::string_view name;  // lower case
  double factor;
};

constexpr Unit kByteUnits[] = {{"", 1},
                               {"b", 1},
                               {"k", 1024.0},
                               {"ki", 1024.0},
                               {"kib", 1024.0},
                               {"kb", 1e3},
                               {"m", 1048576.0},
                               {"mi", 1048576.0},
                               {"mib", 1048576.0},
                               {"mb", 1e6},
                               {"g", 1073741824},
                               {"gi", 1073741824},
                               {"gib", 1073741824},
                               {"gb", 1e9},
                               {"t", 1099511627776.0},
                               {"tb", 1e12},
                               {"tib", 1099511627776.0}};

constexpr Unit kRateUnits[] = {{"bit", 1 / 8.0},   {"kbit", 1e3 / 8}, {"mbit", 1e6 / 8},    {"gbit", 1e9 / 8},
                               {"tbit", 1e12 / 8}, {"b/s", 1},        {"kb/s", 1e3},        {"mb/s", 1e6},
                               {"gb/s", 1e9},      {"kib/s", 1024.0}, {"mib/s", 1048576.0}, {"gib/s", 1073741824}};

// Splits "1.5MiB" into 1.5 and "mib". False if the text does not begin with a number.
bool SplitQuantity(absl::string_view text, double* value, std::string* unit) {
  text = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) ++digits;
  if (!absl::SimpleAtod(text.substr(0, digits), value)) return false;
  *unit = absl::AsciiStrToLower(absl::StripAsciiWhitespace(text.substr(digits)));
  return true;
}

template <size_t N>
const Unit* FindUnit(const Unit (&units)[N], absl::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

// Three significant figures for numbers from 1 to 1023.
std::string Figures(double value) {
  if (value < 9.995) return absl::StrFormat("%.2f", value);
  if (value < 99.95) return absl::StrFormat("%.1f", value);
  return absl::StrFormat("%.0f", value);
}

std::string Scaled(double value, double base, std::initializer_list<const char*> units) {
  auto unit = units.begin();
  while (value >= base * 0.9995 && unit + 1 != units.end()) {
    value /= base;
    ++unit;
  }
  return absl::StrCat(Figures(value), " ", *unit);
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  double value = 0;
  std::string unit_name;
  if (SplitQuantity(text, &value, &unit_name)) {
    const Unit* unit = FindUnit(kByteUnits, unit_name);
    if (unit != nullptr && value * unit->factor < 9.2e18)
      return static_cast<uint64_t>(std::llround(value * unit->factor));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no number of bytes; write for example 4096, 64KiB, 16MiB or 2GB"));
}

absl::StatusOr<uint64_t> ParseRate(absl::string_view text) {
  // Refuses "400Gb/s": its writer means bits, but units ignore case, so it would be read as bytes.
  if (const absl::string_view unit = absl::StripSuffix(text, "/s"); absl::EndsWith(unit, "b")) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' may be bits or bytes; write for example 400gbit or 50GB/s"));
  }
  double value = 0;
  std::string unit_name;
  if (SplitQuantity(text, &value, &unit_name)) {
    const Unit* unit = FindUnit(kRateUnits, unit_name);
    if (unit == nullptr) unit = FindUnit(kRateUnits, absl::StripSuffix(unit_name, "/s"));
    if (unit != nullptr && value > 0 && value * unit->factor < 9.2e18) {
      return static_cast<uint64_t>(std::llround(value * unit->factor));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no rate; write for example 200mbit, 10Gbit/s or 25MB/s"));
}

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(std::string(text), &duration)) {
    duration = absl::ZeroDuration();
  }
  if (duration > absl::ZeroDuration() && duration <= absl::Hours(24 * 365)) return duration;
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is no time above zero; write for example 500ms, 5s or 2m"));
}

std::string NotBelowZero(const std::string& text) {
  return absl::StartsWith(text, "-") ? absl::StrCat("'", text, "' is below zero") : "";
}

std::string FormatCount(uint64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  return Scaled(static_cast<double>(bytes), 1024, {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"});
}

std::string FormatBitRate(double bytes_per_second) {
  if (!(bytes_per_second > 0)) return "-";
  return Scaled(bytes_per_second * 8, 1000, {"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"});
}

std::string FormatByteRate(double bytes_per_second) {
  if (!(bytes_per_second > 0)) return "-";
  return Scaled(bytes_per_second, 1000, {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"});
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds == 0) return "0 s";
  if (seconds < 0.5e-9) return "<1 ns";
  if (seconds < 0.9995e-6) return absl::StrFormat("%.0f ns", seconds * 1e9);
  if (seconds < 0.9995e-3) return absl::StrCat(Figures(seconds * 1e6), " us");
  if (seconds < 0.9995) return absl::StrCat(Figures(seconds * 1e3), " ms");
  if (seconds < 59.95) return absl::StrCat(Figures(seconds), " s");
  const auto whole = static_cast<uint64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh %02dm", whole / 3600, whole / 60 % 60);
  return absl::StrFormat("%dd %02dh", whole / 86400, whole / 3600 % 24);
}

std::string FormatRatio(double ratio) {
  if (!std::isfinite(ratio) || ratio <= 0) return "-";
  return absl::StrFormat("%.*f", ratio < 100 ? 3 : 0, ratio);
}

}  // namespace rails::ctl
