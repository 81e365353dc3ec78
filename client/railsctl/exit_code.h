// railsctl's exit codes. Scripts depend on them; docs/railsctl.md and --help list them.
#ifndef RAILS_RAILSCTL_EXIT_CODE_H_
#define RAILS_RAILSCTL_EXIT_CODE_H_

#include "absl/status/status.h"

namespace rails::ctl {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,        // the command failed
  kExitUsage = 2,         // the command line is wrong
  kExitUnreachable = 3,   // a daemon does not answer
  kExitWrongBytes = 4,    // an exchange was reported done, but bytes were wrong
  kExitBadInputFile = 5,  // a given file is missing, malformed, or does not fit
};

// The exit code for an error of a call to a daemon: kExitUnreachable if it does not answer, kExitUsage if it refuses
// the arguments.
inline ExitCode ExitCodeOfCall(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? kExitUnreachable : kExitFailed;
}

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXIT_CODE_H_
