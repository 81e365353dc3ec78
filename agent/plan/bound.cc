#include <algorithm>
#include <limits>

#include "agent/plan/plan.h"

namespace railsd {

double NodeBoundSeconds(uint64_t out_bytes, uint64_t in_bytes, double sum_of_speeds_bytes_per_s) {
  const uint64_t most = std::max(out_bytes, in_bytes);
  if (most == 0) return 0;
  if (!(sum_of_speeds_bytes_per_s > 0)) return std::numeric_limits<double>::infinity();
  return static_cast<double>(most) / sum_of_speeds_bytes_per_s;
}

}  // namespace railsd
