// The C++ client of railsd: sessions, segments, groups, asynchronous all-to-all(v) jobs.
//
//   auto client = rails::Client::Connect({.socket_dir = "/run/railsd"});
//   auto send = (*client)->CreateSegment(bytes), receive = (*client)->CreateSegment(bytes);
//   auto group = (*client)->JoinGroup({.name = "moe", .world_size = 16, .rank = 3});
//   rails::AllToAllv exchange;
//   for (uint32_t peer = 0; peer < 16; ++peer) {
//     exchange.sends.push_back({peer, {{*send, offset[peer], length[peer]}}});
//     exchange.receives.push_back({peer, {{*receive, into[peer], expected[peer]}}});
//   }
//   auto job = (*group)->Submit(exchange);
//   auto report = (*job)->Wait(absl::Seconds(60));  // only now the caller may use the buffers again
//
// All classes are safe to use from several threads. The library does not throw, and neither raises nor handles signals.
// Every descriptor closes on exec.
//
// A client belongs to the process that made it. In a forked child every call of its objects fails at once with
// FAILED_PRECONDITION; OnDone() and Future() deliver that error. Connected() is false. The child may destroy its copies
// of the objects, and may Connect() anew. It shares the memory of the segments with the parent, whose client goes on.
#ifndef RAILS_CLIENT_H_
#define RAILS_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#if defined(_GLIBCXX_USE_CXX11_ABI) && !_GLIBCXX_USE_CXX11_ABI
#error "rails/client.h: librails_client has the new std::string; compile without -D_GLIBCXX_USE_CXX11_ABI=0"
#endif

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace rails {

struct ClientOptions {
  // Directory of the daemon's sockets.
  std::string socket_dir = "/run/railsd";
  // Shown to operators, in the daemon's log and in the reason of a session's end.
  std::string client_name{};
  // Connect() retries for this long while the daemon does not run.
  absl::Duration connect_timeout = absl::Seconds(10);
  // How long a thread that waits for the daemon polls the ring before it sleeps. Polling saves the time of a wake by
  // the kernel, and keeps a processor busy meanwhile. Zero: the thread sleeps at once.
  absl::Duration spin = absl::ZeroDuration();
};

struct SegmentOptions {
  bool huge_pages = false;             // memfd with MFD_HUGETLB; RESOURCE_EXHAUSTED when the system has none free
  bool prefault = true;                // touch every page now, so that they are charged to this process
  std::string name = "rails-segment";  // as in /proc/PID/maps
  absl::Duration timeout = absl::Minutes(1);  // for each of the daemon's two answers: reservation, registration
};

// Memory shared with the daemon. The mapping lives as long as the object. The daemon releases the memory when the last
// reference is dropped, or at the end of the session.
class Segment {
 public:
  virtual ~Segment() = default;
  // data() is null for a dma-buf (Client::ImportSegment()).
  virtual absl::Span<std::byte> bytes() const = 0;
  virtual uint32_t id() const = 0;
};

// Bytes [offset, offset + length) of a segment.
struct Range {
  std::shared_ptr<Segment> segment{};
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// The bytes exchanged with one rank, in the order of the list. Sender and receiver may cut a flow into ranges
// differently; the totals must agree.
struct FlowRanges {
  uint32_t rank = 0;
  std::vector<Range> ranges{};
};

// One rank's part of an all-to-all(v). The rank exchanges nothing with ranks that are left out, and may send to itself.
// A receive range must not overlap another receive range or a send range, also if two segments share the memory.
// Exception: bytes that the rank sends to itself may stay in place. The ranges that it receives from itself must then
// be the ranges that it sends to itself, or begin with them. A receive range must not overlap a range of another
// unfinished job of this client either.
struct AllToAllv {
  std::vector<FlowRanges> sends{};                // by destination rank
  std::vector<FlowRanges> receives{};             // by source rank
  uint64_t tag = 0;                               // set by the caller; equal on every rank
  absl::Duration timeout = absl::ZeroDuration();  // from acceptance; zero: the daemon's limit
  // The lengths of `receives` are capacities: a source may send less. Its bytes land at the beginning of its ranges,
  // and JobReport::received_by_rank counts them. The job fails if a source sends more. Equal on every rank. `receives`
  // may have at most 16,384 ranges. Costs one more message between nodes than exact lengths.
  bool capacities = false;
  uint64_t vote = 0;  // any number; JobReport::highest_vote is the highest that a rank gave with this job
  // This node sends the job's bytes before those of other jobs of its tenant to the same nodes, and copies them first.
  // Other tenants keep their shares. It is enough that one of the node's ranks says so; ranks may differ.
  bool urgent = false;
};

// Ranges that the daemon checks once and that many jobs of one group use; Group::Prepare() makes it. The daemon
// releases the ranges after the object is dropped and the jobs that use them have ended. Their segments live at least
// until then.
class Prepared {
 public:
  virtual ~Prepared() = default;
};

// How much of a prepared exchange one job moves.
struct Lengths {
  // Bytes of each flow, in the order of AllToAllv::sends and AllToAllv::receives. A flow uses that many bytes from the
  // beginning of its ranges. Empty: all bytes.
  std::vector<uint64_t> sends{}, receives{};
  uint64_t tag = 0;                               // as AllToAllv::tag
  absl::Duration timeout = absl::ZeroDuration();  // as AllToAllv::timeout
  bool capacities = false;                        // as AllToAllv::capacities, of `receives` here
  uint64_t vote = 0;                              // as AllToAllv::vote
  bool urgent = false;                            // as AllToAllv::urgent
};

// The ranks whose failure has caused an error of a group or a job, ascending, at most 64. Such a rank has left or died,
// did not join or submit in time, or was on a lost node. Empty: no rank is the cause, or it is not known.
std::vector<uint32_t> FailedRanks(const absl::Status& status);

// The outcome of one rank's part of a job.
struct JobReport {
  uint64_t seq = 0;
  uint32_t rank = 0;
  bool terminal = false;  // the daemon no longer uses the buffers
  absl::Status status;    // OK when done; else names the node, rail or rank that failed, and the reason
  uint64_t bytes_sent = 0, bytes_received = 0;
  std::vector<uint64_t> received_by_rank;  // with AllToAllv::capacities: bytes that each source sends; else empty
  absl::Duration elapsed;
  absl::Duration waiting_for_ranks;
  absl::Duration waiting_for_peers;
  absl::Duration to_first_chunk;  // from acceptance until a rail got the job's first chunk
  absl::Duration node_bound;      // max(out, in) / sum of rail speeds, of the whole job on this node
  double ratio_to_bound = 0;
  std::vector<uint64_t> rail_tx_bytes, rail_rx_bytes;  // of the whole job on this node
  // Bytes of short exchanges of the whole job on this node. They rode in messages between daemons, not on rails.
  uint64_t eager_sent_bytes = 0, eager_received_bytes = 0;
  // Recovery::kDegrade: ranks whose nodes were lost before all their bytes were exchanged. `status` is still OK. Their
  // bytes have arrived in part or not at all.
  std::vector<uint32_t> lost_ranks;
  uint32_t replays = 0;  // Recovery::kWait: how often the job was submitted again after a daemon had exited
  // If `status` is OK: the highest AllToAllv::vote of all ranks, the same in every rank's report. Otherwise the highest
  // that the daemon knows. Recovery::kDegrade: the vote of a lost rank counts only where its node had told it, so
  // reports may differ after a loss.
  uint64_t highest_vote = 0;
};

// A submitted job. Dropping the object neither cancels nor waits; the library remembers which segments are in use. In a
// group that waits for restarts (GroupOptions::restart_limit) a job survives the daemon's exit: the library submits it
// again, with a fresh timeout, until it ends. Do not use its buffers until then.
class Job {
 public:
  virtual ~Job() = default;
  virtual uint64_t seq() const = 0;
  // Blocks until the job is terminal or `timeout` has passed (the report then says terminal = false).
  // ABORTED: the daemon has exited, and the group cannot go on (its `restart_limit` has passed, or ranks have finished
  // different jobs). The job's segments stay poisoned until the daemon's process has ended.
  // UNAVAILABLE: the daemon runs but does not answer; the job is unfinished.
  virtual absl::StatusOr<JobReport> Wait(absl::Duration timeout = absl::InfiniteDuration()) = 0;
  // Calls `callback` once, from a thread of the client, when the job is terminal or the daemon has exited. It must not
  // block, call Reconnect() or destroy the client.
  virtual void OnDone(std::function<void(absl::StatusOr<JobReport>)> callback) = 0;
  virtual std::future<absl::StatusOr<JobReport>> Future() = 0;
  // Asks every rank to end the job. Wait() then reports CANCELLED unless the job was already done. If the job was
  // running, the group is over, as it is after a job's time limit. UNAVAILABLE while the group waits for a daemon:
  // cancelling then could make ranks finish different jobs.
  virtual absl::Status Cancel() = 0;
};

// How a group reacts when one of its nodes is lost. All ranks of a group choose the same.
enum class Recovery {
  kFail = 1,  // jobs fail with UNAVAILABLE, which names the node, and the group is over
  kWait = 2,  // jobs go on if the daemon is heard again within `wait_limit`, and are replayed if the daemon has
  // exited and a new one runs within `restart_limit`; else as kFail
  kDegrade = 3,  // the other nodes go on; bytes from and to the lost node's ranks are left out and reported
};

struct GroupOptions {
  std::string name{};
  std::string join_key{};  // secret shared by the ranks
  uint32_t world_size = 0;
  uint32_t rank = 0;
  absl::Duration timeout = absl::Minutes(2);  // for all ranks to arrive
  Recovery recovery = Recovery::kFail;
  absl::Duration wait_limit = {};  // for kWait: positive, at most the daemon's `timeouts.max_peer_wait`
  // With kWait: time limit for an exited daemon, of this node or another member, to run again, and for all ranks to
  // join again. The library connects, shares the segments, joins, and submits unfinished jobs again by itself; Submit()
  // blocks meanwhile. Zero: the group is over at once. To restart a daemon without losing a job, drain it first, as
  // SIGTERM does. After a crash ranks may have finished different jobs; then the group is over.
  absl::Duration restart_limit = absl::Minutes(2);
};

class Group {
 public:
  virtual ~Group() = default;  // leaves
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;
  virtual const std::vector<std::string>& members() const = 0;  // node of each rank
  // Numbers the job and submits it to the daemon. All ranks must submit their jobs in the same order. A refused
  // submission takes no number and copies nothing.
  // Jobs of a group run concurrently and may end in any order. Submit a job that uses the result or the buffers of
  // another job only after that job has ended: after Wait(). Not in OnDone(): a submission may block.
  // INVALID_ARGUMENT names the field and its value. FAILED_PRECONDITION: a segment is poisoned by a lost job, an
  // unfinished job uses bytes of this one and at least one of the two receives them, or the group is over.
  // UNAVAILABLE: the daemon drains or has exited; with a `restart_limit`, only after that time. Other errors come from
  // the daemon unchanged. `timeout` limits the wait for the answer of a running daemon; the time of a restart does not
  // count. When it passes, it is unknown whether the job runs: UNAVAILABLE, the group is over, the segments are
  // poisoned. Calls of one group run one after the other.
  virtual absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange,
                                                      absl::Duration timeout = absl::Seconds(30)) = 0;
  // Checks the ranges of `layout` as Submit() does, and keeps them here and in the daemon, so that a job that uses them
  // has no cost per range. The layout's tag, vote, urgency and timeout are not used. In a group with a `restart_limit`
  // the prepared ranges survive a daemon's restart. Errors as for Submit(); RESOURCE_EXHAUSTED: the daemon's
  // `limits.max_prepared_per_session` or `limits.max_prepared_ranges_per_session`.
  virtual absl::StatusOr<std::shared_ptr<Prepared>> Prepare(const AllToAllv& layout,
                                                            absl::Duration timeout = absl::Seconds(30)) = 0;
  // Submits a job as above. Other ranks need not prepare. The rule on ranges of unfinished jobs counts all ranges of
  // the layout, whatever the lengths. INVALID_ARGUMENT: a length exceeds the bytes of the flow's ranges (names the rank
  // and both values), or `prepared` belongs to another group.
  virtual absl::StatusOr<std::shared_ptr<Job>> Submit(const std::shared_ptr<Prepared>& prepared, const Lengths& lengths,
                                                      absl::Duration timeout = absl::Seconds(30)) = 0;
  virtual absl::Status Leave() = 0;
};

class Client {
 public:
  // UNAVAILABLE, PERMISSION_DENIED: names the socket and says what to do.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  virtual ~Client() = default;  // ends the session; unfinished jobs report CANCELLED

  // Makes shared memory of `length_bytes`, sealed against shrinking, and registers it with the daemon. Segments are
  // registered one after the other. UNAVAILABLE: the daemon has exited, or has not answered within `options.timeout`;
  // the session is then over. Exception: the session goes on if the time passes while the daemon still releases dropped
  // segments.
  virtual absl::StatusOr<std::shared_ptr<Segment>> CreateSegment(uint64_t length_bytes,
                                                                 SegmentOptions options = {}) = 0;
  // Registers a memfd of the caller, which must carry F_SEAL_SHRINK, or a dma-buf: memory of a GPU, for example. The
  // caller keeps `fd`. `timeout`: as SegmentOptions::timeout. Segment::bytes() of a dma-buf has a size and no address.
  // UNIMPLEMENTED for a dma-buf if some rail of the node cannot reach it. Flows between ranks of one node may not use
  // it.
  virtual absl::StatusOr<std::shared_ptr<Segment>> ImportSegment(int fd, uint64_t length_bytes,
                                                                 absl::Duration timeout = absl::Minutes(1)) = 0;
  // Blocks until every rank has joined.
  virtual absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options) = 0;

  // Connected() is false once the daemon has exited. Groups and jobs are then lost. Reconnect() opens a new session and
  // registers the living segments again; groups can then be joined again. It blocks for at most `connect_timeout`, and
  // then at most a minute for each segment. OK without effect while connected. A group with a `restart_limit`
  // reconnects by itself; other groups of the client are still lost.
  virtual bool Connected() const = 0;
  virtual absl::Status Reconnect() = 0;
  virtual const std::string& node() const = 0;
};

}  // namespace rails

#endif  // RAILS_CLIENT_H_
