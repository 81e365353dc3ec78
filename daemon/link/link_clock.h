// The time of links.
#ifndef RAILSD_DAEMON_LINK_LINK_CLOCK_H_
#define RAILSD_DAEMON_LINK_LINK_CLOCK_H_

#include <ctime>

#include "absl/time/time.h"

namespace railsd {

// The time since the machine was booted, suspensions included, as if that had been in 1970. Unlike absl::Now() it does
// not jump when somebody sets the clock, which is no silence of any peer.
inline absl::Time LinkNow() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_LINK_CLOCK_H_
