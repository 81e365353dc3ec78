// Which bytes of one flow have arrived.
#ifndef RAILSD_AGENT_JOB_TRACKER_H_
#define RAILSD_AGENT_JOB_TRACKER_H_

#include <cstdint>
#include <iterator>

#include "absl/container/btree_map.h"

namespace railsd {

// Sorted, disjoint, merged intervals. Runs arrive in order on each rail, so there are about as many intervals as the
// flow has runs. A hostile sender can make half as many as the flow has bytes: to add one costs the logarithm of that.
// Owned by the engine's thread.
class ReceiveTracker {
 public:
  explicit ReceiveTracker(uint64_t total_bytes = 0) : total_bytes_(total_bytes) {}

  // Marks [offset, offset + length). False, and nothing changed, if that leaves the flow or any byte of it is marked
  // already: a peer that sends a byte twice must not make another byte look received.
  bool Add(uint64_t offset_bytes, uint64_t length_bytes) {
    const uint64_t end = offset_bytes + length_bytes;
    if (length_bytes == 0 || end < offset_bytes || end > total_bytes_) return false;
    const auto after = intervals_.upper_bound(offset_bytes);
    if (after != intervals_.end() && after->first < end) return false;
    const bool touches_after = after != intervals_.end() && after->first == end;
    if (after != intervals_.begin()) {
      const auto before = std::prev(after);
      if (before->second > offset_bytes) return false;
      if (before->second == offset_bytes) {
        before->second = touches_after ? after->second : end;
        if (touches_after) intervals_.erase(after);
        received_bytes_ += length_bytes;
        return true;
      }
    }
    const uint64_t joined_end = touches_after ? after->second : end;
    if (touches_after) intervals_.erase(after);
    intervals_.emplace(offset_bytes, joined_end);
    received_bytes_ += length_bytes;
    return true;
  }

  bool complete() const { return received_bytes_ == total_bytes_; }
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t received_bytes() const { return received_bytes_; }

 private:
  absl::btree_map<uint64_t, uint64_t> intervals_;  // end by begin
  uint64_t total_bytes_;
  uint64_t received_bytes_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_TRACKER_H_
