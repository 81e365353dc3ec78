// The data plane of one node, as the daemon sees it: sessions, segments, groups, jobs, peers, rails.
//
// Every method may be called from any thread and never blocks for a peer: it queues a command for the engine's
// thread (RESOURCE_EXHAUSTED through the callback, or as Submit's value, when that bounded queue is full). Callbacks
// run on the engine's thread and must not block; each is called exactly once.
#ifndef RAILSD_AGENT_AGENT_H_
#define RAILSD_AGENT_AGENT_H_

#include <spdlog/fwd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/event_source.h"
#include "agent/base/ids.h"
#include "agent/base/limit.h"
#include "agent/base/unique_fd.h"
#include "agent/control/messages.h"
#include "agent/jobs/explanation.h"
#include "agent/jobs/submission.h"
#include "agent/plan/plan.h"
#include "agent/rails/health.h"
#include "agent/sessions/tenant_quota.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs_tuning.h"

namespace railsd {

enum class RailKind : uint8_t { kTcp, kVerbs };

// One rail of this node, as configured.
struct RailSpec {
  std::string name;                // "rail0"; for logs, metrics and the CLI
  std::string address;             // kTcp: "ip" or "ip:port" or "[ip6]:port" to listen on; port 0 or absent: any
  std::string interface;           // kTcp: SO_BINDTODEVICE when not empty
  uint64_t speed_bytes_per_s = 0;  // 0: of the interface or device, or the default
  RailKind kind = RailKind::kTcp;
  std::string device = {};  // kVerbs: "NAME/PORT" of the RDMA device; its first port without "/PORT"
};

struct AgentLimits {
  uint32_t max_sessions = 256;
  uint32_t max_segments_per_session = 64;
  uint64_t max_segment_bytes_per_session = uint64_t{1} << 40;
  uint32_t max_groups = 64;
  uint32_t max_jobs_per_group = 64;  // accepted and not terminal; the head of each member is always admissible
  uint32_t max_ranges_per_submission = 1 << 20;
  uint32_t max_prepared_per_session = 64;
  uint32_t max_prepared_ranges_per_session = 1 << 22;  // of all prepared exchanges together
  uint32_t max_world_size = 4096;
  uint64_t max_name_bytes = 256;  // of a group; 256 at most, which is what peers take
  uint64_t max_join_key_bytes = 4096;
  uint32_t max_waiting_calls = 4096;
  uint32_t max_half_open = 64;  // connections of a rail over TCP whose other end has not proven who it is
};

struct AgentOptions {
  std::string node;
  BootId boot;
  std::vector<RailSpec> rails;
  PlanOptions plan;
  bool late_binding = true;  // chunks that are not posted may leave a rail that lags; for policy lpt only
  AgentLimits limits;
  // Exchanges of at most so many bytes ride in READY: Ready::kMaxEagerBytes at most; 0: none.
  uint64_t eager_bytes = 0;
  uint64_t frame_bytes = 0;   // 0: about 1 ms of the rail's rate
  uint64_t window_bytes = 0;  // per (rail, destination); 0: from the rail's rate
  // How long the engine's thread and the rails' look for work before they sleep. Saves wakes of a job that waits for
  // one, and costs a processor for each of these threads for as long.
  absl::Duration spin;
  uint32_t copy_threads = 0;  // copy between ranks of this node; 0: by the processors
  bool tls_data = false;      // TLS by the kernel on the connections of rails over TCP, at all nodes or at none
  VerbsTuning verbs;          // for every rail of RailKind::kVerbs
  HealthOptions health;
  absl::Duration max_job_time = absl::Minutes(10);
  absl::Duration max_join_time = absl::Minutes(10);
  absl::Duration peer_lost = absl::Seconds(5);       // jobs wait for a rail to a peer for so long
  absl::Duration max_peer_wait = absl::Minutes(5);   // the longest that a group may choose to wait for a peer
  uint32_t finished_jobs_kept = 256;                 // of a group, whose reports Wait() can still get
  uint32_t explained_jobs = 16;                      // finished jobs that can be explained; 0: none, nor running ones
  absl::Duration rail_handshake = absl::Seconds(3);  // of connections of rails over TCP, to make and to take
  std::vector<TenantOptions> tenants;
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();  // what limits have refused
  std::shared_ptr<spdlog::logger> log;
};

struct SessionInfo {
  int64_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string tenant;  // one of AgentOptions::tenants
};

struct JoinRequest {
  SessionId session;
  std::string name;
  std::string join_key;  // secret; hashed at once, never logged
  uint32_t world_size = 0;
  Rank rank;
  absl::Duration timeout;
  Recovery recovery = {};
  // The first job that the rank has not finished, over all epochs of the group so far; above 1 only where it waits
  // (RecoveryPolicy::kWait). The ranks must agree.
  JobSeq next_seq{1};
};
struct GroupView {
  std::string tenant, name;
  Epoch epoch;
  uint32_t world_size = 0;
  std::vector<std::string> members;  // node of each rank
  std::vector<Rank> local_ranks;
  bool broken = false;
  absl::Status why;         // of a broken one
  bool replayable = false;  // of a broken one: its ranks may join again and go on
  JobSeq next_seq;          // lowest number no local rank has submitted
  Recovery recovery;
  std::vector<std::string> lost;  // nodes that the group goes on without
};

// A group that ranks of this node wait to join.
struct FormingView {
  static constexpr size_t kMaxMissing = 16;
  std::string tenant, name;
  uint32_t world_size = 0;
  uint32_t joined = 0;            // ranks of all nodes
  std::vector<Rank> local_ranks;  // that wait here
  std::vector<Rank> missing;      // the lowest, kMaxMissing at most
};

struct RailView {
  RailIndex index;
  std::string name, address, interface;
  uint64_t speed_bytes_per_s = 0;     // configured, or of the interface or device
  uint64_t planned_bytes_per_s = 0;   // what the next plan counts on
  uint64_t measured_bytes_per_s = 0;  // while busy; 0 until known
  uint32_t peers_known = 0;
  uint32_t peers_up = 0;       // connected, and not drained at their end
  uint32_t peers_drained = 0;  // drained at their end, connected or not
  RailHealthView health;
  uint64_t queued_bytes = 0;      // planned, not posted
  uint64_t in_flight_bytes = 0;   // posted, not acknowledged
  uint64_t window_bytes = 0;      // that may be in flight to one peer
  uint64_t sleeps = 0;            // of its thread, which had nothing to do
  uint64_t planned_bytes = 0;     // that plans have put onto the rail
  uint64_t planned_rx_bytes = 0;  // that the peers' plans have, as they say: up to the job before the present one
  uint64_t returned_chunks = 0;   // that the rail broke under; they, or what had not arrived, went another way
  size_t command_depth = 0, event_depth = 0;
  RailCounts counts;  // the bytes are those of jobs, each counted once
  RailDevice device;  // of rails over verbs
  uint64_t queue_pairs = 0;
};
struct PeerView {
  std::string node;
  BootId boot;
  bool up = false;             // its link
  std::vector<bool> rails_up;  // data connections, by rail
  std::vector<std::string> rail_addresses;
  std::string why;                                               // when not up
  std::vector<HealthState> rail_states = {};                     // may new work go that way; by rail
  std::vector<uint64_t> rail_tx_bytes = {}, rail_rx_bytes = {};  // payload of jobs; by rail
  absl::Duration ready_wait = {};                                // that jobs of this node have waited for its READYs
  // Known to the control link only: its daemon's version, how many rails it has (0: not heard of), connections that
  // have carried the link, and why the last dial failed while the link was up.
  std::string version = {};
  uint32_t rail_count = 0;
  uint64_t connections = 0;
  std::string dial_failure = {};
};
struct SessionView {
  SessionId id;
  SessionInfo info;
  uint32_t segments = 0;
  uint64_t segment_bytes = 0;
  uint32_t memberships = 0;
};
struct AgentCounters {
  uint64_t jobs_done = 0, jobs_failed = 0;  // submissions of ranks; replayable ones are neither
  uint64_t jobs_active = 0;
  uint64_t submissions_refused = 0;
  uint64_t local_copy_bytes = 0;
  uint64_t plans = 0;
  uint64_t groups_formed = 0;  // epochs that have begun
  uint64_t planning_nanoseconds = 0;
  uint64_t control_messages_in = 0, control_messages_out = 0;
  uint64_t control_messages_ignored = 0;                    // of ended jobs, unknown groups, contradicting ones
  uint64_t late_moves = 0;                                  // of late binding, from a rail that lags to one that is dry
  uint64_t rehomed_exchanges = 0;                           // began another round, after a rail had failed under them
  uint64_t eager_sent = 0, eager_received = 0;              // exchanges that rode in READY
  uint64_t eager_sent_bytes = 0, eager_received_bytes = 0;  // that were copied for them
  uint64_t open_zones = 0;                                  // exchanges that may write into this node's memory
  size_t engine_queue_depth = 0;
  uint64_t engine_sleeps = 0;   // of the engine's thread, which had nothing to do
  size_t copy_queue_depth = 0;  // copies between local ranks that wait for a thread
};
// A thread whose standing still does harm. One that works, or that has nothing to do, begins a turn at least once a
// second; one that hangs does not.
struct ThreadProgress {
  std::string name;    // as in /proc/PID/task/TID/comm
  uint64_t turns = 0;  // begun so far
};

// Options that may change while the agent works.
struct AgentTuning {
  AgentLimits limits;  // but max_world_size, which peers were told, and max_half_open
  absl::Duration max_job_time, max_join_time;
  uint32_t finished_jobs_kept = 0;
  std::vector<TenantOptions> tenants;  // new quotas; those that are not named keep theirs
};

struct AgentSnapshot {
  std::string node;
  BootId boot;
  std::vector<RailView> rails;
  std::vector<PeerView> peers;
  std::vector<SessionView> sessions;
  std::vector<GroupView> groups;
  std::vector<FormingView> forming;
  std::vector<TenantView> tenants;       // by name
  std::vector<JobReport> active_jobs;    // one per local rank
  std::vector<JobReport> finished_jobs;  // the latest, newest first, up to 64
  AgentCounters counters;
  bool draining = false;
};

// Called on the engine's thread.
class AgentObserver {
 public:
  virtual ~AgentObserver() = default;
  // A rank's job reached a terminal state.
  virtual void OnJobFinished(SessionId session, const JobReport& report) = 0;
};

template <typename T>
using Callback = absl::AnyInvocable<void(T) &&>;

class Agent : public EventHost {
 public:
  // Binds every rail, starts the threads. `link` and `observer` outlive the agent.
  // Errors name the rail and the address that could not be bound.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options, ControlLink* link,
                                                       AgentObserver* observer);
  // Stops the rails, ends what waits with ABORTED, joins the threads. Sources that its thread polls are removed before.
  ~Agent() override = default;

  // For this node's HELLO on links: rails with the addresses that were really bound. It has no data_key.
  virtual const PeerHello& Hello() const = 0;

  // Sessions and segments. CloseSession aborts the session's jobs and breaks its groups, naming `reason`; its
  // segments are unmapped when the last job that uses them is quiescent, and only then is `closed` called.
  virtual void OpenSession(SessionInfo info, Callback<absl::StatusOr<SessionId>> done) = 0;
  virtual void CloseSession(SessionId session, std::string reason, Callback<absl::Status> closed) = 0;
  // Takes the room of a segment in limits and quotas, before its pages are touched. AddSegment() with the same length
  // uses it, RemoveSegment() gives it back.
  virtual void ReserveSegment(SessionId session, SegmentId id, uint64_t length_bytes, Callback<absl::Status> done) = 0;
  // A descriptor that is refused is closed before `done` is called.
  virtual void AddSegment(SessionId session, SegmentId id, UniqueFd fd, uint64_t length_bytes,
                          Callback<absl::Status> done) = 0;
  // FAILED_PRECONDITION while a job uses the segment.
  virtual void RemoveSegment(SessionId session, SegmentId id, Callback<absl::Status> done) = 0;

  // Groups. Join answers when every rank has joined (OK), or with DEADLINE_EXCEEDED naming the missing ranks.
  virtual void Join(JoinRequest request, Callback<absl::StatusOr<GroupView>> done) = 0;
  virtual void Leave(SessionId session, Epoch epoch, Rank rank, Callback<absl::Status> done) = 0;

  // Jobs. Submit checks the ranges on the caller's thread. `done` gets OK when the submission has been accepted, also
  // for one that was accepted before with the same content, or why it is refused: ALREADY_EXISTS if its content
  // differs. Earlier attempts that come later are refused, too. RESOURCE_EXHAUSTED as the return value: too many calls
  // wait, this attempt goes no further and `done` is never called. Wait answers with the report once it is terminal, or
  // with the state of that moment when `timeout` passes.
  virtual absl::Status Submit(Submission submission, Callback<absl::Status> done) = 0;
  // Jobs of the session under way use few ranges, so that checking a short submission beside them takes a moment.
  virtual bool IsQuickToCheck(SessionId session) const = 0;
  virtual void Wait(SessionId session, JobKey job, Rank rank, absl::Duration timeout,
                    Callback<absl::StatusOr<JobReport>> done) = 0;
  // Keeps the ranges of `layout`, checked as Submit() does on the caller's thread, for submissions that name them by
  // the id `layout.prepared`, which the client chooses. They belong to the rank in the epoch of `layout.job` and end
  // with its membership. Segments that they name cannot be removed.
  virtual absl::Status Prepare(Submission layout, Callback<absl::Status> done) = 0;
  // Jobs under way go on. NOT_FOUND for an unknown id.
  virtual void ReleasePrepared(SessionId session, PreparedId id, Callback<absl::Status> done) = 0;
  virtual void Cancel(SessionId session, JobKey job, Rank rank, Callback<absl::Status> done) = 0;

  // Peers, from their links. A HELLO with another boot id than before means that the peer has restarted:
  // everything shared with the old one is broken first. `hello.data_key` is known to both daemons only.
  virtual void OnPeerUp(PeerHello hello) = 0;
  // `ended`: its daemon is known to have ended, or to be about to.
  virtual void OnPeerDown(std::string node, std::string why, bool ended) = 0;
  // A peer that is up is silent; its link is kept for the groups that wait for it (ControlLink::SetPatience).
  virtual void OnPeerSilent(std::string node, std::string why) = 0;
  // A peer that is down is no longer shown until it is up again.
  virtual void OnPeerForgotten(std::string node) = 0;
  // False: not taken, the agent is too far behind. The caller must give the peer up, since no message may be lost.
  virtual bool OnPeerMessage(std::string node, BootId boot, ControlMessage message) = 0;
  // The peer's daemon has taken this node's READYs of these jobs, which had eager bytes.
  virtual void OnReadyTaken(std::string node, BootId boot, std::vector<JobKey> jobs) = 0;

  // Refuses new groups and sessions, and submissions beyond each group's cut: the highest sequence that any member is
  // known to have submitted when the drain begins. `drained` is called when no job is active here, and every job that
  // has ended here has ended on the other nodes, too; or at the deadline with DEADLINE_EXCEEDED; with ABORTED when
  // another drain, or Undrain(), comes first. A further drain keeps the cuts; after one that ended well none is taken.
  virtual void Drain(absl::Duration limit, Callback<absl::Status> drained) = 0;
  // Takes new work again.
  virtual void Undrain(Callback<absl::Status> done) = 0;

  // For operators. Drains the rail: it gets no new work, here and at the peers, which are told; chunks in flight end.
  // `drained` false: undrains it. `rail` is its name, or its index. Lasts until it is undone or the daemon ends. OK
  // also if the rail is in that state already; NOT_FOUND for an unknown rail; FAILED_PRECONDITION for the last rail
  // that is not drained.
  virtual void DrainRail(std::string rail, bool drained, Callback<absl::Status> done) = 0;

  // Applies to later requests: running jobs stay, and so does everything that exceeds a lowered limit already.
  virtual void Retune(AgentTuning tuning, Callback<absl::Status> done) = 0;

  virtual void Snapshot(Callback<AgentSnapshot> done) = 0;
  // Turns of the engine, the rails and the copiers, always in the same order. Reads atomics only, so that it answers
  // whatever hangs.
  virtual std::vector<ThreadProgress> Progress() const = 0;
  // The course of a job: of those that run and the latest AgentOptions::explained_jobs that have ended. NOT_FOUND;
  // INVALID_ARGUMENT when several groups that were meant have it; FAILED_PRECONDITION when none are kept.
  virtual void Explain(WantedJob wanted, Callback<absl::StatusOr<JobExplanation>> done) = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_AGENT_H_
