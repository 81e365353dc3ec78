// Reads what `railsctl explain --json` wrote.
#ifndef RAILS_RAILSCTL_EXPLAIN_READ_H_
#define RAILS_RAILSCTL_EXPLAIN_READ_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// The daemon's answer that MessageJson() wrote. Texts are made printable. INVALID_ARGUMENT: `json` is no such text,
// or has what no daemon says.
absl::StatusOr<v1::ExplainJobResponse> ReadExplanation(absl::string_view json);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_READ_H_
