// The process that a client belongs to. A forked child has a copy of its memory, but neither its threads nor its rings,
// so a lock that a thread held at the fork stays held for ever.
#ifndef RAILS_CLIENT_SRC_OWNER_PROCESS_H_
#define RAILS_CLIENT_SRC_OWNER_PROCESS_H_

#include <sys/types.h>
#include <unistd.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rails::internal {

// Check it before taking any lock.
class OwnerProcess {
 public:
  bool IsThis() const { return getpid() == id_; }
  // FAILED_PRECONDITION in a forked child.
  absl::Status Check() const {
    if (IsThis()) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("this client belongs to process ", id_, ", and this is process ",
                                                      getpid(), ", forked from it: Connect() anew"));
  }

 private:
  const pid_t id_ = getpid();
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_OWNER_PROCESS_H_
