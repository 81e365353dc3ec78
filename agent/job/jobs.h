// The table of jobs: submissions, OFFER and READY, completion, abort. "Terminal" is said only when nothing touches the
// rank's memory any more.
#ifndef RAILSD_AGENT_JOB_JOBS_H_
#define RAILSD_AGENT_JOB_JOBS_H_

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/job/copier.h"
#include "agent/job/explanation.h"
#include "agent/job/fence_slots.h"
#include "agent/job/groups.h"
#include "agent/job/node_job.h"
#include "agent/job/peers.h"
#include "agent/job/sessions.h"
#include "agent/job/sprayer.h"
#include "agent/rail/health.h"

namespace railsd {

// Owned by the engine's thread. Split over jobs_submit.cc (what trainers ask), jobs_match.cc (whether the two ends of
// an exchange agree), jobs_exchange.cc (what peers and rails say), jobs_remote.cc and jobs_rehome.cc (what they say
// over rails that write into remote memory), jobs_degrade.cc (going on without a node), jobs_waits.cc (what a job waits
// for), jobs_end.cc (how a job ends) and jobs_explain.cc (what is remembered of its course).
class JobTable {
 public:
  struct Parts {
    const AgentOptions* options;
    PeerTable* peers;
    SessionTable* sessions;
    GroupTable* groups;
    Outbox* outbox;
    std::vector<RailHandle>* rails;
    Sprayer* sprayer;
    const RailHealth* health;
    Copier* copier;
    AgentObserver* observer;  // may be null
  };
  // Offers of one peer that wait until this node's ranks have submitted the job take so many at most.
  static constexpr uint64_t kMaxHeldOfferBytes = 16 << 20;
  explicit JobTable(const Parts& parts);

  // The time that all methods below work with; set before each batch of calls.
  void SetNow(absl::Time now) { now_ = now; }

  void Submit(PreparedSubmission submission, Callback<absl::Status> done);
  void Wait(SessionId session, JobKey key, Rank rank, absl::Duration timeout, Callback<absl::StatusOr<JobReport>> done);
  void Cancel(SessionId session, JobKey key, Rank rank, Callback<absl::Status> done);
  // From now on only submissions up to each group's cut are taken: the highest sequence number that any member is known
  // to have submitted now.
  void SetDraining(bool draining);
  // A local rank's part of a job of the epoch, up to that one, has not ended.
  bool HasUnended(Epoch epoch, JobSeq until) const;
  // The same of one after that.
  bool HasUnendedAfter(Epoch epoch, JobSeq until) const;

  // False: of no known job (counted by the caller).
  bool OnMessage(const Peer& from, Offer&& message);
  bool OnMessage(const Peer& from, Ready&& message);
  bool OnMessage(const Peer& from, Abort&& message);
  bool OnMessage(const Peer& from, Quiesced&& message);
  bool OnMessage(const Peer& from, Sent&& message);
  bool OnMessage(const Peer& from, Rehome&& message);
  bool OnMessage(const Peer& from, Rehomed&& message);
  bool OnMessage(const Peer& from, Unsubmitted&& message);
  void OnRailEvent(RailIndex rail, const RailEvent& event);
  void OnCopyResult(const CopyResult& result);
  // A peer's link or one of its rails came up: what waited for it goes out.
  void OnPeerReachable(const Peer& peer);
  // A rail to the peer went down, and with it the keys of every zone on it.
  void OnRailLost(RailIndex rail, const Peer& peer);
  // The rail may carry nothing new to the peer, though its connection may be up.
  void OnRailUnusable(RailIndex rail, const Peer& peer);
  void OnPeerLost(const Peer& peer);
  // After OnPeerLost(): the jobs of groups that go on without the peer leave out what is to come from it or to go to
  // it.
  void GoOnWithout(const Peer& peer);
  void OnGroupBroken(const Group& group);
  // Tells receivers that cannot count it what was sent to them; call after the sprayer has posted.
  void SendTallies();
  // Call after what overflowed the rails' queues was retried.
  void SendHeldReadies();

  // The last job that the rank has finished its part of.
  JobSeq FinishedUntil(const Group& group, Rank rank) const;
  bool HasJobs(Epoch epoch) const;
  void ForgetGroup(Epoch epoch) { ended_.erase(epoch); }

  void Tick();
  // Forgets jobs that have ended; call when nothing refers to one, after each batch of calls.
  // True when there were any.
  bool Reap();
  // Ends the unfinished jobs of a session that ends, those of epochs that were left behind included.
  void AbortSession(SessionId session, const absl::Status& why);
  absl::Time NextDeadline() const { return next_deadline_; }

  size_t active_parts() const { return active_parts_; }
  // What peers have written into this node's memory over the rail, as they say.
  uint64_t told_rx_bytes(size_t rail) const { return told_rx_bytes_[rail]; }
  // What this node has written into peers' memory over the rail and its receivers count, each byte once: after a rail
  // has failed, the transport may see bytes acknowledged that are sent again all the same, and bytes that arrived given
  // back as failed.
  uint64_t sent_bytes(size_t rail) const { return sent_bytes_[rail]; }
  // What plans have put onto the rail; late binding and failures may have moved it since.
  uint64_t planned_bytes(size_t rail) const { return planned_bytes_[rail]; }
  void FillCounters(AgentCounters* counters) const;
  // As Agent::Explain().
  absl::StatusOr<JobExplanation> Explain(const WantedJob& wanted) const;
  std::vector<JobReport> ActiveReports() const;
  std::vector<JobReport> FinishedReports() const;

 private:
  // What is remembered of a group's jobs that have ended.
  struct Finished {
    SessionId session;
    Digest digest{};
    JobReport report;
    uint64_t node_in_bytes = 0;  // of the job on this node, from other nodes
  };
  struct Ended {
    std::map<std::pair<JobSeq, Rank>, Finished> reports;
    std::map<JobSeq, absl::Status> tombstones;  // of aborted jobs
  };
  struct Slot {
    uint32_t generation = 0;
    NodeJob* job = nullptr;
    PeerExchange* exchange = nullptr;
    uint32_t rails_open = 0;  // rails that have not confirmed the close
  };
  // A READY that may not leave yet: a rail's queue was full when its zones were opened.
  struct HeldReady {
    uint32_t slot, generation;
  };
  // Zones that wait for room for their fences, or for a rail to their peer.
  struct WaitingZones {
    JobKey job;
    PeerIndex peer;
  };
  // jobs_submit.cc
  absl::Status CheckAdmission(const PreparedSubmission& submission, Group** group, Session** session) const;
  bool IsUnderWay(const PreparedSubmission& submission) const;
  absl::Status CheckNew(const PreparedSubmission& submission, Group& group, Session& session);
  absl::Status CheckRepeated(const PreparedSubmission& submission) const;
  NodeJob& FindOrCreate(const Group& group, JobKey key);
  void Accept(PreparedSubmission submission, Group& group, Session& session);
  void StartIfComplete(NodeJob& job, Group& group);
  void Start(NodeJob& job, Group& group);
  absl::Status BuildFlows(NodeJob& job, Group& group);
  // Copies between the rank and those of this node that have submitted, too.
  void BeginCopies(NodeJob& job, const Group& group, RankPart& part);
  void BeginCopy(NodeJob& job, RankPart& from, RankPart& to);
  absl::Status CheckLocalFlows(NodeJob& job, const Group& group) const;
  // To the exchanges with other nodes: what the part sends, and what it expects.
  void AddOutFlows(NodeJob& job, const Group& group, RankPart& part);
  void AddInFlows(NodeJob& job, const Group& group, RankPart& part);

  // jobs_match.cc
  // Checks the flows of an offer, and its bytes while ranks of this node have not submitted the job.
  absl::Status TakeOffer(NodeJob& job, const Group& group, PeerExchange& exchange, const Offer& offer);
  // The job begins or ends: its offers wait for no rank.
  void ReleaseOffers(NodeJob& job);
  void SendOffer(NodeJob& job, PeerExchange& exchange);
  absl::Status CheckOffer(const NodeJob& job, const Group& group, const PeerExchange& exchange) const;
  void Match(NodeJob& job, const Group& group, PeerExchange& exchange);
  void OpenZones(NodeJob& job, PeerExchange& exchange);

  // jobs_exchange.cc
  // Gives the set a slot and tells every rail of it.
  void HandOverZones(NodeJob& job, PeerExchange& exchange, std::shared_ptr<ReceiveSet> set);
  void SendReady(NodeJob& job, PeerExchange& exchange, uint32_t slot);
  // No zone waits for room in a rail's queue.
  bool ZonesHandedOver() const;
  void PlanExchange(NodeJob& job, PeerExchange& exchange);
  void MaybeRunning(NodeJob& job);
  void CloseZones(PeerExchange& exchange, bool writers_stopped = true);
  void OnZonesQuiet(Slot& slot);
  void OnSendDone(const RailEvent& event);
  void OnReceived(RailIndex rail, const RailEvent& event);
  void OnReceiveFault(const RailEvent& event);
  void OnZonesClosed(const RailEvent& event);
  Slot* FindSlot(const RailEvent& event);

  // jobs_remote.cc
  void OpenRemoteZones(NodeJob& job, PeerExchange& exchange, std::shared_ptr<ReceiveSet> set);
  void OpenWaitingZones();
  // False: no room for its fences, or no rail to the peer.
  bool TryOpenRemote(NodeJob& job, PeerExchange& exchange);
  void ReleaseFences(const ReceiveSet& set);
  void OnZonesOpened(RailIndex rail, const RailEvent& event);
  void AddRanges(const PeerExchange& exchange, Ready* ready) const;
  // Takes over where the flows land.
  absl::Status FillRemote(const NodeJob& job, PeerExchange& exchange) const;
  void StartFenced(PeerExchange& exchange);
  void OnFence(RailIndex rail, const RailEvent& event);
  void OnFencedDone(NodeJob& job, PeerExchange& exchange, const InFlight& done);
  // jobs_rehome.cc
  // Bytes that their receiver counts; each is counted once, whatever is sent again.
  void CountSent(NodeJob& job, PeerIndex peer, RailIndex rail, uint64_t bytes);
  // A rail gave back what certainly has not arrived: it goes another way.
  void OnReturned(NodeJob& job, const InFlight& done, const RailEvent& event);
  void OnOrderLost(NodeJob& job, const InFlight& done, const RailEvent& event);
  // The exchange cannot use the rail any more.
  void LoseRail(PeerExchange& exchange, size_t rail);
  // A further READY takes rails away.
  bool OnKeysLost(NodeJob& job, PeerExchange& exchange, const Ready& message);
  void SendKeysLost(const NodeJob& job, PeerExchange& exchange, RailIndex rail);
  // The sender's side of a rail that failed.
  void OnSenderLostRail(NodeJob& job, PeerExchange& exchange, RailIndex rail);
  // Asks the receiver what it has, once everything that was posted to the lost rails has come back.
  void AskWhatArrived(NodeJob& job, PeerExchange& exchange);
  // When jobs stop waiting for any rail to the peer.
  absl::Time StrandedUntil(const Peer& peer, absl::Duration patience = absl::ZeroDuration()) const;
  // Rails have brought something back and the peer has taken nothing for too long. True: the job has failed.
  bool FailIfFruitless(NodeJob& job, PeerExchange& exchange);
  // Fails the jobs that have been waiting for any rail to a peer for too long.
  void FailStranded();
  // Nothing is left to send it over.
  void FailIfStranded(NodeJob& job, PeerExchange& exchange, RailIndex rail);
  void CreditLost(NodeJob& job, RankPart& part, FencedFlow& fenced);
  void FinishFlow(NodeJob& job, PeerExchange& exchange, OutFlow& flow);
  void RestartFlow(NodeJob& job, PeerExchange& exchange, uint32_t zone);
  // Closes the zones of an aborted job as soon as their writers have stopped, or are given up.
  void CloseWhenQuiesced(PeerExchange& exchange);
  // Tells peers that wait for it that this node writes nothing more for an aborted job.
  void SendQuiesced(NodeJob& job);
  void AddTally(JobKey key, PeerIndex peer, const std::vector<uint64_t>& before, const std::vector<uint64_t>& now);

  // jobs_end.cc
  void AbortJob(NodeJob& job, absl::Status why, bool tell_peers);
  // Aborts at every member; breaks the group as well when `env` (a node, rail or trainer failed) or data was moving.
  void FailJob(NodeJob& job, absl::Status why, bool environment);
  // A receiver drains what this job sends: it has aborted, and its ABORT, which says why, comes on another connection.
  void ExpectAbort(NodeJob& job, const Peer& peer);
  // jobs_degrade.cc
  void LeaveOut(NodeJob& job, const Group& group, PeerExchange& exchange);
  void LeaveOutSends(NodeJob& job, PeerExchange& exchange);
  void LeaveOutReceives(NodeJob& job, PeerExchange& exchange);
  // An order to a peer that is left out came back.
  void OnLeftOutDone(NodeJob& job, const InFlight& done, const RailEvent& event);
  void FinishIfDone(NodeJob& job, Rank rank);
  void FinishIfDone(NodeJob& job);  // of every local rank
  void FinishPart(NodeJob& job, RankPart& part, absl::Status status);
  // Hands the job to Reap() when nothing of it is left here; ends the parts of an aborted one when it is quiescent.
  void Settle(NodeJob& job);
  bool Quiescent(const NodeJob& job) const;
  void FillReport(const NodeJob& job, const RankPart& part, JobReport* out) const;
  // jobs_explain.cc
  std::unique_ptr<JobTimeline> NewTimeline();
  void NoteReceived(NodeJob& job, PeerExchange& exchange, RailIndex rail);
  // `speed`: of all rails, in bytes per second.
  void FillUse(const NodeJob& job, double speed, JobReport* report) const;
  // All but the timeline.
  JobExplanation ExplanationOf(const NodeJob& job) const;
  // Of a job that is about to be forgotten.
  void KeepExplanation(NodeJob& job);
  void LogEnd(const NodeJob& job) const;

  // No rank of the group can be further ahead of this node's ranks.
  uint64_t LastExpected(const Group& group) const {
    return group.LastTaken().value() + 2 * uint64_t{options_.limits.max_jobs_per_group};
  }
  // True: it is new, and a local rank may still submit the job.
  bool Tombstone(const Group& group, JobSeq seq, const absl::Status& why);
  static Abort AbortOf(JobKey key, const absl::Status& why) {
    return {key, why.code(), std::string(why.message()), false};
  }
  void TellAborted(const Group& group, JobKey key, const absl::Status& why,
                   std::optional<PeerIndex> except = std::nullopt);
  // jobs_waits.cc
  // Local ranks that have not submitted.
  std::vector<Unsubmitted::Member> UnsubmittedHere(const NodeJob& job, const Group& group) const;
  void TellUnsubmitted(NodeJob& job);
  // "for rank 3 on n1 (pid 42) to submit".
  std::string WaitsFor(const NodeJob& job) const;
  absl::Status DeadlineStatus(const NodeJob& job, const RankPart& part) const;
  void Sooner(absl::Time deadline) { next_deadline_ = std::min(next_deadline_, deadline); }
  NodeJob* Find(JobKey key);
  // Frees what refers to so many ranges, and nothing refers to: on another thread when they are many.
  template <typename T>
  void Discard(uint64_t ranges, T garbage) {
    constexpr uint64_t kManyRanges = 4096;
    if (ranges > kManyRanges) copier_.Free(std::make_shared<T>(std::move(garbage)));
  }

  const AgentOptions& options_;
  PeerTable& peers_;
  SessionTable& sessions_;
  GroupTable& groups_;
  Outbox& outbox_;
  std::vector<RailHandle>& rails_;
  Sprayer& sprayer_;
  const RailHealth& health_;
  Copier& copier_;
  AgentObserver* const observer_;
  const bool remote_;          // the rails write into remote memory
  const uint32_t fence_room_;  // of every rail

  absl::Time now_;
  absl::Time next_deadline_ = absl::InfiniteFuture();
  bool draining_ = false;
  uint64_t next_tag_ = 1;
  absl::flat_hash_map<JobKey, std::unique_ptr<NodeJob>> jobs_;
  absl::flat_hash_map<JobTag, NodeJob*> by_tag_;
  absl::flat_hash_map<Epoch, Ended> ended_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  std::vector<HeldReady> held_readies_;
  FenceSlots fence_slots_;
  std::deque<WaitingZones> waiting_zones_;
  std::vector<uint64_t> told_rx_bytes_, sent_bytes_, planned_bytes_;
  Ledger ledger_;
  PlanWorkspace workspace_;
  std::vector<PlanFlow> plan_flows_;
  std::vector<PlanRail> plan_rails_;
  absl::flat_hash_map<PeerIndex, uint64_t> held_offers_;  // bytes
  std::vector<JobKey> ended_jobs_;                        // for Reap()
  size_t active_parts_ = 0;
  uint64_t ingress_left_bytes_ = 0;  // announced to come, not here yet
  AgentCounters counters_;
  std::deque<JobReport> recent_;                 // finished, newest first
  std::deque<JobExplanation> explained_;         // finished, newest first
  std::unique_ptr<JobTimeline> spare_timeline_;  // storage for the next job
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOB_JOBS_H_
