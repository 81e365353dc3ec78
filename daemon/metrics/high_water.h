// Keeps counters from falling in Prometheus's view.
#ifndef RAILSD_DAEMON_METRICS_HIGH_WATER_H_
#define RAILSD_DAEMON_METRICS_HIGH_WATER_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

// Remembers the highest value of each counter. A sender that moves work off a failed rail corrects the bytes by rail
// that it reported, so the received bytes of an RDMA rail may fall. Prometheus would take a fall for a restart and
// count everything again. Therefore a counter keeps its highest value until the true one has caught up. Any thread.
class HighWater {
 public:
  // Returns the highest `value` so far for `key`. Keys are made of labels and bounded like them.
  uint64_t Raise(const std::string& key, uint64_t value) {
    absl::MutexLock lock(&mutex_);
    uint64_t& highest = highest_[key];
    return highest = std::max(highest, value);
  }

 private:
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, uint64_t> highest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_HIGH_WATER_H_
