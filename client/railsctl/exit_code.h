// What railsctl's exit codes mean. Scripts depend on them; docs/railsctl.md and --help list them.
#ifndef RAILS_RAILSCTL_EXIT_CODE_H_
#define RAILS_RAILSCTL_EXIT_CODE_H_

#include "absl/status/status.h"

namespace rails::ctl {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,        // the thing asked for failed
  kExitUsage = 2,         // the command line is wrong
  kExitUnreachable = 3,   // a daemon does not answer
  kExitWrongBytes = 4,    // an exchange was reported done, and bytes were wrong
  kExitBadInputFile = 5,  // a file given is missing, not what it should be, or does not fit
};

// For an error met while talking to a daemon: one that does not answer is kExitUnreachable, one that was not to be
// asked kExitUsage.
inline ExitCode ExitCodeOfCall(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (absl::IsInvalidArgument(status)) return kExitUsage;
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ? kExitUnreachable : kExitFailed;
}

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXIT_CODE_H_
