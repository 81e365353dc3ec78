// READY: what two nodes tell each other of an exchange before a byte moves, and whether they agree.
#ifndef RAILSD_AGENT_JOBS_READY_H_
#define RAILSD_AGENT_JOBS_READY_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "agent/control/messages.h"
#include "agent/groups/groups.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// OK when the local ranks agree on the tag, on capacities and on the lengths between them. INVALID_ARGUMENT names ranks
// and values.
absl::Status CheckLocalRanks(const NodeJob& job, const Group& group);

// Fills `ready`, which is new, for a job that has started: all but rails, grant, tallies and eager bytes.
void FillReady(const NodeJob& job, const Exchange& exchange, const Peer& peer, Ready* ready);

// OK when the flows are between the two nodes and in the order of the stream, and have as many bytes as READY has eager
// ones, if any. INTERNAL otherwise.
absl::Status CheckReadyFlows(const Ready& ready, const GroupLayout& layout, const Peer& peer);

// Compares the peer's READY with what this node's ranks have submitted. INVALID_ARGUMENT names both ranks and both
// lengths, or both tags, or who gives capacities and who does not. INTERNAL as CheckReadyFlows().
absl::Status CompareReady(const NodeJob& job, const Group& group, const Exchange& exchange, const Peer& peer,
                          const Ready& ready);

// READYs that wait until this node's ranks have submitted their jobs. Owned by the engine's thread.
class HeldReadys {
 public:
  // The most bytes that one peer's READYs may take. A single READY may take more.
  static constexpr uint64_t kMaxBytes = 16 << 20;
  // Counts `ready`, which the exchange then keeps. RESOURCE_EXHAUSTED when those of the peer take too many bytes.
  absl::Status Hold(const Ready& ready, const Peer& peer, const std::string& self, Exchange* exchange);
  // Call when the job's READYs do not wait any more.
  void Release(NodeJob* job);

 private:
  absl::flat_hash_map<PeerIndex, uint64_t> bytes_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_READY_H_
