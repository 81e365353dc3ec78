// The wall clock as somebody sets it. Link wall_clock.cc: it takes the place of the system's clock_gettime().
#ifndef RAILSD_TESTS_SUPPORT_WALL_CLOCK_H_
#define RAILSD_TESTS_SUPPORT_WALL_CLOCK_H_

#include "absl/time/time.h"

namespace railsd::testing {

// The process sees the wall clock set by `step` until the object is destroyed. The kernel does not: timed waits of
// absl's last by the same amount longer or shorter.
class WallClockStep {
 public:
  explicit WallClockStep(absl::Duration step);
  ~WallClockStep();
  WallClockStep(const WallClockStep&) = delete;
  WallClockStep& operator=(const WallClockStep&) = delete;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_SUPPORT_WALL_CLOCK_H_
