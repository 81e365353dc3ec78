#include "client/railsctl/printable.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace rails::ctl {
namespace {

struct Character {
  uint32_t point = 0;
  size_t bytes = 0;  // 0: no UTF-8
};

// Decodes the first character of `text`, which must not be empty.
Character Decode(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t point = lead & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    point = point << 6 | (next & 0x3F);
  }
  const bool overlong = (bytes == 3 && point < 0x800) || (bytes == 4 && point < 0x10000);
  if (overlong) return {};
  return {point, bytes};
}

bool IsOneColumn(uint32_t point) {
  struct Range {
    uint32_t first, last;
  };
  constexpr Range kRanges[] = {{0x20, 0x7E},     {0xA1, 0xAC},    {0xAE, 0x2AF},  {0x391, 0x3A1},
                               {0x3A3, 0x3FF},   {0x400, 0x482},  {0x48A, 0x52F},  // Cyrillic without its marks
                               {0x2026, 0x2026}, {0x2580, 0x259F}};
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [point](const Range& range) { return range.first <= point && point <= range.last; });
}

}  // namespace

size_t DisplayWidth(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Printable(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character character = Decode(text);
    const size_t bytes = std::max<size_t>(character.bytes, 1);
    if (character.bytes > 0 && IsOneColumn(character.point)) {
      absl::StrAppend(&out, text.substr(0, bytes));
    } else {
      out += '?';
    }
    text.remove_prefix(bytes);
  }
  return out;
}

std::string Head(const std::string& text, size_t width) {
  size_t end = 0;
  for (size_t columns = 0; end < text.size(); ++end) {
    if ((static_cast<unsigned char>(text[end]) & 0xC0) != 0x80 && columns++ == width) break;
  }
  return text.substr(0, end);
}

std::string Clip(const std::string& text, size_t width) {
  if (DisplayWidth(text) <= width) return text;
  return width == 0 ? "" : Head(text, width - 1) + "…";
}

}  // namespace rails::ctl
