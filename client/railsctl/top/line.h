// One line of text for a terminal, made of columns. Names and texts from daemons and peers can neither move the cursor
// nor make the line wider.
#ifndef RAILS_RAILSCTL_TOP_LINE_H_
#define RAILS_RAILSCTL_TOP_LINE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/railsctl/table.h"

namespace rails::ctl {

class Line {
 public:
  Line() = default;
  explicit Line(absl::string_view text, Mark mark = Mark::kNone) { Add(text, mark); }

  Line& Add(absl::string_view text, Mark mark = Mark::kNone);
  // Adds exactly `width` columns with the text at the left (right) end, clipped if it is longer.
  Line& Left(absl::string_view text, size_t width, Mark mark = Mark::kNone);
  Line& Right(absl::string_view text, size_t width, Mark mark = Mark::kNone);

  // Renders at most `columns` columns, without trailing blanks and "\n".
  std::string Render(size_t columns, bool color) const;

 private:
  std::vector<std::pair<std::string, Mark>> parts_;  // printable
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_LINE_H_
