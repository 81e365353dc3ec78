// The table of jobs: submissions, READY and grants, completion, abort. "Terminal" is said only when nothing touches the
// rank's memory any more.
#ifndef RAILSD_AGENT_JOBS_JOB_TABLE_H_
#define RAILSD_AGENT_JOBS_JOB_TABLE_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "agent/agent.h"
#include "agent/base/failed_ranks.h"
#include "agent/groups/groups.h"
#include "agent/jobs/admission.h"
#include "agent/jobs/copier.h"
#include "agent/jobs/eager.h"
#include "agent/jobs/exchange_planner.h"
#include "agent/jobs/grants.h"
#include "agent/jobs/late_binder.h"
#include "agent/jobs/node_job.h"
#include "agent/jobs/ready.h"
#include "agent/jobs/records.h"
#include "agent/jobs/rehomer.h"
#include "agent/jobs/reports.h"
#include "agent/jobs/streams.h"
#include "agent/jobs/tallies.h"
#include "agent/rails/health.h"
#include "agent/rails/rail_speeds.h"
#include "agent/sessions/sessions.h"

namespace railsd {

// Owned by the engine's thread. job_table.cc has what trainers ask and how a job begins, job_course.cc what becomes of
// it.
class JobTable {
 public:
  struct Parts {
    const AgentOptions* options;
    PeerTable* peers;
    SessionTable* sessions;
    GroupTable* groups;
    Outbox* outbox;
    std::vector<RailHandle>* rails;
    ZoneTable* zones;
    RailBoard* board;
    RailSpeeds* speeds;
    const RailHealth* health;
    Copier* copier;
    AgentObserver* observer;  // may be null
  };
  explicit JobTable(const Parts& parts);

  // The time that all methods below work with; set before each batch of calls.
  void SetNow(absl::Time now) { now_ = now; }

  // Calls of trainers.
  void Submit(CheckedSubmission submission, Callback<absl::Status> done);
  void Keep(CheckedSubmission layout, Callback<absl::Status> done) {
    const absl::Status status = admission_.Keep(layout);
    layout.Release();  // before the caller is told, who may then remove the segments
    Discard(layout.ranges, std::move(layout));
    std::move(done)(status);
  }
  void Wait(SessionId session, JobKey key, Rank rank, absl::Duration timeout, Callback<absl::StatusOr<JobReport>> done);
  void Cancel(SessionId session, JobKey key, Rank rank, Callback<absl::Status> done);
  void SetDraining(bool draining) { admission_.SetDraining(draining); }
  // Ends the unfinished jobs of a session that ends, also those of epochs that are over.
  void AbortSession(SessionId session, const absl::Status& why);

  // Messages of peers. False: the message does not fit a known job, or comes too late; the caller counts it as ignored.
  bool OnMessage(const Peer& from, Ready&& message);
  bool OnMessage(const Peer& from, LateGrant&& message);
  bool OnMessage(const Peer& from, Tally&& message);
  bool OnMessage(const Peer& from, Abort&& message);
  bool OnMessage(const Peer& from, Quiesced&& message);
  bool OnMessage(const Peer& from, Rehome&& message) { return rehomer_.OnMessage(from, std::move(message)); }
  bool OnMessage(const Peer& from, Rehomed&& message) { return rehomer_.OnMessage(from, std::move(message)); }
  bool OnMessage(const Peer& from, Unsubmitted&& message);
  // The peer's daemon has this node's READY of the job, which had eager bytes.
  void OnReadyTaken(const Peer& by, JobKey key) { eager_.OnReadyTaken(by.index, key); }

  // Events of rails and copiers.
  void OnRailEvent(RailIndex rail, const RailEvent& event);
  void OnCopyResult(const CopyResult& result);
  // A connection of the rail to the peer is up; OnPeerReachable() follows.
  void OnRailUp(RailIndex rail, const Peer& peer, uint64_t connection);
  // A connection of the rail to the peer has ended.
  void OnRailLost(RailIndex rail, const Peer& peer, uint64_t connection);
  // A rail may carry nothing new to the peer, though its connection may be up.
  void OnRailUnusable(const Peer& peer);
  // A peer's link or one of its rails came up: jobs that waited for it go on.
  void OnPeerReachable(const Peer& peer);
  void OnPeerLost(const Peer& peer);
  // After OnPeerLost(): the jobs of groups that go on without the peer leave out the exchanges with
  // it.
  void GoOnWithout(const Peer& peer);
  void OnGroupBroken(const Group& group);

  void Tick();
  // Asks peers about exchanges in doubt, sends grants for which there is room now, and moves work between rails. Call
  // after a batch of events and messages.
  void GoOn() {
    grants_.SendIfRoomWasFreed();
    rehomer_.AskMarked();
    late_binder_.Run(now_);
  }
  // Forgets jobs that have ended; call when nothing refers to one, after each batch of calls. True when there were any.
  bool Reap();
  absl::Time NextDeadline() const { return std::min(next_deadline_, late_binder_.NextDeadline()); }

  // The last job that the rank has finished its part of.
  JobSeq FinishedUntil(const Group& group, Rank rank) const;
  // True when a local rank's part of a job of the epoch, up to `until`, has not ended.
  bool HasUnended(Epoch epoch, JobSeq until) const {
    return AnyOf(jobs_, epoch, [until](const NodeJob& job) { return job.key.seq <= until && job.HasUnendedPart(); });
  }
  // The same for jobs after `until`.
  bool HasUnendedAfter(Epoch epoch, JobSeq until) const {
    return AnyOf(jobs_, epoch, [until](const NodeJob& job) { return job.key.seq > until && job.HasUnendedPart(); });
  }
  bool HasJobs(Epoch epoch) const {
    return AnyOf(jobs_, epoch, [](const NodeJob&) { return true; });
  }
  void ForgetGroup(Epoch epoch) { records_.ForgetGroup(epoch); }

  // Views for operators.
  size_t active_parts() const { return active_parts_; }
  const JobRecords& records() const { return records_; }
  // Bytes that this node has sent over the rail, each once: bytes that had arrived when their rail failed count once,
  // even if they were sent again.
  uint64_t sent_bytes(size_t rail) const { return sent_bytes_[rail]; }
  // Bytes in zones that are open, by peer and rail.
  std::vector<BytesByRail> LandingByPeer() const { return railsd::LandingByPeer(jobs_, context_); }
  // Time that jobs have waited for READY so far, in waits that are not over; by peer.
  std::vector<absl::Duration> WaitsByPeer() const { return railsd::WaitsByPeer(jobs_, peers_, now_); }
  // Bytes that came over the rail although they had arrived before, after a rail had failed.
  uint64_t landed_again(size_t rail) const { return landed_again_[rail]; }
  uint64_t planned_bytes(size_t rail) const { return planner_.planned_bytes(rail); }
  void FillCounters(AgentCounters* counters) const;
  std::vector<JobReport> ActiveReports() const { return railsd::ActiveReports(jobs_, context_, health_, now_); }
  // As Agent::Explain().
  absl::StatusOr<JobExplanation> Explain(const WantedJob& wanted) const {
    return ExplainJob(wanted, jobs_, records_, context_, groups_, sessions_, health_, now_);
  }

 private:
  // job_table.cc
  static ExchangeContext ContextOf(const Parts& parts);
  NodeJob& FindOrCreate(const Group& group, JobKey key);
  void Accept(CheckedSubmission submission, Group& group, Session& session);
  void Start(NodeJob& job, const Group& group);
  // The job's streams are built: tells the peers.
  void Announce(NodeJob& job, const Group& group);
  // This node's ends of the rails, as READYs tell them.
  Ready::Rails RailsNow();
  void SendReady(NodeJob& job, Exchange& exchange, const Ready::Rails& rails);
  // `ready` has come from the exchange's peer; parts of it are moved out.
  void Compare(NodeJob& job, const Group& group, Exchange& exchange, Ready& ready);
  void TakeGrant(NodeJob& job, const Group& group, Exchange& exchange, const Grant& grant);
  // Tells rails that chunks of the job are about to come, so that lower priorities pause.
  void Expect(const NodeJob& job);
  void PlanExchange(NodeJob& job, const Group& group, Exchange& exchange);
  void TellUnsubmitted(NodeJob& job);
  void MaybeRunning(NodeJob& job);
  void EndWait(Exchange& exchange) { peers_.Get(exchange.peer).ready_wait += exchange.EndWait(now_); }

  // job_course.cc
  void OnSendReport(RailIndex rail, const RailEvent& report);
  void OnSendFault(NodeJob& job, Exchange& exchange, RailIndex rail, const RailEvent& fault);
  void OnAcknowledged(Exchange& exchange, RailIndex rail, uint64_t offset_bytes, uint64_t length_bytes);
  // Counts bytes that were in doubt when their rail failed and that have arrived.
  void CountArrived(Exchange& exchange);
  void OnZoneEvent(RailIndex rail, const RailEvent& event);
  // Call when a zone may be quiet.
  void SettleZone(NodeJob& job, Exchange& exchange);
  void AbortJob(NodeJob& job, absl::Status why, std::optional<PeerIndex> told_by = std::nullopt);
  // Aborts at every member; breaks the group as well when the environment (a node, rail or trainer) failed or the job
  // ran.
  void FailJob(NodeJob& job, absl::Status why, bool environment);
  // A receiver has closed its zone early: it has aborted the job, and its ABORT, which says why, comes on the link.
  void ExpectAbort(NodeJob& job, Exchange& exchange);
  void CloseAborted(Exchange& exchange);
  // Tells peers that this node writes nothing more for an aborted job.
  void SayQuiesced(NodeJob& job);
  void LeaveOut(NodeJob& job, const Group& group, Exchange& exchange);
  // LeaveOut() without the check whether the job is done.
  void DropExchange(NodeJob& job, const Group& group, Exchange& exchange);

  void FinishIfDone(NodeJob& job);
  void FinishPart(NodeJob& job, RankPart& part, absl::Status status);
  // Hands the job to Reap() when nothing of it is left here; ends the parts of an aborted one when it is quiescent.
  void Settle(NodeJob& job);
  void TellAborted(const Group& group, JobKey key, const absl::Status& why,
                   std::optional<PeerIndex> except = std::nullopt);
  bool AddTombstone(const Group& group, JobKey key, const absl::Status& why);

  bool MayAsk(const Peer& from, JobKey key) {
    const Group* const group = groups_.Find(key.epoch);
    return group == nullptr || (group->RanksOn(from.index) > 0 && !group->Lost(from.index));
  }
  static Abort AbortOf(JobKey key, const absl::Status& why) {
    return {key, why.code(), std::string(why.message()), FailedRanks(why)};
  }
  void Sooner(absl::Time deadline) { next_deadline_ = std::min(next_deadline_, deadline); }
  // Frees an object that refers to so many ranges and is not used any more: on another thread when they are many.
  template <typename T>
  void Discard(uint64_t ranges, T garbage) {
    if (ranges > kManyRanges) {
      copier_.Run([garbage = std::make_shared<T>(std::move(garbage))] {});
    }
  }
  // More ranges take the engine's thread too long.
  static constexpr uint64_t kManyRanges = 4096;

  const AgentOptions& options_;
  PeerTable& peers_;
  SessionTable& sessions_;
  GroupTable& groups_;
  Outbox& outbox_;
  std::vector<RailHandle>& rails_;
  ZoneTable& zones_;
  const RailHealth& health_;
  Copier& copier_;
  AgentObserver* const observer_;
  const ExchangeContext context_;

  absl::Time now_;
  absl::Time next_deadline_ = absl::InfiniteFuture();
  uint64_t next_tag_ = 1;
  JobMap jobs_;
  absl::flat_hash_map<JobTag, NodeJob*> by_tag_;
  JobRecords records_;
  Admission admission_;
  Rehomer rehomer_;
  EagerExchanges eager_;
  Grants grants_;
  ExchangePlanner planner_;
  HeldReadys held_readys_;
  Tallies tallies_;
  LateBinder late_binder_;
  std::vector<uint64_t> sent_bytes_, landed_again_;
  StreamBuilder builder_;                                                 // of jobs with few ranges
  absl::flat_hash_map<JobTag, std::shared_ptr<StreamBuilder>> builders_;  // of others, in use by other threads
  std::vector<JobKey> ended_jobs_;                                        // for Reap()
  size_t active_parts_ = 0;
  AgentCounters counters_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_JOB_TABLE_H_
