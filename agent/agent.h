// The data plane of one node, as the daemon sees it: sessions, segments, groups, jobs, peers, rails.
//
// Every method may be called from any thread and never blocks for a peer: it queues a command for the engine's thread.
// When too many calls wait, a call that trainers make (all but CloseSession()), DrainRail() or Explain() gets
// RESOURCE_EXHAUSTED at once, on the caller's thread: as the value of Submit() or Prepare(), whose callback is then
// never called, or through the callback. Otherwise callbacks run on the engine's thread. They must not block, and each
// is called exactly once.
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
  uint32_t max_jobs_per_group = 64;  // of one rank: accepted and not terminal; a rank that has none may always submit
  uint32_t max_ranges_per_submission = 1 << 20;
  uint32_t max_prepared_per_session = 64;
  uint32_t max_prepared_ranges_per_session = 1 << 22;  // of all prepared exchanges together
  uint32_t max_world_size = 4096;
  uint64_t max_name_bytes = 256;  // of a group's name; 256 at most, because peers take no longer names
  uint64_t max_join_key_bytes = 4096;
  uint32_t max_waiting_calls = 4096;
  uint32_t max_half_open = 64;  // connections of a rail over TCP whose other end has not proven its identity
};

struct AgentOptions {
  std::string node;
  BootId boot;
  std::vector<RailSpec> rails;
  PlanOptions plan;
  bool late_binding = true;  // bytes that are not posted may move from a lagging rail to a dry one; policy lpt only
  AgentLimits limits;
  // Exchanges of at most this many bytes ride in READY. Ready::kMaxEagerBytes at most; 0: no exchange does.
  uint64_t eager_bytes = 0;
  uint64_t frame_bytes = 0;   // 0: about 1 ms of the rail's rate
  uint64_t window_bytes = 0;  // per (rail, destination); 0: from the rail's rate
  // How long the engine's thread and the rails' threads look for work before they sleep. Small jobs then wait for fewer
  // wakes, and each of these threads occupies a processor for that time.
  absl::Duration spin;
  uint32_t copy_threads = 0;  // threads that copy between ranks of this node; 0: by the number of processors
  bool tls_data = false;      // TLS by the kernel on the connections of rails over TCP, at all nodes or at none
  VerbsTuning verbs;          // for every rail of RailKind::kVerbs
  HealthOptions health;
  absl::Duration max_job_time = absl::Minutes(10);
  absl::Duration max_join_time = absl::Minutes(10);
  absl::Duration peer_lost = absl::Seconds(5);       // how long jobs wait for a rail to a peer
  absl::Duration max_peer_wait = absl::Minutes(5);   // the longest that a group may choose to wait for a peer
  uint32_t finished_jobs_kept = 256;                 // finished jobs of a group whose reports Wait() can still get
  uint32_t explained_jobs = 16;                      // finished jobs that Explain() finds; 0: not even running ones
  absl::Duration rail_handshake = absl::Seconds(3);  // limit for dialling or accepting a connection of a rail over TCP
  std::vector<TenantOptions> tenants;
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();  // refusals, by limit
  std::shared_ptr<spdlog::logger> log;
};

struct SessionInfo {
  int64_t pid = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::string tenant;  // one of AgentOptions::tenants
  std::string client_name = {};
};

struct JoinRequest {
  SessionId session;
  std::string name;
  std::string join_key;  // secret; hashed at once, never logged
  uint32_t world_size = 0;
  Rank rank;
  absl::Duration timeout;
  Recovery recovery = {};
  // The first job that the rank has not finished, over all epochs of the group so far. All ranks must give the same;
  // above 1 only with RecoveryPolicy::kWait.
  JobSeq next_seq{1};
};
struct GroupView {
  std::string tenant, name;
  Epoch epoch;
  uint32_t world_size = 0;
  std::vector<std::string> members;  // node of each rank
  std::vector<Rank> local_ranks;
  bool broken = false;
  absl::Status why;         // if broken: the reason
  bool replayable = false;  // if broken: its ranks may join again and go on
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
  uint64_t queued_bytes = 0;     // planned, not posted
  uint64_t in_flight_bytes = 0;  // posted, not acknowledged
  uint64_t window_bytes = 0;     // that may be in flight to one peer
  uint64_t sleeps = 0;           // how often its thread has slept
  uint64_t planned_bytes = 0;    // bytes that plans have put onto the rail
  // Bytes that peers' plans have put onto it towards this node, as READYs tell. A READY does not count its own job.
  uint64_t planned_rx_bytes = 0;
  uint64_t returned_chunks = 0;  // posted when a connection failed; sent again unless their whole exchange had arrived
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
  std::vector<HealthState> rail_states = {};                     // by rail: whether it may carry new work to the peer
  std::vector<uint64_t> rail_tx_bytes = {}, rail_rx_bytes = {};  // payload of jobs; by rail
  absl::Duration ready_wait = {};  // for which jobs of this node have waited for its READYs
  // Filled in by the daemon from the link: the version of the peer's daemon, how many rails it has (0: not known), how
  // many connections have carried the link, and why the last dial failed while the link was up.
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
  uint64_t jobs_done = 0, jobs_failed = 0;  // submissions of ranks; a replayable one counts as neither
  uint64_t jobs_active = 0;
  uint64_t submissions_refused = 0;
  uint64_t local_copy_bytes = 0;
  uint64_t plans = 0;
  uint64_t groups_formed = 0;  // epochs that have begun
  uint64_t planning_nanoseconds = 0;
  uint64_t control_messages_in = 0, control_messages_out = 0;
  uint64_t control_messages_ignored = 0;        // about ended jobs or unknown groups, or contradictory
  uint64_t late_moves = 0;                      // moves of late binding, from a lagging rail to a dry one
  uint64_t rehomed_exchanges = 0;               // exchanges that began another round because a rail had failed
  uint64_t eager_sent = 0, eager_received = 0;  // exchanges that rode in READY
  uint64_t eager_sent_bytes = 0, eager_received_bytes = 0;  // that were copied for them
  uint64_t open_zones = 0;                                  // exchanges that may write into this node's memory
  size_t engine_queue_depth = 0;
  uint64_t engine_sleeps = 0;   // how often the engine's thread has slept
  size_t copy_queue_depth = 0;  // copies between local ranks that wait for a thread
};
// Progress of a thread that must not hang. A thread that works or idles begins a turn at least once a second; a thread
// that hangs does not.
struct ThreadProgress {
  std::string name;    // as in /proc/PID/task/TID/comm
  uint64_t turns = 0;  // begun so far
};

// Options that may change while the agent works.
struct AgentTuning {
  AgentLimits limits;  // all but max_world_size, which peers have been told, and max_half_open
  absl::Duration max_job_time, max_join_time;
  uint32_t finished_jobs_kept = 0;
  std::vector<TenantOptions> tenants;  // new quotas and shares; a tenant that is not named keeps its own
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
  // Ends all sessions: joins that wait end with ABORTED, jobs fail with UNAVAILABLE. Then stops the rails and joins the
  // threads. The owners of event sources remove them before.
  ~Agent() override = default;

  // This node's HELLO on links, with the addresses that its rails have bound. Without a data_key.
  virtual const PeerHello& Hello() const = 0;

  // Sessions and segments. CloseSession aborts the session's jobs and breaks its groups, naming `reason`; its
  // segments are unmapped when the last job that uses them is quiescent, and only then is `closed` called.
  virtual void OpenSession(SessionInfo info, Callback<absl::StatusOr<SessionId>> done) = 0;
  virtual void CloseSession(SessionId session, std::string reason, Callback<absl::Status> closed) = 0;
  // Reserves room for a segment in limits and quotas, before the client touches its pages. AddSegment() with the same
  // length uses the reservation, RemoveSegment() gives it back.
  virtual void ReserveSegment(SessionId session, SegmentId id, uint64_t length_bytes, Callback<absl::Status> done) = 0;
  // A descriptor that is refused is closed before `done` is called.
  virtual void AddSegment(SessionId session, SegmentId id, UniqueFd fd, uint64_t length_bytes,
                          Callback<absl::Status> done) = 0;
  // FAILED_PRECONDITION while a job uses the segment.
  virtual void RemoveSegment(SessionId session, SegmentId id, Callback<absl::Status> done) = 0;

  // Groups. Join answers when every rank has joined (OK), or with DEADLINE_EXCEEDED naming the missing ranks.
  virtual void Join(JoinRequest request, Callback<absl::StatusOr<GroupView>> done) = 0;
  virtual void Leave(SessionId session, Epoch epoch, Rank rank, Callback<absl::Status> done) = 0;

  // Jobs. Submit() checks the ranges on the caller's thread. `done` gets OK when the submission is accepted, or was
  // accepted before with the same content. Otherwise it gets the reason for the refusal: ALREADY_EXISTS if the number
  // was taken with other content, ABORTED if the group is broken and replayable. Submit() returns RESOURCE_EXHAUSTED
  // when too many calls wait; then `done` is never called. Wait() answers with the report when the rank's part is
  // terminal, or with the part's state when `timeout` passes.
  virtual absl::Status Submit(Submission submission, Callback<absl::Status> done) = 0;
  // True when the session's jobs under way use so few ranges that a short submission can be checked quickly.
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

  // Peers, from their links. A HELLO with another boot id than before means that the peer has restarted: the old daemon
  // is handled as lost first. `hello.data_key` is known to both daemons only.
  virtual void OnPeerUp(PeerHello hello) = 0;
  // `ended`: the peer's daemon has ended, or is about to end.
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
  // known to have submitted when the drain begins. `drained` gets OK when no job is active here and every job that has
  // ended here has ended on the other nodes, too; DEADLINE_EXCEEDED when `limit` passes before; ABORTED when another
  // drain or Undrain() comes first. Another drain keeps the cuts. After a drain that ended well no further job is
  // taken.
  virtual void Drain(absl::Duration limit, Callback<absl::Status> drained) = 0;
  // Takes new work again.
  virtual void Undrain(Callback<absl::Status> done) = 0;

  // Drains the rail for an operator: neither this node nor its peers, which are told, give it new work; chunks in
  // flight end. `drained` false: undrains it. `rail` is its name or its index. The drain lasts until it is undone or
  // the daemon ends. OK also if the rail is in that state already; NOT_FOUND for an unknown rail; FAILED_PRECONDITION
  // for the last rail that is not drained.
  virtual void DrainRail(std::string rail, bool drained, Callback<absl::Status> done) = 0;

  // Applies to later requests: running jobs stay, and so does everything that exceeds a lowered limit already.
  virtual void Retune(AgentTuning tuning, Callback<absl::Status> done) = 0;

  virtual void Snapshot(Callback<AgentSnapshot> done) = 0;
  // Turns of the engine, the rails and the copiers, always in the same order. Reads atomics only, so that it answers
  // even if threads hang.
  virtual std::vector<ThreadProgress> Progress() const = 0;
  // The course of a job that runs or is among the latest AgentOptions::explained_jobs that have ended. NOT_FOUND when
  // there is no such job; INVALID_ARGUMENT when several matching groups have it; FAILED_PRECONDITION when
  // explained_jobs is 0.
  virtual void Explain(WantedJob wanted, Callback<absl::StatusOr<JobExplanation>> done) = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_AGENT_H_
