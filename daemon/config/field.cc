#include "daemon/config/field.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/config/network.h"
#include "daemon/config/port_rule.h"

namespace railsd {

Field FileMode(const char* name, uint32_t& member) {
  const auto set = [&member](const std::string& text) {
    const bool octal = text.size() == 4 && text[0] == '0' && text.find_first_not_of("01234567") == std::string::npos;
    if (octal) member = static_cast<uint32_t>(std::stoul(text, nullptr, 8));
    return octal ? "" : "not a file mode; write four octal digits, as in \"0660\"";
  };
  return {.name = name, .options = {.quoted = true}, .text = absl::StrFormat("%04o", member), .set = set};
}

Mistake Printable(size_t max_length, bool may_be_empty) {
  return [=](const std::string& text) -> std::string {
    if (text.size() > max_length) return absl::StrCat("longer than ", max_length, " bytes");
    const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
    if (std::any_of(text.begin(), text.end(), control)) return "holds control characters";
    // Other bytes may not be UTF-8, and then PrintConfig() could not be read back.
    if (!std::all_of(text.begin(), text.end(), absl::ascii_isascii)) return "holds bytes that are not ASCII";
    return may_be_empty || !text.empty() ? "" : "empty";
  };
}

Mistake AbsolutePath(size_t max_length, bool may_be_empty) {
  return [=](const std::string& text) -> std::string {
    const std::string why = Printable(max_length, may_be_empty)(text);
    return !why.empty() || text.empty() || text[0] == '/' ? why : "not an absolute path";
  };
}

Mistake OneOf(const std::vector<std::string>& names, const char* hint) {
  return [=](const std::string& text) -> std::string {
    if (std::find(names.begin(), names.end(), text) != names.end()) return "";
    if (hint != nullptr) return hint;
    return absl::StrCat("not one of ", absl::StrJoin(names.begin() + (names[0].empty() ? 1 : 0), names.end(), ", "));
  };
}

Mistake Name(size_t max_length) {
  return [=](const std::string& text) -> std::string {
    if (IsName(text, max_length)) return "";
    return absl::StrCat("not a name: 1 to ", max_length, " of letters, digits, '.', '_' and '-'");
  };
}

std::string TenantNameMistake(const std::string& text) {
  if (std::string why = Printable(4096, false)(text); !why.empty()) return why;
  const auto known = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; };
  if (text.size() <= 32 && std::all_of(text.begin(), text.end(), known)) return "";
  return "not a tenant's name: 1 to 32 of a-z, 0-9 and '-'";
}

std::string DeviceMistake(const std::string& text) {
  const std::string why = Printable(80)(text);
  return why.empty() ? std::string(ParseRdmaDevice(text).status().message()) : why;
}

std::string PortRuleMistake(const std::string& text) {
  const std::string why = Printable(80)(text);
  return why.empty() ? std::string(ParsePortRule(text).status().message()) : why;
}

std::string ListenMistake(const std::string& text) {
  const absl::StatusOr<HostPort> address = ParseHostPort(text, /*port_optional=*/false);
  if (!address.ok() || !LooksLikeNetwork(address->host)) return HostAndPort(true)(text);
  return std::string(IpNetwork::Parse(address->host).status().message());
}

std::string MetricsListenMistake(const std::string& text) {
  // Debian builds the library without IPv6.
  return absl::StartsWith(text, "[") ? "the HTTP library has no IPv6; give an IPv4 address" : ListenMistake(text);
}

Mistake HostAndPort(bool may_be_empty) {
  return [=](const std::string& text) -> std::string {
    const absl::StatusOr<HostPort> address = ParseHostPort(text, /*port_optional=*/false);
    if (may_be_empty && text.empty()) return "";
    if (!address.ok()) return std::string(address.status().message());
    const bool known = IsNumericAddress(address->host) || IsName(address->host, 253);
    return known ? "" : "not a host name or an address";
  };
}

std::string IpAddressMistake(const std::string& text) {
  const absl::StatusOr<HostPort> address = ParseHostPort(text, /*port_optional=*/true);
  if (!address.ok()) return std::string(address.status().message());
  return IsNumericAddress(address->host) ? "" : "not an IPv4 or IPv6 address";
}

Field Text(const char* name, std::string& member, const Mistake& mistake, FieldOptions options) {
  const auto set = [=, &member](const std::string& text) {
    std::string why = mistake(text);
    if (why.empty()) member = text;
    return why;
  };
  options.quoted = !options.lenient;
  return {.name = name, .options = options, .text = member, .set = set};
}

Field TextList(const char* name, std::vector<std::string>& members, size_t max_items, const Mistake& mistake) {
  const auto element = [mistake](std::string& member) { return Text("", member, mistake); };
  return List(name, members, max_items, element, {.flow = true});
}

}  // namespace railsd
