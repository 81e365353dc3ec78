#include "tests/support/wall_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace {

std::atomic<int64_t> step_seconds{0};

}  // namespace

extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int64_t result = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += step_seconds.load();
  return static_cast<int>(result);
}

namespace railsd::testing {

WallClockStep::WallClockStep(absl::Duration step) { step_seconds = absl::ToInt64Seconds(step); }
WallClockStep::~WallClockStep() { step_seconds = 0; }

}  // namespace railsd::testing
