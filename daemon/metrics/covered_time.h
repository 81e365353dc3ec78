// The time that intervals cover together, such as those of jobs that overlap.
#ifndef RAILSD_DAEMON_METRICS_COVERED_TIME_H_
#define RAILSD_DAEMON_METRICS_COVERED_TIME_H_

#include <algorithm>
#include <vector>

#include "absl/time/time.h"

namespace railsd {

// Intervals come in the order of their ends, and may begin at any time before. Not thread-safe.
class CoveredTime {
 public:
  // Returns how much of the interval no earlier one covers; less if it covers hundreds of gaps between earlier ones.
  absl::Duration Add(absl::Time begin, absl::Time end) {
    if (!spans_.empty()) end = std::max(end, spans_.back().end);
    absl::Duration covered;
    Span joined = {begin, end};
    for (; !spans_.empty() && spans_.back().end >= begin; spans_.pop_back()) {
      const Span& last = spans_.back();
      covered += last.end - std::max(last.begin, begin);
      joined.begin = std::min(joined.begin, last.begin);
    }
    if (spans_.size() == kMostSpans) {  // the gap between the oldest two counts as covered from now on
      spans_[1].begin = spans_[0].begin;
      spans_.erase(spans_.begin());
    }
    spans_.push_back(joined);
    return end - begin - covered;
  }

 private:
  struct Span {
    absl::Time begin, end;
  };
  static constexpr size_t kMostSpans = 256;

  std::vector<Span> spans_;  // disjoint, in order
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_COVERED_TIME_H_
