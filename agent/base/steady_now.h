// A clock for deadlines and intervals.
#ifndef RAILSD_AGENT_BASE_STEADY_NOW_H_
#define RAILSD_AGENT_BASE_STEADY_NOW_H_

#include <ctime>

#include "absl/time/time.h"

namespace railsd {

// The time since the machine was booted, suspensions included, as if that had been in 1970. Unlike absl::Now() it does
// not jump when the clock is set: a jump would make peers seem silent, deadlines pass and timers wait.
inline absl::Time SteadyNow() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::TimeFromTimespec(now);
}

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_STEADY_NOW_H_
