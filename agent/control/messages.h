// Messages of agents about groups and jobs, as plain structures. The daemon carries them (proto
// rails.peer.v1) over one numbered stream per direction and pair of agents: in order, each once, or the peer is lost.
#ifndef RAILSD_AGENT_CONTROL_MESSAGES_H_
#define RAILSD_AGENT_CONTROL_MESSAGES_H_

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "agent/base/data_key.h"
#include "agent/base/ids.h"
#include "agent/base/rail_mask.h"
#include "agent/base/recovery.h"
#include "agent/control/stream_flows.h"

namespace railsd {

// A group before it has an epoch. `key_digest` is the SHA-256 of the secret join key: a uid or a name from another
// node proves nothing.
struct GroupKey {
  std::string tenant;
  std::string name;
  std::array<uint8_t, 32> key_digest{};
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

// Sent to every peer: a rank of the sender wants to join.
struct GroupJoin {
  GroupKey key;
  uint32_t world_size = 0;
  Rank rank;
  Recovery recovery;
  JobSeq next_seq{1};  // the first job that the rank has not finished, over all epochs so far
};
// Sent to every peer: the join is over, because it was given up or refused, or because a commit has answered it.
struct GroupLeave {
  GroupKey key;
  Rank rank;
};
// Sent by the agent of rank 0 to every peer: members[r] is the node of rank r. A peer without a member gets members[0]
// only, and forgets the joins.
struct GroupCommit {
  GroupKey key;
  Epoch epoch;
  std::vector<std::string> members;
  Recovery recovery;
  JobSeq next_seq{1};  // the epoch's first job
};
// Sent to the agent of a join that the sender refuses. Usually the sender is the agent of rank 0.
struct GroupReject {
  GroupKey key;
  Rank rank;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason;
  std::vector<Rank> failed_ranks{};  // as in failed_ranks.h
};
// Sent by any member's agent to all others: the epoch is over. Jobs up to `last_seq` go on, because a member that left
// has finished its part of them; later jobs end.
struct GroupBroken {
  Epoch epoch;
  JobSeq last_seq;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason;
  bool replayable = false;  // a daemon has ended, and no trainer: the ranks may join again and go on
  bool left = false;        // a rank has left, and nothing has failed
  std::vector<Rank> failed_ranks{};
};
// Sent by a draining node to the others of a group: its ranks have ended the jobs up to `seq`, and it leaves when the
// receiver's ranks have ended them, too.
struct Leaving {
  Epoch epoch;
  JobSeq seq;
};
// The answer to Leaving, when the receiver's ranks have ended those jobs.
struct MayLeave {
  Epoch epoch;
  JobSeq seq;
};

// Names one connection of a rail between the sender and the receiver of the message.
struct RailConnection {
  static constexpr size_t kMaxFailed = 1024;  // the most that one message names
  RailIndex rail;
  uint64_t connection = 0;  // as RailEvent::connection
  friend bool operator==(const RailConnection&, const RailConnection&) = default;
};
// The keys of one rail for a zone: one for each of the grant's ranges. They are good for that connection only.
struct RailKeys {
  RailConnection rail;
  std::vector<uint32_t> keys;
};
// The permission to write one exchange, and where it may land.
struct Grant {
  struct Range {
    uint64_t address = 0;  // in the address space of the receiver's daemon
    uint64_t length_bytes = 0;
  };
  ZoneRef zone;
  // Empty unless rails write into remote memory (verbs). The ranges cover the stream in order, without gaps.
  std::vector<Range> ranges;
  std::vector<RailKeys> keys;
};
// Bytes of a job that the sender's rails carried to the receiver, whose own rails may not be able to count them. Only
// for statistics.
struct Tally {
  JobKey job;
  std::vector<uint64_t> bytes;  // by rail
};
// Sent to every other node of a group when all ranks of the sender have submitted a job: the bytes that they send to
// the receiver's ranks and expect from them.
struct Ready {
  static constexpr size_t kMaxTallies = 1024;
  static constexpr size_t kMaxEagerBytes = 32 << 10;
  // A flow that is left out has no bytes; a length of 0 says the same. All READYs of a job share one table of flows.
  using Flow = StreamFlow;
  using Flows = StreamFlows;
  // The sender's rails. Plans use no rail beyond the list.
  struct Rails {
    BytesByRail bytes_per_s;     // the speeds that plans count on
    uint64_t backlog_bytes = 0;  // that are to arrive over each of them
  };
  JobKey job;
  uint64_t tag = 0;
  bool capacities = false;  // the lengths of `receives` are capacities
  // The receiver's part, in millionths, of all bytes that this job brings to the sender's node; 0: not told.
  uint32_t inflow_ppm = 0;
  uint64_t vote = 0;  // the highest of the sender's ranks
  Flows sends;        // in the order of the stream: by destination, then source
  Flows receives;     // the same
  Rails rails;
  // By rail: bytes that the sender's plans have put onto it for the receiver since the two daemons met, without this
  // job's. They tell the receiver how evenly its rails were planned to receive.
  BytesByRail planned_bytes;
  std::vector<Tally> tallies;  // of jobs that have ended since the last READY
  // Permission to write what the sender's ranks expect. If absent, a LateGrant follows when the receiver's READY has
  // come.
  std::optional<Grant> grant;
  // The whole stream that the sender's ranks send, if it is short: it needs no grant then. Empty: rails carry the
  // stream.
  std::string eager;
  // Rails must carry what the sender's ranks expect, even if the receiver's READY has it as eager bytes: it goes into
  // memory of a device.
  bool rails_only = false;
};
// Sent to a node whose READY has come, when the sender's READY carried no grant.
struct LateGrant {
  JobKey job;
  Grant grant;
};
// Sent to the other nodes of a group when a job has waited for ranks of the sender: the ranks that have not submitted
// it. Sent again whenever one submits; READY follows the last one.
struct Unsubmitted {
  static constexpr size_t kMaxMembers = 16;  // as many as a text names
  struct Member {
    Rank rank;
    int64_t pid = 0;
  };
  JobKey job;
  std::vector<Member> members;
};
// Ends a job everywhere; idempotent, leaves a tombstone.
struct Abort {
  JobKey job;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason;
  std::vector<Rank> failed_ranks{};
};
// The answer to every ABORT, also for a job that is unknown or over: the sender of the answer posts nothing more of the
// job for the receiver. `failed` names connections that failed at its end: bytes on their wire may still land until the
// receiver ends these connections.
struct Quiesced {
  JobKey job;
  std::vector<RailConnection> failed;
};
// Connections have failed at the sender's end. Work posted to them has come back; its bytes may have arrived, or may
// still land. The receiver says which of these exchanges have arrived, and raises the round of the others. One REHOME
// is outstanding at a time.
struct Rehome {
  static constexpr size_t kMaxExchanges = 65'535;  // as many as there are zones
  struct Exchange {
    JobKey job;
    uint32_t round = 0;  // the one that is over
  };
  std::vector<RailConnection> failed;  // empty: the exchanges need keys for other connections
  std::vector<Exchange> exchanges;
};
// The answer to Rehome, one entry for each exchange in the same order. In the new round the sender sends again what it
// has lost of open exchanges; fences of older rounds do not count.
struct Rehomed {
  enum class State : uint8_t { kOpen, kComplete, kAborted };
  struct Exchange {
    JobKey job;
    State state = State::kOpen;
    uint32_t round = 0;          // of kOpen: the new one
    std::vector<RailKeys> keys;  // of kOpen: for connections that were not granted before
  };
  std::vector<Exchange> exchanges;
};
// A signal from one end of a rail over verbs to the other; the agents only carry it.
struct RailSignal {
  static constexpr size_t kMaxBytes = 4096;
  RailIndex rail;
  std::string bytes;  // 1 to kMaxBytes
};
// A rail of the sender has changed. Peers that send to it must know at once.
struct RailState {
  RailIndex rail;
  bool usable = true;
  bool drained = false;  // not usable because an operator drained it
  bool down = false;     // not usable because its link is down, which has ended its connections
  friend bool operator==(const RailState&, const RailState&) = default;
};

using ControlMessage =
    std::variant<GroupJoin, GroupLeave, GroupCommit, GroupReject, GroupBroken, Ready, LateGrant, Tally, Abort, Quiesced,
                 RailState, RailSignal, Rehome, Rehomed, Leaving, MayLeave, Unsubmitted>;

// A peer, as its HELLO on the link describes it.
struct PeerHello {
  struct Rail {
    RailIndex index;
    std::string address;  // "ip:port", or "verbs:DEVICE/PORT"
    uint64_t speed_bytes_per_s = 0;
  };
  std::string node;
  BootId boot;
  std::vector<Rail> rails;
  DataKey data_key = {};  // of its link with this node; the same at both ends
};

// Carries messages to other agents. Implemented by the daemon and by tests.
class ControlLink {
 public:
  virtual ~ControlLink() = default;
  // Queues a message for `node`; never blocks. A full queue loses the peer (OnPeerDown), never a single message.
  // Called by the engine's thread.
  virtual void Send(const std::string& node, ControlMessage message) = 0;
  // As Send(), for messages whose length depends on what a tenant asks for. A message that is longer than `node` takes,
  // or that its queue has no room for, is not sent and stays unchanged; RESOURCE_EXHAUSTED says why. (Send() would lose
  // the peer, and the jobs of all tenants with it.) Agent::OnReadyTaken() tells when the peer's daemon has a READY with
  // eager bytes.
  virtual absl::Status SendIfItFits(const std::string& node, ControlMessage&& message) = 0;
  // Sets how long groups wait for `node` when it is silent. Until then its link is kept, with the messages that wait
  // for it, and OnPeerSilent() is called instead of OnPeerDown(). Zero, the initial value: a silent node is lost at
  // once.
  virtual void SetPatience(const std::string& node, absl::Duration patience) = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_CONTROL_MESSAGES_H_
