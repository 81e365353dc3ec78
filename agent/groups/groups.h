// Groups: joins, the commit by rank 0's agent, epochs, and their end.
#ifndef RAILSD_AGENT_GROUPS_GROUPS_H_
#define RAILSD_AGENT_GROUPS_GROUPS_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/control/messages.h"
#include "agent/engine/peers.h"
#include "agent/groups/layout.h"
#include "agent/sessions/sessions.h"

namespace railsd {

// A committed group on this node.
struct Group {
  struct Member {
    bool local = false;
    uint32_t place = 0;  // among the ranks of its node
    PeerIndex peer;      // remote rank: its node
    SessionId session;   // local rank: its trainer's
    JobSeq last_seq;     // local rank: highest accepted submission
    bool gone = false;   // local rank: it has left, or its session has ended
  };
  // A draining node waits until another node's ranks have ended the jobs up to `seq`, which its own ranks have ended.
  // `peer` is the one of the two that is not this node.
  struct Leaver {
    PeerIndex peer;
    JobSeq seq;
    bool answered = false;
  };
  GroupKey key;
  Epoch epoch;
  std::vector<std::string> nodes_of_ranks;
  std::vector<Member> ranks;
  std::vector<Rank> local_ranks;
  std::vector<PeerIndex> peers;    // remote nodes with members
  std::vector<uint32_t> ranks_on;  // of `peers`, in that order
  bool broken = false;
  absl::Status why;
  JobSeq good_until;            // if broken: jobs up to this go on
  uint32_t passed_on = 0;       // if broken: how often this node has passed a peer's GroupBroken on
  bool replayable = false;      // if broken: a daemon has ended, and no trainer; the ranks may join again and go on
  bool left = false;            // if broken: a rank has left, and nothing has failed
  JobSeq last_done;             // highest job that has ended well for a local rank
  JobSeq cut;                   // while this node drains: jobs beyond it are refused
  std::vector<Leaver> leavers;  // peers that wait for this node's ranks and were not answered yet
  std::vector<Leaver> awaited;  // while this node drains: peers whose ranks it waits for
  std::shared_ptr<const GroupLayout> layout;
  Recovery recovery;
  std::vector<PeerIndex> lost;  // those of `peers` that the group goes on without

  bool Lost(PeerIndex peer) const { return std::find(lost.begin(), lost.end(), peer) != lost.end(); }

  // How many ranks a peer has.
  uint32_t RanksOn(PeerIndex peer) const;
  // A local rank has not left: the group is kept, also when it is broken.
  bool HasRanksHere() const;
  // The latest job that a local rank has submitted.
  JobSeq LastTaken() const;
  uint32_t world_size() const { return static_cast<uint32_t>(ranks.size()); }
  // "rank 3 on n1".
  std::string Describe(Rank rank) const;
  // Ascending.
  std::vector<Rank> RanksOf(PeerIndex peer) const;
  GroupView View() const;
};

// Sends control messages and counts them.
class Outbox {
 public:
  explicit Outbox(ControlLink* link) : link_(link) {}
  void Send(const std::string& node, ControlMessage message) {
    ++sent_;
    link_->Send(node, std::move(message));
  }
  absl::Status SendIfItFits(const std::string& node, ControlMessage&& message) {
    absl::Status status = link_->SendIfItFits(node, std::move(message));
    sent_ += status.ok();
    return status;
  }
  void SetPatience(const std::string& node, absl::Duration patience) { link_->SetPatience(node, patience); }
  uint64_t sent() const { return sent_; }

 private:
  ControlLink* const link_;
  uint64_t sent_ = 0;
};

// Owned by the engine's thread.
class GroupTable {
 public:
  // `on_broken(group)` is called when jobs after group.good_until must end with group.why.
  GroupTable(const AgentOptions& options, PeerTable* peers, SessionTable* sessions, Outbox* outbox,
             std::function<void(Group&)> on_broken);

  void Join(JoinRequest request, absl::Time now, Callback<absl::StatusOr<GroupView>> done);
  const Group* Find(Epoch epoch) const {
    if (found_ != nullptr && found_->epoch == epoch) return found_;
    const auto it = groups_.find(epoch);
    return found_ = it == groups_.end() ? nullptr : it->second.get();
  }
  Group* Find(Epoch epoch) { return const_cast<Group*>(std::as_const(*this).Find(epoch)); }
  // A local rank takes part in nothing more. `finished_until`: the last job of which it has finished its part. `left`:
  // its trainer called Leave.
  void MemberGone(Group& group, Rank rank, JobSeq finished_until, absl::Status why, bool left = false);
  // Ends an epoch here and tells the other members.
  enum class Cause : uint8_t {
    kFailure,
    kDaemon,  // no trainer is the cause: the ranks of a group that waits may join again and go on
    kLeft,    // a rank has left
  };
  void Break(Group& group, JobSeq good_until, absl::Status why, Cause cause = Cause::kFailure);
  // Tells a member why, and after which job, the broken group's epoch has ended.
  void SendBroken(const Group& group, const Peer& to);
  // Gives up the session's joins that wait for other ranks.
  void AbandonJoins(SessionId session, const absl::Status& why);

  void OnMessage(const Peer& from, GroupJoin&& message);
  void OnMessage(const Peer& from, GroupLeave&& message);
  // False: the sender may not commit this, or the epoch is known already.
  bool OnMessage(const Peer& from, GroupCommit&& message);
  void OnMessage(const Peer& from, GroupReject&& message);
  // False for an unknown epoch.
  bool OnMessage(const Peer& from, GroupBroken&& message);
  // Tells a peer that has just come up of the joins that wait here, and of its broken epochs. After a restart it may
  // have joined one through other nodes, before this node knew of the restart.
  void OnPeerUp(const Peer& peer);
  // Breaks the groups that do not go on without it. `ended`: its daemon has ended.
  void OnPeerLost(const Peer& peer, const absl::Status& why, bool ended);
  // Breaks the groups that neither wait for it nor go on without it.
  void OnPeerSilent(const Peer& peer, const absl::Status& why);
  // How long the live groups with that peer wait for it; zero: not at all.
  absl::Duration PatienceWith(PeerIndex peer) const;

  // Fails joins whose deadline has passed.
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;
  // Forgets a group whose local ranks are all gone.
  void EraseIfUnused(Epoch epoch, bool has_jobs);
  const absl::flat_hash_map<Epoch, std::unique_ptr<Group>>& all() const { return groups_; }
  std::vector<FormingView> FormingHere() const;
  uint64_t formed() const { return formed_; }  // so far

 private:
  struct Joiner {
    std::string node;
    uint32_t world_size = 0;
    Recovery recovery;
    JobSeq next_seq{1};
    // A local one's:
    SessionId session;
    absl::Time deadline = absl::InfiniteFuture();
    Callback<absl::StatusOr<GroupView>> done;
  };
  // The ranks that wait to join. Ranks that gave up are remembered, so that the error for the others does not say that
  // they never came.
  struct Forming : absl::btree_map<Rank, Joiner> {
    static constexpr size_t kMaxGaveUp = 16;  // a bound on what a peer can make us store
    void GaveUp(Rank rank, const std::string& node) {
      if (gave_up.size() < kMaxGaveUp) gave_up[rank] = node;
    }
    absl::btree_map<Rank, std::string> gave_up;  // with their nodes
  };

  absl::Status CheckJoin(const JoinRequest& request, const Session* session) const;
  absl::Status CheckNotMember(const GroupKey& key, Rank rank) const;
  // RESOURCE_EXHAUSTED when limits.max_groups leaves no room for a group of that key.
  absl::Status CheckRoom(const GroupKey& key) const;
  bool IsLocal(const Joiner& joiner) const { return joiner.node == peers_->self(); }
  void TellAll(const ControlMessage& message);
  // Ends one join with an error: a local one by its callback, a remote one by a REJECT.
  void RejectJoin(const GroupKey& key, Rank rank, Joiner& joiner, const absl::Status& why);
  // If rank 0 is here: rejects a forming group that contradicts itself, commits one that is complete.
  void Settle(const GroupKey& key);
  // Why a join does not fit that of rank 0; OK when it does.
  static absl::Status Contradiction(Rank rank, const Joiner& joiner, const Joiner& zero);
  // The same for the number of their next job. Checked when all ranks have joined, so that all hear of it.
  static absl::Status Disagreement(Rank rank, const Joiner& joiner, const Joiner& zero);
  // Why the forming group, whose rank 0 is here, cannot form; OK when it can, or when ranks are missing.
  static absl::Status CheckForming(const Forming& forming, const Joiner& zero);
  Group& Create(const GroupCommit& commit);
  // Ends the membership of a local rank. False: it has ended before.
  bool EndMembership(Group& group, Rank rank);
  void TellBroken(const Group& group, std::optional<PeerIndex> except = std::nullopt);
  std::vector<Group*> With(PeerIndex peer) const;
  // Call after a group with these peers has formed, has been broken or is gone.
  void UpdatePatience(const std::vector<PeerIndex>& with);
  void AnswerJoins(const GroupCommit& commit, Forming& forming);
  bool HasAllLocals(const GroupCommit& commit, const Forming& forming) const;
  void RefuseCommit(const GroupCommit& commit);
  void ForgetJoin(const std::string& node);
  absl::Status MissingRanks(const GroupKey& key, const Forming& forming, uint32_t world_size) const;

  const AgentOptions& options_;
  uint64_t formed_ = 0;
  PeerTable* const peers_;
  SessionTable* const sessions_;
  Outbox* const outbox_;
  const std::function<void(Group&)> on_broken_;
  uint64_t next_counter_ = 1;
  std::map<GroupKey, Forming> forming_;
  absl::flat_hash_map<std::string, size_t> remote_joins_;  // in forming_, by node; none is zero
  absl::flat_hash_map<Epoch, std::unique_ptr<Group>> groups_;
  mutable const Group* found_ = nullptr;  // by the last Find(): many messages in a row are about one group
};

}  // namespace railsd

#endif  // RAILSD_AGENT_GROUPS_GROUPS_H_
