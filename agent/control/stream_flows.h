// Which rank's bytes are where in the stream of an exchange.
#ifndef RAILSD_AGENT_CONTROL_STREAM_FLOWS_H_
#define RAILSD_AGENT_CONTROL_STREAM_FLOWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "agent/base/ids.h"

namespace railsd {

// One flow of an exchange: bytes [begin, begin + bytes) of the stream. Nodes tell each other the ranks and the length.
struct StreamFlow {
  Rank source, destination;
  uint64_t bytes = 0;
  uint64_t begin_bytes = 0;  // set, like `part`, in this node's own flows only
  uint32_t part = 0;         // place of the local rank's part among the parts, in the order of ranks
};

// The flows of one exchange in a table of many, which it keeps alive. In the order of the stream: by destination, then
// source.
class StreamFlows {
 public:
  StreamFlows() = default;
  StreamFlows(const std::vector<StreamFlow>& flows)  // NOLINT(google-explicit-constructor): as the list below
      : StreamFlows(Copy(flows), 0, flows.size()) {}
  StreamFlows(std::initializer_list<StreamFlow> flows) : StreamFlows(Copy(flows), 0, flows.size()) {}
  // Flows [begin, end) of the table, which make up the whole stream.
  StreamFlows(std::shared_ptr<const StreamFlow[]> table, size_t begin, size_t end)
      : flows_(table.get() + begin, end - begin), table_(std::move(table)) {}
  const StreamFlow* begin() const { return flows_.data(); }
  const StreamFlow* end() const { return flows_.data() + flows_.size(); }
  size_t size() const { return flows_.size(); }
  bool empty() const { return flows_.empty(); }
  const StreamFlow& operator[](size_t i) const { return flows_[i]; }
  uint64_t total_bytes() const { return flows_.empty() ? 0 : flows_.back().begin_bytes + flows_.back().bytes; }
  // The flow that holds the byte at `offset_bytes`, which is below the total.
  const StreamFlow& At(uint64_t offset_bytes) const { return *Find(offset_bytes); }
  // Calls visit(flow, bytes) for each flow that has bytes in [begin, begin + length), and perhaps for flows of no
  // bytes.
  template <typename Visit>
  void ForEach(uint64_t begin, uint64_t length, Visit visit) const {
    if (length == 0) return;
    const uint64_t end = std::min(begin + length, total_bytes());
    // Most stretches are the whole stream.
    for (auto flow = begin == 0 ? flows_.begin() : Find(begin); begin < end; ++flow) {
      const uint64_t flow_end = std::min(end, flow->begin_bytes + flow->bytes);
      visit(*flow, flow_end - begin);
      begin = flow_end;
    }
  }

 private:
  static std::shared_ptr<const StreamFlow[]> Copy(absl::Span<const StreamFlow> flows) {
    auto table = std::make_shared<StreamFlow[]>(flows.size());
    std::copy(flows.begin(), flows.end(), table.get());
    return table;
  }
  absl::Span<const StreamFlow>::const_iterator Find(uint64_t offset_bytes) const {
    const auto before = [](uint64_t offset, const StreamFlow& flow) { return offset < flow.begin_bytes; };
    return std::upper_bound(flows_.begin(), flows_.end(), offset_bytes, before) - 1;
  }

  absl::Span<const StreamFlow> flows_;
  std::shared_ptr<const StreamFlow[]> table_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_CONTROL_STREAM_FLOWS_H_
