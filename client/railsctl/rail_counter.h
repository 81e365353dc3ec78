// Counters of a rail in a daemon's answer.
#ifndef RAILS_RAILSCTL_RAIL_COUNTER_H_
#define RAILS_RAILSCTL_RAIL_COUNTER_H_

#include <cstdint>

#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// 0 if the daemon does not have it.
inline uint64_t Counter(const v1::RailStatus& rail, const char* name) {
  for (const v1::RailCounter& counter : rail.counters()) {
    if (counter.name() == name) return counter.value();
  }
  return 0;
}

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_RAIL_COUNTER_H_
