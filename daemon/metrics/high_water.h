// Counters that Prometheus may never see fall.
#ifndef RAILSD_DAEMON_METRICS_HIGH_WATER_H_
#define RAILSD_DAEMON_METRICS_HIGH_WATER_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

// What a sender tells of its rails changes when it moves work off one that failed, so the bytes that a rail over verbs
// has received may fall by what arrives over another rail instead. Prometheus would take that for a restart, and the
// whole count for new. So each counter stays where it is until the truth has caught up. Scrapes call it, on any thread.
class HighWater {
 public:
  // The highest `value` that was given for `key` so far. Keys are as bounded as the labels that they are made of.
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
