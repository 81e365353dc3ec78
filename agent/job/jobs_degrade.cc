// JobTable: groups that go on without nodes that are lost (RecoveryPolicy::kDegrade). A link is lost at both of its
// ends or at none, and what two nodes exchange concerns no third one: so every pair of nodes decides for itself, and
// needs no agreement with the others.
#include <algorithm>
#include <utility>
#include <vector>

#include "agent/job/jobs.h"

namespace railsd {

void JobTable::GoOnWithout(const Peer& peer) {
  std::vector<std::pair<NodeJob*, const Group*>> hit;
  for (const auto& [key, job] : jobs_) {
    const Group* group = groups_.Find(key.epoch);
    if (group != nullptr && group->Lost(peer.index) && !job->aborting() && !job->ended)
      hit.emplace_back(job.get(), group);
  }
  for (auto& [job, group] : hit) {
    const auto exchange = job->peers.find(peer.index);
    if (exchange == job->peers.end() || exchange->second.left_out) continue;
    LeaveOut(*job, *group, exchange->second);
  }
}

void JobTable::LeaveOut(NodeJob& job, const Group& group, PeerExchange& exchange) {
  exchange.left_out = true;
  if (!job.started) return;  // Start() leaves it out
  const bool through = exchange.received && exchange.out_left_bytes->load(std::memory_order_relaxed) == 0 &&
                       exchange.fenced_flows_left == 0;
  std::vector<Rank> lost;
  for (uint32_t r = 0; !through && r < group.world_size(); ++r) {
    if (!group.ranks[r].local && group.ranks[r].peer == exchange.peer) lost.push_back(Rank(r));
  }
  for (auto& [rank, part] : job.parts) {
    std::vector<Rank>& told = part.report.lost_ranks;
    if (!part.terminal()) told.insert(told.end(), lost.begin(), lost.end());
  }
  LeaveOutSends(job, exchange);
  LeaveOutReceives(job, exchange);
  MaybeRunning(job);
  FinishIfDone(job);
}

// What is queued goes now; what is posted comes back from the rails, which have been told that the peer is gone, and
// until then their ranks are not done: the rails may still read their memory.
void JobTable::LeaveOutSends(NodeJob& job, PeerExchange& exchange) {
  sprayer_.DropTo(&job, exchange.peer,
                  [&](Rank source, uint64_t bytes) { job.parts.at(source).sends_left_bytes -= bytes; });
  for (OutFlow& flow : exchange.out) {
    RankPart& part = job.parts.at(flow.source);
    if (!exchange.planned) part.sends_left_bytes -= flow.send.memory.total_bytes();
    if (!remote_ || flow.fenced.over) continue;
    flow.fenced.over = true;
    for (const FencedFlow::Lost& lost : flow.fenced.lost) part.sends_left_bytes -= lost.length_bytes;
    flow.fenced.lost.clear();
    --part.fenced_flows_left;
  }
  exchange.fenced_flows_left = 0;
  exchange.lost = exchange.asked = 0;
}

void JobTable::LeaveOutReceives(NodeJob& job, PeerExchange& exchange) {
  if (exchange.received) return;
  const bool waited = std::exchange(exchange.waiting, nullptr) != nullptr;                // they are not opened again
  if (exchange.zones != nullptr) return CloseZones(exchange, /*writers_stopped=*/false);  // OnZonesQuiet() goes on
  if (waited) ingress_left_bytes_ -= exchange.in_left_bytes;                              // it was never opened
  exchange.received = true;
  for (auto& [rank, part] : job.parts) --part.receive_peers_left;
}

void JobTable::OnLeftOutDone(NodeJob& job, const InFlight& done, const RailEvent& event) {
  RankPart& part = job.parts.at(done.source);
  part.sends_left_bytes -= done.length_bytes;
  const uint64_t arrived = event.result == SendResult::kAcknowledged ? done.length_bytes
                           : event.result == SendResult::kReturned   ? done.length_bytes - event.length_bytes
                                                                     : 0;
  part.report.bytes_sent += arrived;
  CountSent(job, done.peer, done.rail, arrived);
  FinishIfDone(job, done.source);
  if (job.outstanding_orders == 0) Settle(job);
}

}  // namespace railsd
