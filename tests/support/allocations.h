// Counts what the program allocates: allocations.cc, linked into a test program, replaces its operators new and delete.
#ifndef RAILSD_TESTS_SUPPORT_ALLOCATIONS_H_
#define RAILSD_TESTS_SUPPORT_ALLOCATIONS_H_

#include <cstdint>

namespace railsd::testing {

struct Allocations {
  uint64_t count = 0;
  uint64_t bytes = 0;
};

// Totals of the whole process so far; any thread.
Allocations AllocationsSoFar();
// Totals of the calling thread.
Allocations AllocationsOfThisThread();

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_SUPPORT_ALLOCATIONS_H_
