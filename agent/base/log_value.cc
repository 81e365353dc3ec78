#include "agent/base/log_value.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace railsd {

std::string LogValue(absl::string_view value) {
  const bool plain = !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != '"' && c != '\\' && c != '=';
  });
  return plain ? std::string(value) : absl::StrCat("\"", absl::CHexEscape(value), "\"");
}

}  // namespace railsd
