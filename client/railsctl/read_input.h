// Reads the input files of commands.
#ifndef RAILS_RAILSCTL_READ_INPUT_H_
#define RAILS_RAILSCTL_READ_INPUT_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace rails::ctl {

// The whole file, or standard input for "-". NOT_FOUND: it cannot be read. INVALID_ARGUMENT: it is longer than
// `max_bytes`.
absl::StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_READ_INPUT_H_
