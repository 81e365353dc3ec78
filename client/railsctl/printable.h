// Text that others chose, for a terminal: names and messages of daemons, peers and trainers can neither move the cursor
// nor make a line wider.
#ifndef RAILS_RAILSCTL_PRINTABLE_H_
#define RAILS_RAILSCTL_PRINTABLE_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace rails::ctl {

// Columns of a printed UTF-8 text, counted as code points.
size_t DisplayWidth(absl::string_view text);

// Replaces each character of `text` that may not be one column wide by "?": control characters, bytes that are no
// UTF-8, combining marks, wide letters. Keeps ASCII, Latin, Greek, Cyrillic, "…" and the blocks of bars.
std::string Printable(absl::string_view text);

// The longest prefix of printable text with at most `width` columns.
std::string Head(const std::string& text, size_t width);

// Cuts printable text to `width` columns. Ends with "…" if text was cut.
std::string Clip(const std::string& text, size_t width);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_PRINTABLE_H_
