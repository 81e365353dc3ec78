#include "client/railsctl/table.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "client/railsctl/printable.h"

namespace rails::ctl {

std::string Paint(absl::string_view text, Mark mark, bool color) {
  if (!color || mark == Mark::kNone) return std::string(text);
  const char* code = mark == Mark::kGood ? "\033[32m" : mark == Mark::kWarn ? "\033[33m" : "\033[1;31m";
  return absl::StrCat(code, text, "\033[0m");
}

void Table::AddRow(std::vector<Cell> cells) {
  cells.resize(columns_.size(), Cell(""));
  for (Cell& cell : cells) cell.text = Printable(cell.text);  // trainers choose names
  rows_.push_back(std::move(cells));
}

std::string Table::Render(bool color) const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = DisplayWidth(columns_[c].header);
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[c].text));
    widths.push_back(width);
  }
  std::string out;
  const auto add_line = [&](auto&& cell_at, bool paint) {
    std::string line;
    std::string blanks;  // pending, so that no line ends in blanks
    for (size_t c = 0; c < columns_.size(); ++c) {
      const Cell& cell = cell_at(c);
      const std::string padding(widths[c] - DisplayWidth(cell.text), ' ');
      if (columns_[c].align == Align::kRight) blanks += padding;
      if (!cell.text.empty()) {
        line += blanks + Paint(cell.text, cell.mark, paint);
        blanks.clear();
      }
      if (columns_[c].align == Align::kLeft) blanks += padding;
      blanks += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  };
  std::vector<Cell> headers;
  for (const Column& column : columns_) headers.emplace_back(column.header);
  add_line([&](size_t c) -> const Cell& { return headers[c]; }, false);
  for (const auto& row : rows_) add_line([&](size_t c) -> const Cell& { return row[c]; }, color);
  return out;
}

std::string Bar(double value, double max, size_t width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  size_t eighths = 0;
  if (value > 0 && max > 0) {
    eighths = static_cast<size_t>(std::lround(std::min(value / max, 1.0) * static_cast<double>(width * 8)));
    eighths = std::max<size_t>(eighths, 1);
  }
  std::string out;
  for (size_t i = 0; i < eighths / 8; ++i) out += "█";
  out += kEighths[eighths % 8];
  out.append(width - std::min(width, (eighths + 7) / 8), ' ');
  return out;
}

}  // namespace rails::ctl
