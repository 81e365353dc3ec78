#include "client/railsctl/top/line.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "client/railsctl/printable.h"

namespace rails::ctl {
Line& Line::Add(absl::string_view text, Mark mark) {
  parts_.emplace_back(Printable(text), mark);
  return *this;
}

Line& Line::Left(absl::string_view text, size_t width, Mark mark) {
  const std::string clipped = Clip(Printable(text), width);
  parts_.emplace_back(clipped, mark);
  parts_.emplace_back(std::string(width - DisplayWidth(clipped), ' '), Mark::kNone);
  return *this;
}

Line& Line::Right(absl::string_view text, size_t width, Mark mark) {
  const std::string clipped = Clip(Printable(text), width);
  parts_.emplace_back(std::string(width - DisplayWidth(clipped), ' '), Mark::kNone);
  parts_.emplace_back(clipped, mark);
  return *this;
}

std::string Line::Render(size_t columns, bool color) const {
  size_t total = 0;  // columns up to the last character that is no blank
  size_t before = 0;
  for (const auto& [text, mark] : parts_) {
    const size_t end = text.find_last_not_of(' ');
    if (end != std::string::npos) total = before + DisplayWidth(text.substr(0, end + 1));
    before += DisplayWidth(text);
  }
  const bool cut = total > columns;
  size_t left = cut ? std::max<size_t>(columns, 1) - 1 : total;
  std::string out;
  std::string blanks;  // pending, so that no line ends in blanks
  for (const auto& [text, mark] : parts_) {
    const std::string piece = Head(text, left);
    left -= DisplayWidth(piece);
    const size_t end = piece.find_last_not_of(' ');
    if (end == std::string::npos) {
      blanks += piece;
      continue;
    }
    absl::StrAppend(&out, blanks, Paint(piece.substr(0, end + 1), mark, color));
    blanks = piece.substr(end + 1);
  }
  return cut && columns > 0 ? absl::StrCat(out, blanks, "…") : out;
}

}  // namespace rails::ctl
