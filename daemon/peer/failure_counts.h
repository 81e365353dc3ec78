// Counts failures that repeat, so that each is logged once and then now and again with its count.
#ifndef RAILSD_DAEMON_PEER_FAILURE_COUNTS_H_
#define RAILSD_DAEMON_PEER_FAILURE_COUNTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace railsd {

// The caller synchronises.
class FailureCounts {
 public:
  static constexpr absl::Duration kLogAgain = absl::Minutes(1);
  static constexpr size_t kMost = 1024;  // texts, which strangers can invent; one more clears the map

  // Counts a failure. Returns how many with this text there were since the last line, if a line is due, else 0.
  uint64_t Note(const std::string& text, absl::Time now) {
    if (counts_.size() >= kMost && !counts_.contains(text)) counts_.clear();
    Count& count = counts_[text];
    ++count.times;
    if (now - count.logged < kLogAgain) return 0;
    count.logged = now;
    return std::exchange(count.times, 0);
  }

 private:
  struct Count {
    uint64_t times = 0;
    absl::Time logged = absl::InfinitePast();
  };
  absl::flat_hash_map<std::string, Count> counts_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_FAILURE_COUNTS_H_
