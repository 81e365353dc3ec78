// Asks peers which exchanges have arrived when rails have failed, and answers peers that ask.
#ifndef RAILSD_AGENT_JOBS_REHOMER_H_
#define RAILSD_AGENT_JOBS_REHOMER_H_

#include <functional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "agent/control/messages.h"
#include "agent/groups/groups.h"
#include "agent/jobs/exchange_context.h"
#include "agent/jobs/node_job.h"

namespace railsd {

// One REHOME is outstanding to a peer at a time; it names every exchange that a failure leaves in doubt. Owned by the
// engine's thread.
class Rehomer {
 public:
  struct Calls {
    // The job cannot go on; the environment is the cause.
    std::function<void(NodeJob&, absl::Status)> fail;
    // The peer has answered for the exchange: it may go on, or be done.
    std::function<void(NodeJob&, Exchange&)> answered;
    // The owner must call AskMarked() again at that time.
    std::function<void(absl::Time)> again;
    // True when the peer has ranks in the job's group, and the group does not go on without it. True also if the group
    // is forgotten.
    std::function<bool(const Peer&, JobKey)> may_ask;
    // Outcome of a job that this node does not have, because the job has ended or is not known.
    std::function<Rehomed::State(JobKey)> outcome;
  };
  Rehomer(const ExchangeContext* context, Outbox* outbox, JobMap* jobs, Calls calls)
      : context_(*context), outbox_(*outbox), jobs_(*jobs), calls_(std::move(calls)) {}

  // An exchange with the peer may be in doubt, or need keys.
  void Mark(PeerIndex peer) { marked_.insert(peer); }
  // Asks the marked peers, where that can be done now.
  void AskMarked();
  // How many exchanges began another round so far.
  uint64_t rehomed() const { return rehomed_; }

  // False: nothing was asked.
  bool OnMessage(const Peer& from, Rehomed&& message);
  bool OnMessage(const Peer& from, Rehome&& message);
  // Call when an exchange that the peer has asked about has bound its zone, may now bind it, or has ended.
  void AnswerIfReady(PeerIndex peer) {
    if (!answers_.empty()) TryAnswer(peer);
  }
  void OnPeerLost(PeerIndex peer);

 private:
  void TryAnswer(PeerIndex peer);
  void SendAnswer(const Peer& to, Rehomed answer);
  Rehomed::Exchange Judge(const Peer& from, const Rehome::Exchange& asked, const std::vector<RailConnection>& failed);

  const ExchangeContext& context_;
  Outbox& outbox_;
  JobMap& jobs_;
  const Calls calls_;
  absl::flat_hash_set<PeerIndex> marked_;
  absl::flat_hash_map<PeerIndex, std::vector<JobKey>> asked_;  // outstanding
  absl::flat_hash_map<PeerIndex, Rehomed> answers_;            // that wait for zones to be bound
  uint64_t rehomed_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_REHOMER_H_
