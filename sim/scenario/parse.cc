#include "sim/scenario/parse.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/format.h"

namespace railsd::sim {
namespace {

constexpr double kFastestRail = 1e15;  // bytes per second
constexpr size_t kMostRails = 1024;
constexpr size_t kMostChanges = 1000;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// Puts the mistaken part of a value in front of its mistake. The parsers of quantities have done so themselves.
std::string MistakeOf(absl::string_view part, const std::string& mistake) {
  if (mistake.empty() || absl::StartsWith(mistake, "'")) return mistake;
  return absl::StrCat("'", part, "' ", mistake);
}

std::string ParsePlace(const std::string& text, RailChange* change) {
  const std::pair<std::string, std::string> place = absl::StrSplit(text, absl::MaxSplits('@', 1));
  if (std::string mistake = SetInteger(place.first, 0, kMostRails - 1, &change->rail); !mistake.empty()) {
    return MistakeOf(place.first, absl::StrCat(mistake, "; give the number of a rail"));
  }
  if (!absl::StrContains(text, '@')) return "";
  size_t node = 0;
  if (std::string mistake = SetInteger(place.second, 0, UINT32_MAX, &node); !mistake.empty()) {
    return MistakeOf(place.second, absl::StrCat(mistake, "; give the number of a node"));
  }
  change->node = node;
  return "";
}

std::string ParseChange(absl::string_view text, RailChange* change) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() != 3) {
    return MistakeOf(text, "is not RAIL:TIME:SPEED or RAIL@NODE:TIME:SPEED; write for example 3:100us:0");
  }
  if (std::string mistake = ParsePlace(parts[0], change); !mistake.empty()) return mistake;
  if (std::string mistake = ParseTime(parts[1], &change->at); !mistake.empty()) return MistakeOf(parts[1], mistake);
  return MistakeOf(parts[2], ParseSpeed(parts[2], true, &change->bytes_per_second));
}

// Whether a text is a number above or at zero that lacks a unit.
bool IsPlainNumber(const std::string& text) {
  double number = 0;
  return absl::SimpleAtod(text, &number) && text.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace

std::string ParseInteger(const std::string& text, uint64_t least, uint64_t most, uint64_t* value) {
  uint64_t parsed = 0;
  if (!absl::SimpleAtoi(text, &parsed) || text[0] == '-') {
    double real = 0;
    if (absl::SimpleAtod(text, &real) && real < 0) return "is below zero";
    return absl::StrContains(text, ',') ? "is no whole number; for a sweep give a list in YAML, or the option twice"
                                        : "is no whole number";
  }
  if (parsed < least || parsed > most) return absl::StrCat("is not between ", least, " and ", most);
  *value = parsed;
  return "";
}

std::string ParseReal(const std::string& text, double least, double most, double* value) {
  double parsed = 0;
  if (!absl::SimpleAtod(text, &parsed) || !std::isfinite(parsed)) return "is no number";
  if (parsed < least || parsed > most) return absl::StrCat("is not between ", least, " and ", most);
  *value = parsed;
  return "";
}

std::string ParseSize(const std::string& text, uint64_t least, uint64_t* value) {
  const absl::StatusOr<uint64_t> parsed = rails::ctl::ParseBytes(text);
  if (!parsed.ok()) return Message(parsed.status());
  if (*parsed < least) return absl::StrCat("is below ", least, least == 1 ? " byte" : " bytes");
  *value = *parsed;
  return "";
}

std::string ParseSpeed(const std::string& text, bool zero_allowed, double* value) {
  double number = 0;
  if (absl::SimpleAtod(text, &number) && number == 0) {
    if (!zero_allowed) return "is zero; a rate must be above it";
    *value = 0;
    return "";
  }
  if (absl::StartsWith(text, "-")) return "is below zero";
  const absl::StatusOr<uint64_t> parsed = rails::ctl::ParseRate(text);
  if (!parsed.ok()) return Message(parsed.status());
  if (*parsed == 0 || static_cast<double>(*parsed) > kFastestRail) return "is not between 1B/s and 1e15 B/s";
  *value = static_cast<double>(*parsed);
  return "";
}

std::string ParseSpeeds(const std::string& text, std::vector<double>* speeds) {
  std::vector<double> parsed;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    double speed = 0;
    const std::string one(absl::StripAsciiWhitespace(part));
    if (std::string mistake = ParseSpeed(one, true, &speed); !mistake.empty()) return MistakeOf(one, mistake);
    parsed.push_back(speed);
  }
  if (parsed.size() > kMostRails) return absl::StrCat("has more than ", kMostRails, " speeds");
  if (std::all_of(parsed.begin(), parsed.end(), [](double speed) { return speed == 0; })) {
    return "is zero; at least one rail must have a rate above it";
  }
  *speeds = std::move(parsed);
  return "";
}

std::string ParseTime(const std::string& text, absl::Duration* value, absl::Duration most) {
  absl::Duration parsed;
  if (!absl::ParseDuration(text, &parsed)) {
    if (IsPlainNumber(text)) return absl::StrCat("is no time without a unit; write for example ", text, "us");
    return "is no time; write for example 15us, 1.5ms or 2s";
  }
  if (parsed < absl::ZeroDuration()) return "is below zero";
  if (parsed > most) return absl::StrCat("is above ", absl::FormatDuration(most));
  *value = parsed;
  return "";
}

std::string ParseSeconds(const std::string& text, double* value) {
  absl::Duration duration;
  std::string mistake = ParseTime(text, &duration);
  if (mistake.empty()) *value = absl::ToDoubleSeconds(duration);
  return mistake;
}

std::string ParseFlag(const std::string& text, bool* value) {
  if (text != "true" && text != "false") return "is neither true nor false";
  *value = text == "true";
  return "";
}

std::string ParseFlops(const std::string& text, double* value) {
  absl::string_view number = text;
  double factor = 0;
  constexpr std::pair<absl::string_view, double> kUnits[] = {{"gflops", 1e9}, {"tflops", 1e12}, {"pflops", 1e15}};
  const std::string lower = absl::AsciiStrToLower(text);
  for (const auto& [unit, times] : kUnits) {
    if (!absl::EndsWith(lower, unit)) continue;
    number.remove_suffix(unit.size());
    factor = times;
  }
  double parsed = 0;
  if (factor == 0 || !absl::SimpleAtod(number, &parsed) || !std::isfinite(parsed)) {
    return "is no rate of a device; write for example 989tflops";
  }
  if (parsed * factor < 1 || parsed * factor > 1e24) return "is not between 1 and 1e24 operations a second";
  *value = parsed * factor;
  return "";
}

std::string ParseChanges(const std::string& text, std::vector<RailChange>* changes) {
  std::vector<RailChange> parsed;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    RailChange change;
    if (std::string mistake = ParseChange(absl::StripAsciiWhitespace(part), &change); !mistake.empty()) return mistake;
    parsed.push_back(change);
  }
  if (parsed.size() > kMostChanges) return absl::StrCat("has more than ", kMostChanges, " changes");
  *changes = std::move(parsed);
  return "";
}

std::string ParseWord(const std::string& text, const std::vector<std::string>& names, size_t* place) {
  const auto at = std::find(names.begin(), names.end(), text);
  if (at == names.end()) return absl::StrCat("is none of ", absl::StrJoin(names, ", "));
  *place = static_cast<size_t>(at - names.begin());
  return "";
}

}  // namespace railsd::sim
