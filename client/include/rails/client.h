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
//   auto report = job->Wait(absl::Seconds(60));     // now, and not before, the buffers are the caller's again
//
// All classes are safe to use from several threads. Nothing throws. No signal is raised or handled, every descriptor
// closes on exec. A client belongs to the process that made it. In a forked child every call returns
// FAILED_PRECONDITION at once, as OnDone() and Future() do, Connected() is false, copies may be destroyed, and the
// segments' memory is shared. Connect() in a child of a process that had connected is refused in the same way, because
// gRPC does not survive a fork: fork before the first Connect(), or exec.
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
  // Directory of the daemon's sockets: client.sock (gRPC) and descriptors.sock.
  std::string socket_dir = "/run/railsd";
  // Shown to operators.
  std::string client_name{};
  // Connect() keeps trying for this long when the daemon is not there.
  absl::Duration connect_timeout = absl::Seconds(10);
};

struct SegmentOptions {
  bool huge_pages = false;             // memfd with MFD_HUGETLB; RESOURCE_EXHAUSTED when the system has none free
  bool prefault = true;                // touch every page now, so that they are charged to this process
  std::string name = "rails-segment";  // as in /proc/PID/maps
  absl::Duration timeout = absl::Minutes(1);  // for each answer: that there is room, and that it is registered
};

// Memory shared with the daemon. The mapping lives as long as the object; the daemon lets go when the last reference
// is dropped, or at the end of the session.
class Segment {
 public:
  virtual ~Segment() = default;
  virtual absl::Span<std::byte> bytes() const = 0;
  virtual uint32_t id() const = 0;
};

// Bytes [offset, offset + length) of a segment.
struct Range {
  std::shared_ptr<Segment> segment{};
  uint64_t offset_bytes = 0;
  uint64_t length_bytes = 0;
};

// The bytes exchanged with one rank, in the order of the list. The two ends may cut them into ranges differently;
// their totals must agree.
struct FlowRanges {
  uint32_t rank = 0;
  std::vector<Range> ranges{};
};

// One rank's part of an all-to-all(v). A rank left out exchanges nothing. Bytes from the rank to itself are copied by
// this library during Submit(). What is received must overlap neither itself nor what is sent, in two segments of the
// same memory neither; only what the rank sends to itself may overlap where it goes. Nor may it overlap what another
// job of this client, which has not ended, sends or receives.
struct AllToAllv {
  std::vector<FlowRanges> sends{};                // by destination rank
  std::vector<FlowRanges> receives{};             // by source rank
  uint64_t tag = 0;                               // the caller's mark; every rank gives the same
  absl::Duration timeout = absl::ZeroDuration();  // from acceptance; zero: the daemon's limit
};

// What became of one rank's part of a job.
struct JobReport {
  uint64_t seq = 0;
  uint32_t rank = 0;
  bool terminal = false;  // nothing touches the buffers any more
  absl::Status status;    // OK when done; else which node, rail or rank failed and how
  uint64_t bytes_sent = 0, bytes_received = 0;
  absl::Duration elapsed;
  absl::Duration waiting_for_ranks;
  absl::Duration waiting_for_peers;
  absl::Duration to_first_chunk;  // from acceptance until the first chunk of the job was handed to a rail
  absl::Duration node_bound;      // max(out, in) / sum of rail speeds, of the whole job on this node
  double ratio_to_bound = 0;
  std::vector<uint64_t> rail_tx_bytes, rail_rx_bytes;  // of the whole job on this node
  // Recovery::kDegrade: ranks whose nodes were lost before everything from and to them was through. `status` is OK all
  // the same; what they send has arrived in part or not at all.
  std::vector<uint32_t> lost_ranks;
  uint32_t replays = 0;  // Recovery::kWait: how often it was handed over again, after a daemon had ended
};

// A submitted job. Dropping it neither cancels nor waits; the group remembers which segments are in use. In a group
// that waits for restarts (GroupOptions::restart_limit) it outlives daemons: it is handed over again, with its timeout
// anew, until it ends. Its buffers stay the library's until then, whatever happens.
class Job {
 public:
  virtual ~Job() = default;
  virtual uint64_t seq() const = 0;
  // Blocks until the job is terminal or `timeout` has passed (the report then says terminal = false).
  // Error: ABORTED when the daemon is gone, and the group does not go on (its `restart_limit` has passed, or ranks have
  // finished different jobs); the job's segments then stay poisoned until its process has ended.
  // UNAVAILABLE: the daemon lives and does not answer; the job is unfinished.
  virtual absl::StatusOr<JobReport> Wait(absl::Duration timeout = absl::InfiniteDuration()) = 0;
  // Called once, from a thread of the client, when the job is terminal or the daemon is gone. Must not block, nor call
  // Reconnect() or destroy the client.
  virtual void OnDone(std::function<void(absl::StatusOr<JobReport>)> callback) = 0;
  virtual std::future<absl::StatusOr<JobReport>> Future() = 0;
  // Asks for the end of the job at every rank; Wait() then reports CANCELLED, unless it was done already. UNAVAILABLE
  // while a daemon is waited for: the ranks must not differ in what they have finished.
  virtual absl::Status Cancel() = 0;
};

// What becomes of a group when one of its nodes is lost. All ranks of a group choose the same.
enum class Recovery {
  kFail = 1,     // its jobs fail with UNAVAILABLE, naming the node, and the group is over
  kWait = 2,     // its jobs go on when the daemon is heard of again within `wait_limit`, and are replayed when it has
                 // ended and another has taken its place within `restart_limit`; else as kFail
  kDegrade = 3,  // the others go on without it; what is to come from or to go to its ranks is left out and reported
};

struct GroupOptions {
  std::string name{};
  std::string join_key{};  // secret shared by the ranks
  uint32_t world_size = 0;
  uint32_t rank = 0;
  absl::Duration timeout = absl::Minutes(2);  // for all ranks to arrive
  Recovery recovery = Recovery::kFail;
  absl::Duration wait_limit = {};  // of kWait: positive, at most the daemon's `timeouts.max_peer_wait`
  // Of kWait: how long a daemon that has ended, this node's or another member's, may take to be back, and all ranks to
  // join again. The library does that by itself: it connects, shares the segments, joins, and hands over what has not
  // ended, while Submit() blocks. Zero: the group is over at once. Daemons are restarted without a lost job by
  // draining them first, as SIGTERM does; when one dies, ranks may have finished different jobs, and then the group is
  // over.
  absl::Duration restart_limit = absl::Minutes(2);
};

class Group {
 public:
  virtual ~Group() = default;  // leaves
  virtual uint32_t rank() const = 0;
  virtual uint32_t world_size() const = 0;
  virtual const std::vector<std::string>& members() const = 0;  // node of each rank
  // Numbers the job and hands it to the daemon. Ranks must submit their jobs in the same order. A submission that is
  // refused takes no number and copies nothing.
  // Jobs of a group run concurrently and may end in any order. One that uses the result of another, or its buffers, is
  // submitted when the other has ended: after Wait(), or in OnDone().
  // INVALID_ARGUMENT names the field and its value. FAILED_PRECONDITION: a segment is poisoned by a lost job, a job
  // that has not ended uses bytes of this one and at least one of the two receives them, or the group is over.
  // UNAVAILABLE: the daemon drains or is gone; with a `restart_limit`, only after that. Other errors come from the
  // daemon unchanged. `timeout`: for the answer of a daemon that lives; to wait for one that restarts does not count.
  // When it has passed, nobody knows whether the job runs: UNAVAILABLE, the group is over, and the segments are
  // poisoned. Calls of one group run one after the other.
  virtual absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange,
                                                      absl::Duration timeout = absl::Seconds(30)) = 0;
  virtual absl::Status Leave() = 0;
};

class Client {
 public:
  // UNAVAILABLE, PERMISSION_DENIED: names the socket, and says what to do. FAILED_PRECONDITION: the process was forked
  // from one that had connected.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(ClientOptions options);
  virtual ~Client() = default;  // ends the session; unfinished jobs report CANCELLED

  // New shared memory of `length_bytes`, sealed against shrinking and registered with the daemon. UNAVAILABLE: the
  // daemon has not answered within `options.timeout`, and the session is over, as when the daemon is gone; the session
  // goes on when the time has passed before the daemon let go of dropped segments. Segments are registered one after
  // the other.
  virtual absl::StatusOr<std::shared_ptr<Segment>> CreateSegment(uint64_t length_bytes,
                                                                 SegmentOptions options = {}) = 0;
  // Registers a memfd that the caller made (it must carry F_SEAL_SHRINK). `fd` stays the caller's. `timeout` is as
  // SegmentOptions::timeout.
  virtual absl::StatusOr<std::shared_ptr<Segment>> ImportSegment(int fd, uint64_t length_bytes,
                                                                 absl::Duration timeout = absl::Minutes(1)) = 0;
  // Blocks until every rank has joined.
  virtual absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options) = 0;

  // False once the daemon is gone. Groups and jobs are then lost; Reconnect() opens a new session and registers the
  // living segments again, and groups can be joined anew. It blocks for `connect_timeout` at most, and then until the
  // daemon has mapped each segment, a minute at most. Nothing to do, and OK, while connected. A group with a
  // `restart_limit` does it by itself; other groups of the client are lost all the same.
  virtual bool Connected() const = 0;
  virtual absl::Status Reconnect() = 0;
  virtual const std::string& node() const = 0;
};

}  // namespace rails

#endif  // RAILS_CLIENT_H_
