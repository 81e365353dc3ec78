// The engine: everything of the agent that has state, on one thread and without a clock of its own. `Agent` gives it a
// thread; tests step it by hand.
#ifndef RAILSD_AGENT_ENGINE_ENGINE_H_
#define RAILSD_AGENT_ENGINE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/engine/early.h"
#include "agent/engine/peers.h"
#include "agent/groups/groups.h"
#include "agent/jobs/copier.h"
#include "agent/jobs/job_table.h"
#include "agent/jobs/validate.h"
#include "agent/rails/health.h"
#include "agent/rails/rail.h"
#include "agent/rails/rail_speeds.h"
#include "agent/sessions/sessions.h"
#include "agent/sessions/tenants.h"

namespace railsd {

class Engine {
 public:
  // `rails` has one entry per rail, in order of index. The speeds in options.rails are resolved. `zones` and `board`
  // are shared with the rails. All pointers outlive the engine; `observer` may be null.
  Engine(AgentOptions options, std::vector<RailPort*> rails, ZoneTable* zones, RailBoard* board, ControlLink* link,
         AgentObserver* observer, Copier* copier);

  // Sets the time that all methods go by until the next call. Call before each batch.
  void SetNow(absl::Time now);

  // As in agent/agent.h.
  void OpenSession(SessionInfo info, Callback<absl::StatusOr<SessionId>> done);
  void CloseSession(SessionId session, const std::string& reason, Callback<absl::Status> closed);
  void ReserveSegment(SessionId session, SegmentId id, uint64_t length_bytes, Callback<absl::Status> done) {
    std::move(done)(sessions_.ReserveSegment(session, id, length_bytes));
  }
  // A segment's room is taken before it is mapped, and kept until AddSegment() has brought the result: the segment,
  // registered on every rail that must know of it, or the error.
  absl::Status BeginMapping(SessionId session, SegmentId id, uint64_t length_bytes) {
    return sessions_.BeginMapping(session, id, length_bytes);
  }
  void AddSegment(SessionId session, SegmentId id, absl::StatusOr<std::shared_ptr<const Segment>> segment,
                  Callback<absl::Status> done);
  void RemoveSegment(SessionId session, SegmentId id, Callback<absl::Status> done);
  void Join(JoinRequest request, Callback<absl::StatusOr<GroupView>> done);
  void Leave(SessionId session, Epoch epoch, Rank rank, Callback<absl::Status> done);
  // Checks a submission as far as that needs no state of the engine. Any thread.
  CheckedSubmission Check(const Submission& submission) const {
    return CheckSubmission(submission, sessions_.MemoryOf(submission.session),
                           max_ranges_.load(std::memory_order_relaxed));
  }
  // As in agent/agent.h. Any thread.
  bool IsQuickToCheck(SessionId session) const {
    const std::shared_ptr<SessionMemory> memory = sessions_.MemoryOf(session);
    return memory == nullptr || memory->claimed()->IsQuick();
  }
  void Submit(CheckedSubmission submission, Callback<absl::Status> done) {
    jobs_.Submit(std::move(submission), std::move(done));
  }
  // As Check(), for ranges that are to become a prepared exchange.
  CheckedSubmission CheckLayout(const Submission& layout) const {
    return railsd::CheckLayout(layout, sessions_.MemoryOf(layout.session), max_ranges_.load(std::memory_order_relaxed));
  }
  void KeepPrepared(CheckedSubmission layout, Callback<absl::Status> done) {
    jobs_.Keep(std::move(layout), std::move(done));
  }
  void ReleasePrepared(SessionId session, PreparedId id, Callback<absl::Status> done);
  void Wait(SessionId session, JobKey job, Rank rank, absl::Duration timeout,
            Callback<absl::StatusOr<JobReport>> done) {
    jobs_.Wait(session, job, rank, timeout, std::move(done));
  }
  void Cancel(SessionId session, JobKey job, Rank rank, Callback<absl::Status> done) {
    jobs_.Cancel(session, job, rank, std::move(done));
  }
  void OnPeerUp(const PeerHello& hello);
  void OnPeerDown(const std::string& node, const std::string& why, bool ended = false);
  void OnPeerSilent(const std::string& node, const std::string& why);
  void OnPeerForgotten(const std::string& node);
  // Sends a signal from this node's end of a rail to the peer's end; dropped while the peer is not up.
  void SendSignal(RailIndex rail, PeerIndex peer, std::string bytes);
  void OnPeerMessage(const std::string& node, BootId boot, ControlMessage&& message);
  void OnReadyTaken(const std::string& node, BootId boot, const std::vector<JobKey>& jobs);
  void Drain(absl::Duration limit, Callback<absl::Status> drained);
  void Undrain();
  void Retune(const AgentTuning& tuning);
  void DrainRail(const std::string& rail, bool drained, Callback<absl::Status> done);
  AgentSnapshot Snapshot(size_t queue_depth) const;
  absl::StatusOr<JobExplanation> Explain(const WantedJob& wanted) const { return jobs_.Explain(wanted); }
  // Ends every session. Waiting callers get their answers while Step() is called until Idle().
  void Shutdown();
  // No job is active: nothing touches the memory of any session.
  bool Idle() const { return jobs_.active_parts() == 0; }

  // Takes the rails' events and the copies' results, looks at deadlines. True: did something, call again before
  // sleeping.
  bool Step();
  // When Step() must be called again even if nothing happens.
  absl::Time NextDeadline() const;

 private:
  bool TakeRailEvents();
  // Tells rails of tenants' shares, if they have changed.
  void TellShares();
  void OnRailEvent(RailIndex rail, const RailEvent& event);
  void LosePeer(Peer& peer, const std::string& why, bool ended);

  // engine_health.cc: connections that come and go, and the effect on work and peers.
  void OnPathEvent(RailIndex rail, const RailEvent& event);
  void OnLinkEvent(RailIndex rail, const RailEvent& event);
  void OnStallEvent(RailIndex rail, const RailEvent& event);
  bool OnPeerRailState(const Peer& from, const RailState& message);
  // Call when the health of paths may have changed. Work leaves rails that it may not use any more, and goes on over
  // rails for which it has waited.
  void RefreshPaths(Peer& peer);
  void RefreshAllPaths();
  // Tells all peers which of this node's ends have become usable or unusable since they were told last.
  void TellEnds();
  void TellEndsTo(Peer& peer);

  // False: the message was ignored, because it fits nothing that is known here.
  bool Dispatch(const Peer& from, ControlMessage&& message);
  bool OnSignal(const Peer& from, RailSignal&& signal);
  // Whether `from` may send messages about that epoch. True for an epoch that is not known (yet).
  bool MaySpeak(const Peer& from, Epoch epoch);
  void KeepEarly(const Peer& from, Epoch epoch, ControlMessage message);
  void Drop(EarlyMessages::Message early);
  // Delivers messages that were early for a group that has formed since the last call.
  void ReplayEarly();
  void Sweep();

  // engine_drain.cc: this node leaves, or another one does.
  void FinishDrain();
  // Call when a drain has ended well: no further job is taken.
  void CloseCuts();
  // True if every job that has ended well here has ended at the other nodes, too. Asks nodes that have not confirmed
  // it. `*waits_for` says which job this node still waits for, and on which node.
  bool OthersHaveEnded(std::string* waits_for);
  bool OnLeaving(const Peer& from, const Leaving& message);
  bool OnMayLeave(const Peer& from, const MayLeave& message);
  void AnswerLeavers();

  std::atomic<uint32_t> max_ranges_;  // as in options_, for Check()
  AgentOptions options_;              // the tables refer to it, so that Retune() changes their limits
  AgentObserver* const observer_;
  Copier* const copier_;
  Outbox outbox_;
  PeerTable peers_;
  TenantTable tenants_;  // outlives the sessions, which hold theirs
  SessionTable sessions_;
  std::vector<RailHandle> rails_;
  GroupTable groups_;
  RailSpeeds speeds_;
  RailHealth health_;
  std::vector<RailState> told_ends_;                // what peers know of this node's ends, by rail
  absl::Time health_due_ = absl::InfiniteFuture();  // when a path's state changes by itself
  JobTable jobs_;
  absl::Time now_;
  std::vector<RailEvent> events_;  // scratch
  RailShares told_shares_;         // as rails were told last
  EarlyMessages early_;
  uint64_t replayed_formed_ = 0;  // groups_.formed() when early messages were looked at last
  bool sweep_ = false;
  bool draining_ = false;
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  Callback<absl::Status> drained_;
  bool leavers_ = false;  // peers wait for jobs of this node's ranks to end (Group::leavers)
  uint64_t messages_in_ = 0, messages_ignored_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_ENGINE_ENGINE_H_
