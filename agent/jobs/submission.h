// A trainer's request and the report that it gets back: descriptors without pointers.
#ifndef RAILSD_AGENT_JOBS_SUBMISSION_H_
#define RAILSD_AGENT_JOBS_SUBMISSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "agent/base/ids.h"
#include "agent/base/rail_mask.h"

namespace railsd {

// Bytes [offset, offset + length) of one of the session's segments.
struct Range {
  SegmentId segment;
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

// The bytes of one flow at one end: their order in the list is their order in the flow. The two ends may cut the
// flow into ranges differently; only the totals must agree.
struct FlowRanges {
  Rank peer;  // destination rank in `sends`, source rank in `receives`; may be the rank itself
  absl::InlinedVector<Range, 1> ranges;
};

// One rank's part of one all-to-all(v). Ranks left out of `sends` or `receives` exchange zero bytes.
struct Submission {
  // Limit of the ranges of all `receives` that are capacities: the engine's thread cuts them when it knows the lengths.
  static constexpr uint64_t kMaxCapacityRanges = 16384;
  SessionId session;
  JobKey job;
  Rank rank;
  uint64_t tag = 0;         // the trainer's own mark: layer, iteration; must agree over the ranks
  bool capacities = false;  // the lengths of `receives` are capacities: sources may send less; all ranks must agree
  uint64_t vote = 0;        // any number; the reports have the highest of all ranks
  bool urgent = false;      // this node sends the job before its tenant's others; no part of the content
  std::vector<FlowRanges> sends;
  std::vector<FlowRanges> receives;
  absl::Duration timeout = absl::InfiniteDuration();  // from acceptance; the configured limit caps it
  // Not 0: a prepared exchange of the session gives the ranges, and `sends` and the other lists are empty.
  PreparedId prepared = {};
  // The length of each flow of the prepared exchange, in its order, sends first: a flow uses that many bytes from the
  // beginning of its ranges. Empty: all bytes. Only read during Submit().
  absl::Span<const uint64_t> lengths_bytes = {};
};

enum class JobState : uint8_t {
  kQueued,    // accepted, other local ranks have not submitted
  kMatching,  // READY sent, not every peer's READY is here
  kRunning,   // the READY of every peer is here, and agrees
  kDone,
  kFailed,
};

// Useful bytes of both directions over what the rails could have carried since the last local submission (switching
// efficiency, arXiv 2604.14690), and its factors. Routing efficiency is 1 here: a chunk crosses one rail switch, once.
// All 0 when nothing crosses nodes.
struct Efficiency {
  double total = 0;
  double data = 0;         // useful bytes over carried ones: less than 1 where chunks were sent again
  double moving = 0;       // the part of the time in which every peer was ready
  double utilisation = 0;  // carried bytes over the capacity of that part
};

// Names a job to be explained.
struct WantedJob {
  std::string tenant, group;  // empty: any
  JobSeq seq;                 // 0: the latest one
};

// One rank's view of one job. Terminal (kDone, kFailed) means quiescent: nothing touches the rank's ranges any more.
struct JobReport {
  JobKey job;
  Rank rank;
  uint64_t tag = 0;
  std::string tenant, group;  // of the job's group, and the group's name
  JobState state = JobState::kQueued;
  absl::Status status;                                // OK, or why it failed
  uint64_t bytes_to_send = 0, bytes_sent = 0;         // of this rank, itself and all others
  uint64_t bytes_to_receive = 0, bytes_received = 0;  // with capacities: to be received as far as sources have told
  std::vector<uint64_t> received_by_rank;             // with capacities: what each rank of the group sends; else empty
  uint32_t parts = 1;                                 // ranks of this node that have submitted the job
  absl::Duration elapsed;                             // from acceptance to terminal (or to now)
  absl::Time ended = absl::InfiniteFuture();          // when it became terminal, by the engine's clock
  absl::Duration waiting_for_ranks;                   // until every local rank had submitted
  absl::Duration waiting_for_peers;                   // from then until the last READY
  absl::Duration to_first_chunk;  // from acceptance until the first bytes of the job were given to a rail
  // Times of the whole job on this node, from the last READY on: until all sent bytes were acknowledged, and until all
  // expected bytes were here.
  absl::Duration sending, receiving;
  // Bound of the whole job on this node: max(out, in) / sum of rail speeds, and elapsed since the last local submission
  // over it; 0 when nothing crosses nodes. Rails of `drained_rails` do not count.
  absl::Duration node_bound;
  double ratio_to_bound = 0;
  // The least that the whole job on this node takes where the bytes of each source rank go over its own rail
  // (Policy::kPinned), drained or not; 0 when nothing crosses nodes.
  absl::Duration pinned_bound;
  Efficiency efficiency;
  BytesByRail rail_tx_bytes;  // of the whole job on this node
  BytesByRail rail_rx_bytes;
  BytesByRail rail_planned_bytes;                           // to be sent, as the plans had it
  uint64_t eager_sent_bytes = 0, eager_received_bytes = 0;  // of the whole job on this node; no rail carried them
  uint64_t highest_vote = 0;                                // of all ranks if done, else of those that are known
  // Bit r: rail r is drained, here or by every peer, and carried nothing of the job.
  uint64_t drained_rails = 0;
  // Ranks whose nodes were lost before all bytes from and to them had arrived, in a group that goes on without them
  // (RecoveryPolicy::kDegrade). Their bytes have arrived in part or not at all.
  std::vector<Rank> lost_ranks;
  // It failed because its epoch ended with a daemon, in a group that waits (RecoveryPolicy::kWait): it may be submitted
  // again, under its number, in the group's next epoch.
  bool replayable = false;
  bool failed() const { return !status.ok() && !replayable; }  // for good
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_SUBMISSION_H_
