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

// The local ranks agree on the tag, and on the lengths between them. INVALID_ARGUMENT names ranks and values.
absl::Status CheckLocalRanks(const NodeJob& job, const Group& group);

// Says in `ready`, which is new, what a job that has started is: all but rails, grant and eager bytes.
void FillReady(const NodeJob& job, const Exchange& exchange, const Peer& peer, Ready* ready);

// Ranks are those of the two nodes, in the order of the stream, and eager bytes are as many as the flows say. INTERNAL
// otherwise.
absl::Status CheckReadyFlows(const Ready& ready, const GroupLayout& layout, const Peer& peer);

// Compares the peer's READY with what this node's ranks have submitted. INVALID_ARGUMENT names both ranks and both
// lengths, or both tags, or who gives capacities and who does not. INTERNAL as CheckReadyFlows().
absl::Status CompareReady(const NodeJob& job, const Group& group, const Exchange& exchange, const Peer& peer,
                          const Ready& ready);

// READYs that wait until this node's ranks have submitted their jobs. Owned by the engine's thread.
class HeldReadys {
 public:
  // One peer's READYs take so many bytes at most.
  static constexpr uint64_t kMaxBytes = 16 << 20;
  // The exchange is going to keep `ready`. RESOURCE_EXHAUSTED when the peer has too many.
  absl::Status Hold(const Ready& ready, const Peer& peer, const std::string& self, Exchange* exchange);
  // The job's READYs do not wait any more.
  void Release(NodeJob* job);

 private:
  absl::flat_hash_map<PeerIndex, uint64_t> bytes_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_READY_H_
