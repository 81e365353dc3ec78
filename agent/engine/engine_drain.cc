// Engine: drains the node so that no job is lost. A draining node takes jobs up to each group's cut, ends them, and
// leaves only when the other nodes have ended them, too: a job that has ended at one rank and not at another can
// neither go on nor be replayed. Jobs beyond the cut cannot end anywhere, because they need this node's ranks.
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/engine/engine.h"

namespace railsd {

void Engine::Drain(absl::Duration limit, Callback<absl::Status> drained) {
  // A further drain keeps the cuts, since jobs beyond them may have been refused already.
  if (!std::exchange(draining_, true)) jobs_.SetDraining(true);
  drain_deadline_ = now_ + limit;
  if (drained_) std::move(drained_)(absl::AbortedError("another drain was asked for"));
  drained_ = std::move(drained);
  options_.log->info("draining active_jobs={}", jobs_.active_parts());
}

void Engine::Undrain() {
  if (!draining_) return;
  draining_ = false;
  jobs_.SetDraining(false);
  drain_deadline_ = absl::InfiniteFuture();
  for (const auto& [epoch, group] : groups_.all()) group->awaited.clear();
  if (drained_) std::exchange(drained_, nullptr)(absl::AbortedError("the drain was undone"));
  options_.log->info("undrained");
}

void Engine::FinishDrain() {
  if (!drained_) return;
  std::string waits_for;
  const size_t active = jobs_.active_parts();
  if (active == 0 && OthersHaveEnded(&waits_for)) {
    CloseCuts();
    std::move(drained_)(absl::OkStatus());
  } else if (now_ >= drain_deadline_) {
    std::move(drained_)(
        absl::DeadlineExceededError(active > 0 ? absl::StrCat(active, " jobs were still active at the end of the drain")
                                               : absl::StrCat("at the end of the drain ", waits_for)));
  } else {
    return;
  }
  drained_ = nullptr;
  drain_deadline_ = absl::InfiniteFuture();
}

// Leaves jobs that other nodes have submitted, and this node's ranks have not, to the next epoch: such a job must not
// begin and end while the daemon exits.
void Engine::CloseCuts() {
  for (const auto& [epoch, group] : groups_.all()) {
    JobSeq last;
    for (Rank rank : group->local_ranks) last = std::max(last, group->ranks[rank.value()].last_seq);
    group->cut = std::min(group->cut, last);
  }
}

bool Engine::OthersHaveEnded(std::string* waits_for) {
  for (const auto& [epoch, group] : groups_.all()) {
    if (group->broken || group->last_done == JobSeq(0)) continue;
    for (PeerIndex index : group->peers) {
      const Peer& peer = peers_.Get(index);
      if (!peer.up || group->Lost(index)) continue;
      auto awaited = std::find_if(group->awaited.begin(), group->awaited.end(),
                                  [&](const Group::Leaver& a) { return a.peer == index; });
      if (awaited == group->awaited.end()) awaited = group->awaited.insert(awaited, Group::Leaver{index, JobSeq(0)});
      if (awaited->seq < group->last_done) {
        *awaited = {index, group->last_done};
        outbox_.Send(peer.node, Leaving{epoch, group->last_done});
      }
      if (awaited->answered || !waits_for->empty()) continue;
      *waits_for = absl::StrCat("job ", group->last_done.value(), " of group ", group->key.name,
                                ", or one before it, was still active on ", peer.node);
    }
  }
  return waits_for->empty();
}

bool Engine::OnLeaving(const Peer& from, const Leaving& message) {
  Group* group = groups_.Find(message.epoch);
  // A group that is forgotten has no active job.
  if (group == nullptr || !jobs_.HasUnended(message.epoch, message.seq)) {
    outbox_.Send(from.node, MayLeave{message.epoch, message.seq});
    return true;
  }
  if (std::find(group->peers.begin(), group->peers.end(), from.index) == group->peers.end()) return false;
  std::erase_if(group->leavers, [&](const Group::Leaver& leaver) { return leaver.peer == from.index; });
  group->leavers.push_back({from.index, message.seq});
  leavers_ = true;
  return true;
}

bool Engine::OnMayLeave(const Peer& from, const MayLeave& message) {
  Group* group = groups_.Find(message.epoch);
  if (group == nullptr) return false;
  for (Group::Leaver& awaited : group->awaited) {
    if (awaited.peer != from.index || awaited.seq != message.seq) continue;
    awaited.answered = true;
    return true;
  }
  return false;
}

void Engine::AnswerLeavers() {
  if (!std::exchange(leavers_, false)) return;
  for (const auto& [epoch, group] : groups_.all()) {
    std::erase_if(group->leavers, [&, epoch = epoch](const Group::Leaver& leaver) {
      if (jobs_.HasUnended(epoch, leaver.seq)) return false;
      const Peer& peer = peers_.Get(leaver.peer);
      if (peer.up) outbox_.Send(peer.node, MayLeave{epoch, leaver.seq});
      return true;
    });
    leavers_ = leavers_ || !group->leavers.empty();
  }
}

}  // namespace railsd
