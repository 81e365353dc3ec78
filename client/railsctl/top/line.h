// One line of text for a terminal, made of columns. Whatever names and texts a daemon or a peer has given, what comes
// out neither moves the cursor nor is wider than it says.
#ifndef RAILS_RAILSCTL_TOP_LINE_H_
#define RAILS_RAILSCTL_TOP_LINE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/railsctl/table.h"

namespace rails::ctl {

// `text` with a "?" in place of each character that is not surely one column wide: control characters, bytes that are
// no UTF-8, marks that combine, wide letters. Left are ASCII, Latin, Greek, Cyrillic, "…" and the blocks of bars.
std::string Printable(absl::string_view text);

// The beginning of printable text, `width` columns at most; ends with "…" when something is missing.
std::string Clip(const std::string& text, size_t width);

class Line {
 public:
  Line() = default;
  explicit Line(absl::string_view text, Mark mark = Mark::kNone) { Add(text, mark); }

  Line& Add(absl::string_view text, Mark mark = Mark::kNone);
  // Exactly `width` columns, the text at the left (right) end of them, clipped when it is longer.
  Line& Left(absl::string_view text, size_t width, Mark mark = Mark::kNone);
  Line& Right(absl::string_view text, size_t width, Mark mark = Mark::kNone);

  // At most `columns` wide, without blanks at the end and without "\n".
  std::string Render(size_t columns, bool color) const;

 private:
  std::vector<std::pair<std::string, Mark>> parts_;  // printable
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_LINE_H_
