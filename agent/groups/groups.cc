#include "agent/groups/groups.h"

#include <spdlog/logger.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/failed_ranks.h"
#include "agent/base/log_value.h"
#include "agent/jobs/validate.h"

namespace railsd {
namespace {

// The most joins of one other node that this node remembers until their groups form: a bound on what a peer can make
// this node store.
constexpr size_t kMaxRemoteJoins = 1 << 14;

// Sends a commit to all peers. A commit names the node of each rank, so it may be longer than a peer takes. Then the
// members that have got it hear that the epoch is over, and the error says what to do.
absl::Status TellCommit(const GroupCommit& commit, PeerTable& peers, Outbox* outbox) {
  const std::set<absl::string_view> members(commit.members.begin(), commit.members.end());
  // A node without a rank only forgets the joins and need not know the members.
  GroupCommit brief = commit;
  brief.members.resize(1);
  std::vector<const Peer*> told;
  for (const auto& peer : peers.all()) {
    if (!peer->up) continue;
    if (!members.contains(peer->node)) {
      outbox->Send(peer->node, brief);
      continue;
    }
    const absl::Status sent = outbox->SendIfItFits(peer->node, commit);
    if (sent.ok()) {
      told.push_back(peer.get());
      continue;
    }
    const absl::Status why = absl::ResourceExhaustedError(
        absl::StrCat("group ", commit.key.name, " of ", commit.members.size(), " ranks cannot form: its commit from ",
                     peers.self(), " to ", peer->node, ": ", sent.message()));
    for (const Peer* heard : told) {
      outbox->Send(heard->node, GroupBroken{commit.epoch, JobSeq(0), why.code(), std::string(why.message()), false});
    }
    return why;
  }
  return absl::OkStatus();
}

}  // namespace

std::string Group::Describe(Rank rank) const {
  return absl::StrCat("rank ", rank.value(), " on ", nodes_of_ranks[rank.value()]);
}

uint32_t Group::RanksOn(PeerIndex peer) const {
  const auto it = std::find(peers.begin(), peers.end(), peer);
  return it == peers.end() ? 0 : ranks_on[static_cast<size_t>(it - peers.begin())];
}

bool Group::HasRanksHere() const {
  return std::any_of(local_ranks.begin(), local_ranks.end(), [this](Rank rank) { return !ranks[rank.value()].gone; });
}

JobSeq Group::LastTaken() const {
  JobSeq last;
  for (Rank rank : local_ranks) last = std::max(last, ranks[rank.value()].last_seq);
  return last;
}

GroupView Group::View() const {
  GroupView view;
  view.tenant = key.tenant;
  view.name = key.name;
  view.epoch = epoch;
  view.world_size = world_size();
  view.members = nodes_of_ranks;
  view.local_ranks = local_ranks;
  view.broken = broken;
  view.why = why;
  view.replayable = replayable;
  view.next_seq = JobSeq(LastTaken().value() + 1);
  view.recovery = recovery;
  for (uint32_t r = 0; r < world_size(); ++r) {
    const std::string& node = nodes_of_ranks[r];
    if (ranks[r].local || !Lost(ranks[r].peer)) continue;
    if (std::find(view.lost.begin(), view.lost.end(), node) == view.lost.end()) view.lost.push_back(node);
  }
  return view;
}

GroupTable::GroupTable(const AgentOptions& options, PeerTable* peers, SessionTable* sessions, Outbox* outbox,
                       std::function<void(Group&)> on_broken)
    : options_(options), peers_(peers), sessions_(sessions), outbox_(outbox), on_broken_(std::move(on_broken)) {}

void GroupTable::TellAll(const ControlMessage& message) {
  for (const auto& peer : peers_->all()) {
    if (peer->up) outbox_->Send(peer->node, message);
  }
}

void GroupTable::Join(JoinRequest request, absl::Time now, Callback<absl::StatusOr<GroupView>> done) {
  Session* session = sessions_->Find(request.session);
  if (absl::Status s = CheckJoin(request, session); !s.ok()) return std::move(done)(s);
  GroupKey key{session->info.tenant, request.name, Sha256(request.join_key)};
  if (absl::Status s = CheckNotMember(key, request.rank); !s.ok()) return std::move(done)(s);
  if (absl::Status s = CheckRoom(key); !s.ok()) return std::move(done)(s);
  Forming& forming = forming_[key];
  forming.gave_up.erase(request.rank);
  Joiner& joiner = forming[request.rank];
  joiner.node = peers_->self();
  joiner.world_size = request.world_size;
  joiner.recovery = request.recovery;
  joiner.next_seq = request.next_seq;
  joiner.session = request.session;
  joiner.deadline = now + std::min(request.timeout > absl::ZeroDuration() ? request.timeout : options_.max_join_time,
                                   options_.max_join_time);
  joiner.done = std::move(done);
  ++session->memberships;
  TellAll(GroupJoin{key, request.world_size, request.rank, request.recovery, request.next_seq});
  Settle(key);
}

void GroupTable::RejectJoin(const GroupKey& key, Rank rank, Joiner& joiner, const absl::Status& why) {
  if (!IsLocal(joiner)) {
    outbox_->Send(joiner.node, GroupReject{key, rank, why.code(), std::string(why.message()), FailedRanks(why)});
    ForgetJoin(joiner.node);
    return;
  }
  if (Session* session = sessions_->FindAny(joiner.session)) --session->memberships;
  TellAll(GroupLeave{key, rank});
  std::move(joiner.done)(why);
}

void GroupTable::Settle(const GroupKey& key) {
  auto it = forming_.find(key);
  if (it == forming_.end()) return;
  Forming& forming = it->second;
  auto zero = forming.find(Rank(0));
  if (zero == forming.end() || !IsLocal(zero->second)) return;
  const uint32_t world_size = zero->second.world_size;
  if (const absl::Status why = CheckForming(forming, zero->second); !why.ok()) {
    Forming rejected = std::move(forming);
    forming_.erase(it);
    for (auto& [r, j] : rejected) RejectJoin(key, r, j, why);
    return;
  }
  if (forming.size() < world_size) return;
  GroupCommit commit{key, Epoch{options_.boot, next_counter_++}, {}, zero->second.recovery, zero->second.next_seq};
  for (const auto& [rank, joiner] : forming) commit.members.push_back(joiner.node);
  Forming complete = std::move(forming);
  forming_.erase(it);
  if (const absl::Status told = TellCommit(commit, *peers_, outbox_); !told.ok()) {
    for (auto& [rank, joiner] : complete) RejectJoin(key, rank, joiner, told);
    return;
  }
  AnswerJoins(commit, complete);
}

Group& GroupTable::Create(const GroupCommit& commit) {
  // The ranks of the group have joined again: ends their memberships in its broken epochs.
  for (auto it = groups_.begin(); it != groups_.end();) {
    const auto here = it++;
    if (here->second->key == commit.key && here->second->broken) {
      for (Rank rank : here->second->local_ranks) EndMembership(*here->second, rank);
    }
  }
  auto group = std::make_unique<Group>();
  group->key = commit.key;
  group->epoch = commit.epoch;
  group->recovery = commit.recovery;
  // A peer's commit cannot make this node wait longer than its own configuration allows.
  group->recovery.wait_limit = std::min(group->recovery.wait_limit, options_.max_peer_wait);
  const JobSeq last_seq(commit.next_seq.value() - 1);
  group->cut = last_seq;
  ++formed_;
  group->nodes_of_ranks = commit.members;
  group->ranks.resize(commit.members.size());
  absl::flat_hash_map<absl::string_view, uint32_t> ranks_on;  // by node, so far
  for (uint32_t r = 0; r < commit.members.size(); ++r) {
    Group::Member& member = group->ranks[r];
    member.local = commit.members[r] == peers_->self();
    member.place = ranks_on[commit.members[r]]++;
    member.last_seq = last_seq;
    if (member.local) {
      group->local_ranks.push_back(Rank(r));
      continue;
    }
    member.peer = peers_->FindOrAdd(commit.members[r]).index;
    if (std::find(group->peers.begin(), group->peers.end(), member.peer) == group->peers.end()) {
      group->peers.push_back(member.peer);
    }
  }
  for (PeerIndex peer : group->peers) group->ranks_on.push_back(ranks_on[peers_->Get(peer).node]);
  group->layout = LayOut(*group);
  Group& result = *group;
  groups_[commit.epoch] = std::move(group);
  UpdatePatience(result.peers);
  return result;
}

absl::Duration GroupTable::PatienceWith(PeerIndex peer) const {
  absl::Duration patience;
  for (const Group* group : With(peer)) {
    if (!group->broken) patience = std::max(patience, std::min(group->recovery.wait_limit, options_.max_peer_wait));
  }
  return patience;
}

void GroupTable::UpdatePatience(const std::vector<PeerIndex>& with) {
  for (PeerIndex peer : with) outbox_->SetPatience(peers_->Get(peer).node, PatienceWith(peer));
}

void GroupTable::AnswerJoins(const GroupCommit& commit, Forming& forming) {
  Group& group = Create(commit);
  for (Rank rank : group.local_ranks) group.ranks[rank.value()].session = forming[rank].session;
  const GroupView view = group.View();
  for (auto& [rank, joiner] : forming) {
    if (!IsLocal(joiner)) {
      ForgetJoin(joiner.node);
    } else if (rank.value() < group.world_size() && group.ranks[rank.value()].local) {
      // Peers that hear of the commit before the join must not keep the join.
      TellAll(GroupLeave{commit.key, rank});
      std::move(joiner.done)(view);
    } else {
      RejectJoin(commit.key, rank, joiner,
                 absl::AlreadyExistsError(absl::StrCat("rank: ", rank.value(), " of group ", commit.key.name,
                                                       " was taken by another node")));
    }
  }
}

void GroupTable::OnMessage(const Peer& from, GroupJoin&& message) {
  if (message.rank.value() >= message.world_size || message.world_size > options_.limits.max_world_size) return;
  Forming& forming = forming_[message.key];
  auto [it, inserted] = forming.try_emplace(message.rank);
  if (!inserted && it->second.node != from.node) {
    const absl::Status taken =
        absl::AlreadyExistsError(absl::StrCat("rank: ", message.rank.value(), " of group ", message.key.name,
                                              " is joining on ", it->second.node, " and on ", from.node));
    if (!IsLocal(it->second)) {
      Joiner second;
      second.node = from.node;
      ++remote_joins_[from.node];
      return RejectJoin(message.key, message.rank, second, taken);
    }
    // Both nodes claim the rank at once. The other node may have committed already, so this node's join gives way.
    Joiner contested = std::exchange(it->second, Joiner{});
    inserted = true;
    RejectJoin(message.key, message.rank, contested, taken);
  }
  if (inserted) ++remote_joins_[from.node];
  forming.gave_up.erase(message.rank);
  it->second.node = from.node;
  it->second.world_size = message.world_size;
  it->second.recovery = message.recovery;
  it->second.next_seq = message.next_seq;
  if (remote_joins_[from.node] > kMaxRemoteJoins) {
    Joiner refused = std::move(it->second);
    forming.erase(it);
    if (forming.empty()) forming_.erase(message.key);
    RejectJoin(message.key, message.rank, refused,
               absl::ResourceExhaustedError(
                   absl::StrCat(kMaxRemoteJoins, " joins of ", from.node, " wait on ", peers_->self())));
    return;
  }
  Settle(message.key);
}

void GroupTable::OnMessage(const Peer& from, GroupLeave&& message) {
  auto it = forming_.find(message.key);
  if (it == forming_.end()) return;
  auto joiner = it->second.find(message.rank);
  if (joiner == it->second.end() || joiner->second.node != from.node) return;
  it->second.erase(joiner);
  it->second.GaveUp(message.rank, from.node);
  ForgetJoin(from.node);
  if (it->second.empty()) forming_.erase(it);
}

bool GroupTable::OnMessage(const Peer& from, GroupCommit&& message) {
  // Only rank 0's agent commits, under its own boot id.
  if (message.members.empty() || message.members[0] != from.node || message.epoch.boot != from.boot) return false;
  if (groups_.contains(message.epoch)) return false;
  const bool involved =
      std::find(message.members.begin(), message.members.end(), peers_->self()) != message.members.end();
  const auto it = forming_.find(message.key);
  if (it != forming_.end()) {
    const auto zero = it->second.find(Rank(0));
    if (zero != it->second.end() && zero->second.node != from.node) {
      // Another node holds the rank 0 that the joins here wait for. They go on waiting, and the members of this commit
      // hear that it is refused.
      if (involved) RefuseCommit(message);
      return false;
    }
  }
  Forming forming;
  if (it != forming_.end()) {
    forming = std::move(it->second);
    forming_.erase(it);
  }
  if (involved && HasAllLocals(message, forming)) {
    // Joins of the same key that this commit does not cover cannot exist: it names every rank of the world.
    AnswerJoins(message, forming);
    return true;
  }
  for (auto& [rank, joiner] : forming) {
    if (!IsLocal(joiner)) {
      ForgetJoin(joiner.node);
      continue;
    }
    RejectJoin(message.key, rank, joiner,
               absl::AbortedError(absl::StrCat("group ", message.key.name, " was committed on ", from.node,
                                               " without all ranks of ", peers_->self(), "; join again")));
  }
  if (involved) RefuseCommit(message);
  return true;
}

// True when every rank that a commit places here has joined here.
bool GroupTable::HasAllLocals(const GroupCommit& commit, const Forming& forming) const {
  for (uint32_t r = 0; r < commit.members.size(); ++r) {
    if (commit.members[r] != peers_->self()) continue;
    const auto joiner = forming.find(Rank(r));
    if (joiner == forming.end() || !IsLocal(joiner->second)) return false;
  }
  return true;
}

// Tells members that are up that the epoch is over. Keeps no state of the commit, and no names of nodes that only the
// commit knows.
void GroupTable::RefuseCommit(const GroupCommit& commit) {
  const std::string why = absl::StrCat("a rank of ", peers_->self(), " gave up joining group ", commit.key.name,
                                       " before it was committed; join again");
  const bool replayable = commit.recovery.policy == RecoveryPolicy::kWait;
  std::set<absl::string_view> told = {peers_->self()};
  for (const std::string& node : commit.members) {
    const Peer* const peer = told.insert(node).second ? peers_->Find(node) : nullptr;
    if (peer == nullptr || !peer->up) continue;
    outbox_->Send(node, GroupBroken{commit.epoch, JobSeq(0), absl::StatusCode::kAborted, why, replayable});
  }
}

void GroupTable::ForgetJoin(const std::string& node) {
  const auto found = remote_joins_.find(node);
  if (found != remote_joins_.end() && --found->second == 0) remote_joins_.erase(found);
}

void GroupTable::OnMessage(const Peer& from, GroupReject&& message) {
  auto it = forming_.find(message.key);
  if (it == forming_.end()) return;
  auto joiner = it->second.find(message.rank);
  if (joiner == it->second.end() || !IsLocal(joiner->second)) return;
  Joiner rejected = std::move(joiner->second);
  it->second.erase(joiner);
  if (it->second.empty()) forming_.erase(it);
  RejectJoin(message.key, message.rank, rejected,
             SaidBy(from.node, message.code, message.reason, message.failed_ranks));
}

bool GroupTable::OnMessage(const Peer& from, GroupBroken&& message) {
  Group* group = Find(message.epoch);
  if (group == nullptr || (group->broken && group->good_until <= message.last_seq)) return group != nullptr;
  group->replayable = !group->broken && message.replayable && group->recovery.policy == RecoveryPolicy::kWait;
  group->left = message.left;
  group->broken = true;
  group->good_until = message.last_seq;
  group->why = SaidBy(from.node, message.code, message.reason, message.failed_ranks);
  UpdatePatience(group->peers);
  // Other members may have lost the sender, or hear from it late. They must hear that the epoch is over before they
  // hear that this node aborts its jobs. `good_until` can fall at most once for each job under way.
  if (group->passed_on <= options_.limits.max_jobs_per_group) {
    ++group->passed_on;
    TellBroken(*group, from.index);
  }
  on_broken_(*group);
  return true;
}

void GroupTable::SendBroken(const Group& group, const Peer& to) {
  outbox_->Send(to.node, GroupBroken{group.epoch, group.good_until, group.why.code(), std::string(group.why.message()),
                                     group.replayable, group.left, FailedRanks(group.why)});
}

void GroupTable::TellBroken(const Group& group, std::optional<PeerIndex> except) {
  for (PeerIndex peer : group.peers) {
    if (peer != except && peers_->Get(peer).up) SendBroken(group, peers_->Get(peer));
  }
}

void GroupTable::Break(Group& group, JobSeq good_until, absl::Status why, Cause cause) {
  if (group.broken && group.good_until <= good_until) return;
  // A group that was broken before, by a failure or by a rank that left, cannot go on.
  group.replayable = !group.broken && cause == Cause::kDaemon && group.recovery.policy == RecoveryPolicy::kWait;
  group.left = cause == Cause::kLeft;
  group.broken = true;
  group.good_until = good_until;
  group.why = std::move(why);
  TellBroken(group);
  UpdatePatience(group.peers);
  on_broken_(group);
}

bool GroupTable::EndMembership(Group& group, Rank rank) {
  Group::Member& member = group.ranks[rank.value()];
  if (std::exchange(member.gone, true)) return false;
  if (Session* session = sessions_->FindAny(member.session)) {
    --session->memberships;
    session->memory->prepared().Remove(group.epoch, rank);
  }
  return true;
}

void GroupTable::MemberGone(Group& group, Rank rank, JobSeq finished_until, absl::Status why, bool left) {
  if (!group.ranks[rank.value()].local || !EndMembership(group, rank)) return;
  Break(group, finished_until, std::move(why), left ? Cause::kLeft : Cause::kFailure);
}

void GroupTable::AbandonJoins(SessionId session, const absl::Status& why) {
  for (auto it = forming_.begin(); it != forming_.end();) {
    const auto here = it++;
    for (auto joiner = here->second.begin(); joiner != here->second.end();) {
      if (!IsLocal(joiner->second) || joiner->second.session != session) {
        ++joiner;
        continue;
      }
      RejectJoin(here->first, joiner->first, joiner->second, why);
      here->second.GaveUp(joiner->first, peers_->self());
      joiner = here->second.erase(joiner);
    }
    if (here->second.empty()) forming_.erase(here);
  }
}

void GroupTable::OnPeerUp(const Peer& peer) {
  for (const Group* group : With(peer.index)) {
    if (group->broken && !group->Lost(peer.index)) SendBroken(*group, peer);
  }
  for (const auto& [key, forming] : forming_) {
    for (const auto& [rank, joiner] : forming) {
      if (IsLocal(joiner))
        outbox_->Send(peer.node, GroupJoin{key, joiner.world_size, rank, joiner.recovery, joiner.next_seq});
    }
  }
}

void GroupTable::OnPeerLost(const Peer& peer, const absl::Status& why, bool ended) {
  remote_joins_.erase(peer.node);
  for (auto it = forming_.begin(); it != forming_.end();) {
    const auto here = it++;
    absl::erase_if(here->second, [&](const auto& j) { return j.second.node == peer.node; });
    if (here->second.empty()) forming_.erase(here);
  }
  for (Group* group : With(peer.index)) {
    if (group->recovery.policy != RecoveryPolicy::kDegrade) {
      Break(*group, JobSeq(0), WithFailedRanks(why, group->RanksOf(peer.index)),
            ended ? Cause::kDaemon : Cause::kFailure);
    } else if (!group->Lost(peer.index)) {
      group->lost.push_back(peer.index);
      options_.log->warn("group_goes_on_without group={} epoch={:016x}.{} node={}", LogValue(group->key.name),
                         group->epoch.boot.value(), group->epoch.counter, peer.node);
    }
  }
}

void GroupTable::OnPeerSilent(const Peer& peer, const absl::Status& why) {
  for (Group* group : With(peer.index)) {
    if (group->recovery.policy != RecoveryPolicy::kFail) continue;
    Break(*group, JobSeq(0), WithFailedRanks(why, group->RanksOf(peer.index)));
  }
}

std::vector<Group*> GroupTable::With(PeerIndex peer) const {
  std::vector<Group*> groups;
  for (const auto& [epoch, group] : groups_) {
    if (std::find(group->peers.begin(), group->peers.end(), peer) != group->peers.end()) groups.push_back(group.get());
  }
  return groups;
}

absl::Time GroupTable::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, forming] : forming_) {
    for (const auto& [rank, joiner] : forming) next = std::min(next, joiner.deadline);
  }
  return next;
}

void GroupTable::EraseIfUnused(Epoch epoch, bool has_jobs) {
  auto it = groups_.find(epoch);
  if (it == groups_.end() || has_jobs || it->second->HasRanksHere()) return;
  const std::vector<PeerIndex> peers = it->second->peers;
  found_ = nullptr;
  groups_.erase(it);
  UpdatePatience(peers);
}

}  // namespace railsd
