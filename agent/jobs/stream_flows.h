// Which rank's bytes are where in the stream of an exchange.
#ifndef RAILSD_AGENT_JOBS_STREAM_FLOWS_H_
#define RAILSD_AGENT_JOBS_STREAM_FLOWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "agent/base/ids.h"

namespace railsd {

// One flow of an exchange: bytes [begin, begin + bytes) of the stream.
struct StreamFlow {
  Rank destination, source;
  uint32_t part = 0;   // of the rank that is on this node, in the order of ranks
  uint64_t bytes = 0;  // more than 0
  uint64_t begin_bytes = 0;
};

// The flows of one exchange in a table of many, which it keeps alive. In the order of the stream: by destination, then
// source.
class StreamFlows {
 public:
  StreamFlows() = default;
  // Flows [begin, end) of the table, which make up the whole stream.
  StreamFlows(std::shared_ptr<const StreamFlow[]> table, size_t begin, size_t end)
      : flows_(table.get() + begin, end - begin), table_(std::move(table)) {}
  absl::Span<const StreamFlow> all() const { return flows_; }
  uint64_t total_bytes() const { return flows_.empty() ? 0 : flows_.back().begin_bytes + flows_.back().bytes; }
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
  absl::Span<const StreamFlow>::const_iterator Find(uint64_t offset_bytes) const {
    const auto before = [](uint64_t offset, const StreamFlow& flow) { return offset < flow.begin_bytes; };
    return std::upper_bound(flows_.begin(), flows_.end(), offset_bytes, before) - 1;
  }

  absl::Span<const StreamFlow> flows_;
  std::shared_ptr<const StreamFlow[]> table_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_STREAM_FLOWS_H_
