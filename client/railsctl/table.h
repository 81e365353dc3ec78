// Text for terminals: aligned tables and bars. Prints nothing.
#ifndef RAILS_RAILSCTL_TABLE_H_
#define RAILS_RAILSCTL_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace rails::ctl {

enum class Mark : uint8_t { kNone, kGood, kWarn, kBad };

// Wraps `text` in terminal colours if `color`.
std::string Paint(absl::string_view text, Mark mark, bool color);

struct Cell {
  Cell(std::string text, Mark mark = Mark::kNone) : text(std::move(text)), mark(mark) {}  // NOLINT: cells are text
  Cell(const char* text) : text(text) {}                                                  // NOLINT
  std::string text;
  Mark mark = Mark::kNone;
};

class Table {
 public:
  enum class Align : uint8_t { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // Missing cells are empty; cells beyond the columns are dropped.
  void AddRow(std::vector<Cell> cells);
  bool empty() const { return rows_.empty(); }
  // Renders header and rows. Every line ends with "\n" and has no trailing blanks; columns are two blanks apart.
  std::string Render(bool color) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// A bar for `value` on a scale to `max`, in eighths of a column, padded with blanks to `width`. A value above zero is
// always visible.
std::string Bar(double value, double max, size_t width);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TABLE_H_
