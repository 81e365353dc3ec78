// Reads the output of `railsctl explain --json`.
#ifndef RAILS_RAILSCTL_EXPLAIN_READ_H_
#define RAILS_RAILSCTL_EXPLAIN_READ_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// Reads a daemon's answer that MessageJson() wrote. Makes texts printable. INVALID_ARGUMENT: `json` is no such text, or
// has values that no daemon sends.
absl::StatusOr<v1::ExplainJobResponse> ReadExplanation(absl::string_view json);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_READ_H_
