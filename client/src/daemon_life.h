// Tells whether a daemon's process still exists and may still use shared memory.
#ifndef RAILS_CLIENT_SRC_DAEMON_LIFE_H_
#define RAILS_CLIENT_SRC_DAEMON_LIFE_H_

#include <poll.h>

#include <utility>

#include "absl/time/time.h"
#include "client/src/unique_fd.h"

namespace rails::internal {

// Holds the pidfd that the daemon sent at the start of the session. Thread-safe.
class DaemonLife {
 public:
  explicit DaemonLife(UniqueFd pidfd) : pidfd_(std::move(pidfd)) {}

  int fd() const { return pidfd_.get(); }
  // A pidfd becomes readable when the process has ended, with all its threads and mappings.
  bool Ended() const { return EndedWithin(absl::ZeroDuration()); }
  // Waits for the end. The sockets of a killed process close a moment before the process has ended.
  bool EndedWithin(absl::Duration limit) const {
    pollfd entry{pidfd_.get(), POLLIN, 0};
    return poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(limit))) == 1 && (entry.revents & POLLIN) != 0;
  }

 private:
  UniqueFd pidfd_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_DAEMON_LIFE_H_
