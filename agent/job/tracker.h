// Which bytes of one flow have arrived.
#ifndef RAILSD_AGENT_JOB_TRACKER_H_
#define RAILSD_AGENT_JOB_TRACKER_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace railsd {

// Sorted, disjoint, merged intervals. Runs arrive in order on each rail, so there are about as many intervals as the
// flow has runs. Owned by the engine's thread.
class ReceiveTracker {
 public:
  explicit ReceiveTracker(uint64_t total_bytes = 0) : total_bytes_(total_bytes) {}

  // Marks [offset, offset + length). False, and nothing changed, if that leaves the flow or any byte of it is marked
  // already: a peer that sends a byte twice must not make another byte look received.
  bool Add(uint64_t offset_bytes, uint64_t length_bytes) {
    const uint64_t end = offset_bytes + length_bytes;
    if (length_bytes == 0 || end < offset_bytes || end > total_bytes_) return false;
    auto after = std::upper_bound(intervals_.begin(), intervals_.end(), offset_bytes,
                                  [](uint64_t value, const Interval& i) { return value < i.begin; });
    if (after != intervals_.end() && after->begin < end) return false;
    const bool touches_after = after != intervals_.end() && after->begin == end;
    if (after != intervals_.begin()) {
      auto before = after - 1;
      if (before->end > offset_bytes) return false;
      if (before->end == offset_bytes) {
        before->end = touches_after ? after->end : end;
        if (touches_after) intervals_.erase(after);
        received_bytes_ += length_bytes;
        return true;
      }
    }
    if (touches_after) {
      after->begin = offset_bytes;
    } else {
      intervals_.insert(after, Interval{offset_bytes, end});
    }
    received_bytes_ += length_bytes;
    return true;
  }

  bool complete() const { return received_bytes_ == total_bytes_; }
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t received_bytes() const { return received_bytes_; }

 private:
  struct Interval {
    uint64_t begin, end;
  };
  std::vector<Interval> intervals_;
  uint64_t total_bytes_;
  uint64_t received_bytes_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_TRACKER_H_
