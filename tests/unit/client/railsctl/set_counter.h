// Counters of a rail in the answers of fake daemons.
#ifndef RAILS_TESTS_UNIT_CLIENT_RAILSCTL_SET_COUNTER_H_
#define RAILS_TESTS_UNIT_CLIENT_RAILSCTL_SET_COUNTER_H_

#include <cstdint>

#include "rails/v1/operator.pb.h"

namespace rails::ctl {

inline void SetCounter(v1::RailStatus* rail, const char* name, uint64_t value) {
  for (v1::RailCounter& counter : *rail->mutable_counters()) {
    if (counter.name() == name) return counter.set_value(value);
  }
  v1::RailCounter* const counter = rail->add_counters();
  counter->set_name(name);
  counter->set_value(value);
}

}  // namespace rails::ctl

#endif  // RAILS_TESTS_UNIT_CLIENT_RAILSCTL_SET_COUNTER_H_
