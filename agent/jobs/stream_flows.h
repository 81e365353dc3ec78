// Which rank's bytes are where in the stream of an exchange.
#ifndef RAILSD_AGENT_JOBS_STREAM_FLOWS_H_
#define RAILSD_AGENT_JOBS_STREAM_FLOWS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "agent/base/ids.h"

namespace railsd {

// One flow of an exchange: bytes [begin, begin + bytes) of the stream.
struct StreamFlow {
  Rank destination, source;
  uint64_t bytes = 0;  // more than 0
  uint64_t begin_bytes = 0;
};

// In the order of the stream: by destination, then source.
class StreamFlows {
 public:
  void Add(Rank destination, Rank source, uint64_t bytes) {
    flows_.push_back({destination, source, bytes, total_bytes_});
    total_bytes_ += bytes;
  }
  const std::vector<StreamFlow>& all() const { return flows_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // The flow that holds the byte, which is below the total.
  const StreamFlow& At(uint64_t offset_bytes) const { return *Find(offset_bytes); }
  // Calls visit(flow, bytes) for each flow that has bytes in [begin, begin + length).
  template <typename Visit>
  void ForEach(uint64_t begin, uint64_t length, Visit visit) const {
    if (length == 0) return;
    const uint64_t end = begin + length;
    for (auto flow = Find(begin); flow != flows_.end() && flow->begin_bytes < end; ++flow) {
      const uint64_t from = std::max(begin, flow->begin_bytes);
      visit(*flow, std::min(end, flow->begin_bytes + flow->bytes) - from);
    }
  }

 private:
  std::vector<StreamFlow>::const_iterator Find(uint64_t offset_bytes) const {
    const auto before = [](uint64_t offset, const StreamFlow& flow) { return offset < flow.begin_bytes; };
    return std::upper_bound(flows_.begin(), flows_.end(), offset_bytes, before) - 1;
  }
  std::vector<StreamFlow> flows_;
  uint64_t total_bytes_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_STREAM_FLOWS_H_
