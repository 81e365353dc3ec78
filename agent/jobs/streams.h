// The streams of a job's exchanges, from what its ranks have submitted.
#ifndef RAILSD_AGENT_JOBS_STREAMS_H_
#define RAILSD_AGENT_JOBS_STREAMS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "agent/groups/layout.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// Builds one table of memory and two of flows, one for each direction, for all exchanges of a job. The cost grows with
// the number of flows and ranges, and with the size of the group; nothing is sorted by comparison. Serves one job after
// another, and keeps its own storage. Build() may run on any thread.
class StreamBuilder {
 public:
  // All local ranks have submitted; their submissions stay as they are until Give().
  void Take(const NodeJob& job, std::shared_ptr<const GroupLayout> layout);
  void Build();
  // Hands what was built to the exchanges.
  void Give(NodeJob* job);

 private:
  struct Part {
    Rank rank;
    const CheckedSubmission* submission;
    const MemoryPiece* pieces;  // of the submission's table
  };
  // A flow with another node.
  struct Item {
    const CheckedFlow* flow;
    uint32_t part;
  };
  // One direction of an exchange.
  struct Stream {
    size_t begin = 0, end = 0;  // in the table of flows
    MemoryTable::Stream memory;
  };
  using FlowsOf = absl::Span<const CheckedFlow> CheckedSubmission::*;
  using KeyOf = uint32_t GroupLayout::Place::*;

  // Sorts `flows` with other nodes by `key`, which is below `keys`; equal ones stay in the order of parts, then peers.
  // The result is good until the next call. Counts the flows by node, and adds their bytes up by the place of their
  // source rank on its node.
  template <FlowsOf flows, KeyOf key>
  absl::Span<const Item> Sort(size_t keys, std::vector<uint64_t>* by_source);
  // Appends the sorted flows, whose nodes rise and which have been counted.
  template <bool sends>
  void Append(absl::Span<const Item> sorted, std::shared_ptr<StreamFlow[]>* flows, std::vector<Stream>* streams);

  std::shared_ptr<const GroupLayout> layout_;
  std::vector<Part> parts_;       // by rank
  std::vector<uint32_t> places_;  // scratch: where the next flow of a key goes
  std::vector<uint32_t> counts_;  // scratch: flows by node
  std::vector<Item> sorted_;      // scratch
  std::shared_ptr<StreamFlow[]> out_flows_, in_flows_;
  std::shared_ptr<MemoryTable> memory_;
  std::vector<Stream> out_, in_;                // by node
  std::vector<uint64_t> out_bytes_, in_bytes_;  // by the source rank's place on its node
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_STREAMS_H_
