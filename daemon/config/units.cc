#include "daemon/config/units.h"

#include <arpa/inet.h>
#include <grp.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/config/network.h"

namespace railsd {
namespace {

struct Unit {
  absl::string_view name;
  uint64_t factor;
};

constexpr Unit kByteUnits[] = {{"", 1},
                               {"B", 1},
                               {"KB", 1'000},
                               {"MB", 1'000'000},
                               {"GB", 1'000'000'000},
                               {"TB", 1'000'000'000'000},
                               {"KiB", uint64_t{1} << 10},
                               {"MiB", uint64_t{1} << 20},
                               {"GiB", uint64_t{1} << 30},
                               {"TiB", uint64_t{1} << 40}};
constexpr Unit kBitUnits[] = {
    {"bit", 1}, {"kbit", 1'000}, {"mbit", 1'000'000}, {"gbit", 1'000'000'000}, {"tbit", 1'000'000'000'000}};

// Splits "12.5mbit" into the number and the unit.
std::pair<absl::string_view, absl::string_view> SplitUnit(absl::string_view text) {
  const auto end =
      std::find_if_not(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c) || c == '.'; });
  const size_t digits = static_cast<size_t>(end - text.begin());
  return {text.substr(0, digits), absl::StripAsciiWhitespace(text.substr(digits))};
}

}  // namespace

absl::StatusOr<uint64_t> ParseNumber(absl::string_view text) {
  uint64_t number = 0;
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(text, &number)) return absl::InvalidArgumentError("not a whole number");
  return number;
}

std::string FormatNumber(uint64_t number) { return absl::StrCat(number); }

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  const auto [digits, name] = SplitUnit(text);
  uint64_t number = 0;
  if (digits.empty() || absl::StrContains(digits, '.') || !absl::SimpleAtoi(digits, &number)) {
    return absl::InvalidArgumentError("not a size; write a whole number of bytes, as in 65536, 64KiB or 1MB");
  }
  for (const Unit& unit : kByteUnits) {
    if (unit.name != name) continue;
    if (number > std::numeric_limits<uint64_t>::max() / unit.factor) {
      return absl::InvalidArgumentError("too large for 64 bits");
    }
    return number * unit.factor;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown unit '", name, "'; units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"));
}

std::string FormatBytes(uint64_t bytes) {
  for (auto unit = std::rbegin(kByteUnits); absl::EndsWith(unit->name, "iB"); ++unit) {
    if (bytes != 0 && bytes % unit->factor == 0) return absl::StrCat(bytes / unit->factor, unit->name);
  }
  return absl::StrCat(bytes);
}

absl::StatusOr<uint64_t> ParseRate(absl::string_view text) {
  const auto [digits, name] = SplitUnit(text);
  double number = 0;
  if (digits.empty() || std::count(digits.begin(), digits.end(), '.') > 1 || !absl::SimpleAtod(digits, &number)) {
    return absl::InvalidArgumentError("not a rate; write a number and a unit, as in 200mbit or 2.5gbit");
  }
  for (const Unit& unit : kBitUnits) {
    if (unit.name != name) continue;
    const double bits = number * static_cast<double>(unit.factor);
    // Slower rails would never finish a chunk; faster ones do not exist.
    if (bits < 8e3 || bits > 1e13) return absl::InvalidArgumentError("outside 8kbit to 10tbit");
    return static_cast<uint64_t>(std::llround(bits / 8));
  }
  if (name.empty()) return absl::InvalidArgumentError("needs a unit: bit, kbit, mbit, gbit or tbit");
  return absl::InvalidArgumentError(absl::StrCat("unknown unit '", name, "'; units are bit, kbit, mbit, gbit, tbit"));
}

std::string FormatRate(uint64_t bytes_per_s) {
  const uint64_t bits = bytes_per_s * 8;
  for (auto unit = std::rbegin(kBitUnits); unit != std::rend(kBitUnits); ++unit) {
    if (bits % unit->factor == 0) return absl::StrCat(bits / unit->factor, unit->name);
  }
  return absl::StrCat(bits, "bit");
}

absl::StatusOr<absl::Duration> ParseTime(absl::string_view text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError("not a time; write a number and a unit, as in 500ms, 10s, 5m or 1h30m");
  }
  if (duration < absl::ZeroDuration()) return absl::InvalidArgumentError("negative");
  if (duration == absl::InfiniteDuration()) return absl::InvalidArgumentError("must be finite");
  return duration;
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, bool port_optional) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat(why, port_optional ? "; write an address, with or without a port, as in 10.0.0.1 or [fd00::1]:7471"
                                        : "; write host and port, as in 10.0.0.1:7471 or [fd00::1]:7471"));
  };
  HostPort out;
  absl::string_view port = text;  // with its colon
  if (absl::ConsumePrefix(&port, "[")) {
    const size_t close = port.find(']');
    if (close == absl::string_view::npos) return bad("a bracket is not closed");
    out.host = std::string(port.substr(0, close));
    port.remove_prefix(close + 1);
    if (!port.empty() && port[0] != ':') return bad("text other than a port follows the bracket");
  } else {
    const size_t colon = text.find(':');
    const bool several = colon != text.rfind(':');  // a bare IPv6 address
    out.host = std::string(several ? text : text.substr(0, colon));
    if (several && !IsNumericAddress(out.host) && !LooksLikeNetwork(out.host)) return bad("more than one colon");
    port.remove_prefix(out.host.size());
  }
  if (out.host.empty()) return bad("the host is missing");
  if (port.empty()) return port_optional ? absl::StatusOr<HostPort>(out) : bad("the port is missing");
  port.remove_prefix(1);
  uint32_t number = 0;
  if (port.empty() || !std::all_of(port.begin(), port.end(), absl::ascii_isdigit) || !absl::SimpleAtoi(port, &number) ||
      number > 65535) {
    return bad("the port is not a number from 0 to 65535");
  }
  out.port = static_cast<uint16_t>(number);
  return out;
}

std::string FormatHostPort(const HostPort& address) {
  const bool brackets = absl::StrContains(address.host, ':');
  return absl::StrCat(brackets ? "[" : "", address.host, brackets ? "]:" : ":", address.port);
}

bool IsNumericAddress(const std::string& host) {
  unsigned char buffer[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), buffer) == 1 || inet_pton(AF_INET6, host.c_str(), buffer) == 1;
}

bool HasOpenBracket(absl::string_view pattern) {
  const size_t open = pattern.rfind('[');
  return open != absl::string_view::npos && pattern.find(']', open) == absl::string_view::npos;
}

absl::StatusOr<RdmaDeviceName> ParseRdmaDevice(absl::string_view text) {
  RdmaDeviceName out;
  const size_t slash = text.find('/');
  const absl::string_view name = text.substr(0, slash);
  // The kernel's own limit, IB_DEVICE_NAME_MAX, counts the final zero.
  const bool known = !name.empty() && name.size() < 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("._-*?[]!", absl::string_view(&c, 1));
  });
  if (!known) return absl::InvalidArgumentError("not a device; write its name, as in mlx5_0, mlx5_0/1 or mlx5_*");
  if (HasOpenBracket(name)) return absl::InvalidArgumentError("'[' without its ']'");
  out.name = std::string(name);
  if (slash == absl::string_view::npos) return out;
  const absl::string_view port = text.substr(slash + 1);
  const bool digits = !port.empty() && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  if (!digits || !absl::SimpleAtoi(port, &out.port) || out.port < 1 || out.port > 255) {
    return absl::InvalidArgumentError("the port is not a number from 1 to 255");
  }
  return out;
}

bool IsVerbsAddress(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, kVerbsScheme)) return false;
  const absl::StatusOr<RdmaDeviceName> device = ParseRdmaDevice(text);
  return device.ok() && device->port != 0 && !device->pattern();
}

bool IsName(absl::string_view text, size_t max_length) {
  return !text.empty() && text.size() <= max_length && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

std::optional<uint32_t> GroupNumber(const std::string& name) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(name, &number)) return number;
  const group* entry = getgrnam(name.c_str());
  if (entry == nullptr) return std::nullopt;
  return entry->gr_gid;
}

}  // namespace railsd
