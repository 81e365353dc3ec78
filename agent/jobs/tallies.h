// Tells peers how many bytes each rail of this node carried for them.
#ifndef RAILSD_AGENT_JOBS_TALLIES_H_
#define RAILSD_AGENT_JOBS_TALLIES_H_

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "agent/control/messages.h"
#include "agent/groups/groups.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// Used with transports that write into remote memory, because the receiver's rails do not see these bytes. A tally
// rides in the next READY, or is sent alone after a while. Owned by the engine's thread.
class Tallies {
 public:
  // Both outlive this.
  Tallies(const ExchangeContext* context, Outbox* outbox) : context_(*context), outbox_(*outbox) {}

  // The job has ended well. Returns when to call SendOld().
  absl::Time Add(const NodeJob& job);
  // Moves tallies that ride in READY to the peer to `tallies`, which is empty.
  void Take(PeerIndex peer, std::vector<Tally>* tallies) {
    if (by_peer_.empty()) return;
    const auto found = by_peer_.find(peer);
    if (found != by_peer_.end()) *tallies = std::exchange(found->second, {}).waiting;
  }
  // Sends tallies that have waited too long for a READY. Returns when to call it again.
  absl::Time SendOld(absl::Time now);
  void OnPeerLost(PeerIndex peer) { by_peer_.erase(peer); }

 private:
  struct Waiting {
    std::vector<Tally> waiting;
    absl::Time since = absl::InfiniteFuture();
  };
  const ExchangeContext& context_;
  Outbox& outbox_;
  absl::flat_hash_map<PeerIndex, Waiting> by_peer_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_TALLIES_H_
