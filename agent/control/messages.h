// What agents tell each other about groups and jobs, as plain structures. The daemon carries them (proto
// rails.peer.v1) over one numbered stream per direction and pair of agents: in order, each once, or the peer is lost.
#ifndef RAILSD_AGENT_CONTROL_MESSAGES_H_
#define RAILSD_AGENT_CONTROL_MESSAGES_H_

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "agent/base/data_key.h"
#include "agent/base/ids.h"
#include "agent/base/recovery.h"

namespace railsd {

// A group before it has an epoch. `key_digest` is the SHA-256 of the secret join key: a uid or a name from another
// node proves nothing.
struct GroupKey {
  std::string tenant;
  std::string name;
  std::array<uint8_t, 32> key_digest{};
  friend auto operator<=>(const GroupKey&, const GroupKey&) = default;
};

// To every peer: one of my ranks wants to join.
struct GroupJoin {
  GroupKey key;
  uint32_t world_size = 0;
  Rank rank;
  Recovery recovery;
  JobSeq next_seq{1};  // the first job that the rank has not finished, over all epochs so far
};
// To every peer: that join was given up before a commit.
struct GroupLeave {
  GroupKey key;
  Rank rank;
};
// Rank 0's agent to every peer: who is where. members[r] is the node of rank r. Peers without a member forget the
// joins.
struct GroupCommit {
  GroupKey key;
  Epoch epoch;
  std::vector<std::string> members;
  Recovery recovery;
  JobSeq next_seq{1};  // the epoch's first job
};
// Rank 0's agent to the agent of a join that contradicts it.
struct GroupReject {
  GroupKey key;
  Rank rank;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason;
};
// Any member's agent to all others: nothing more can be started in this epoch. Jobs up to `last_seq` go on: the member
// that left had finished its part of them.
struct GroupBroken {
  Epoch epoch;
  JobSeq last_seq;
  absl::StatusCode code = absl::StatusCode::kUnknown;
  std::string reason;
  bool replayable = false;  // a daemon has ended, and no trainer: the ranks may join again and go on
  bool left = false;        // a rank has left, and nothing has failed
};
// From a node that drains to the others of a group: its ranks have ended the jobs up to `seq`, and it leaves once the
// receiver's ranks have ended them, too.
struct Leaving {
  Epoch epoch;
  JobSeq seq;
};
// The answer, as soon as that is so.
struct MayLeave {
  Epoch epoch;
  JobSeq seq;
};

// The flows of the sender's ranks to the receiver's ranks in one job that have bytes. One that is left out has none; a
// length of 0 says the same.
struct Offer {
  struct Flow {
    Rank source;
    Rank destination;
    uint64_t bytes = 0;
  };
  JobKey job;
  uint64_t tag = 0;
  std::vector<Flow> flows;
  JobSeq retired_below;  // the sender holds no job of this epoch below this one: tombstones may go
  // By rail: what the sender's plans have put onto it for the receiver since the two met, up to the job before. So the
  // receiver knows how evenly it was planned to receive.
  std::vector<uint64_t> planned_bytes;
};
// The answer: where the flows of that OFFER may land and what the receiver's rails can take. Zone i of the slot is
// flow i of the offer.
struct Ready {
  struct RailState {
    RailIndex rail;
    bool usable = true;
    uint64_t speed_bytes_per_s = 0;
    uint64_t backlog_bytes = 0;
  };
  // A piece of a zone, in order of the zones and within a zone of the flow's bytes: they cover it without gaps.
  struct ZoneRange {
    uint32_t zone = 0;
    uint64_t address = 0;  // in the receiver's daemon
    uint64_t length_bytes = 0;
  };
  JobKey job;
  uint32_t slot = 0;
  uint32_t generation = 0;
  std::vector<RailState> rails;
  // For rails that write into remote memory; empty for others. keys[i * rails.size() + r] opens ranges[i] on rail r.
  std::vector<ZoneRange> ranges;
  std::vector<uint32_t> keys;
  std::vector<FenceSlot> fences;  // by zone
};
// To the other nodes of a group: the sender's ranks that have not submitted, of a job that others have waited for. Told
// anew whenever one submits; the OFFER ends it.
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
  bool breaks_group = false;
};
// The sender of flows for an aborted job posts nothing more for the receiver's zones. What is still on the wire of
// rails that failed at its end (bit r: rail r) may yet land, unless the receiver ends its end of them.
struct Quiesced {
  JobKey job;
  uint64_t failed_rails = 0;
};
// Over rails that write into remote memory: some (bit r: rail r) have failed at the sender's end since READY, and
// everything of these flows that was posted to them has come back, arrived or not; it may yet land. The receiver says
// which flows it has, and raises the round of the others.
struct Rehome {
  struct Flow {
    uint32_t zone = 0;
    uint8_t round = 0;  // 4 bits; the one that is over
  };
  JobKey job;
  uint64_t failed_rails = 0;
  std::vector<Flow> flows;
};
// The answer. Only what has not arrived is sent again, in the new round; fences of older rounds mean nothing.
struct Rehomed {
  struct Flow {
    uint32_t zone = 0;
    uint8_t round = 0;
    bool arrived = false;
  };
  JobKey job;
  std::vector<Flow> flows;
};
// Of a job over rails that write into remote memory: what the sender's rails carried to this receiver, which cannot
// count it. Bookkeeping only, nothing waits for it.
struct Sent {
  JobKey job;
  std::vector<uint64_t> bytes;  // by rail
};
// From one end of a rail to the other; the agents only carry it.
struct RailSignal {
  static constexpr size_t kMaxBytes = 4096;
  RailIndex rail;
  std::string bytes;  // 1 to kMaxBytes
};
// My rail changed: senders must know at once.
struct RailState {
  RailIndex rail;
  bool usable = true;
  bool drained = false;  // not usable because an operator drained it
  friend bool operator==(const RailState&, const RailState&) = default;
};

using ControlMessage =
    std::variant<GroupJoin, GroupLeave, GroupCommit, GroupReject, GroupBroken, Offer, Ready, Abort, Quiesced, RailState,
                 Sent, RailSignal, Rehome, Rehomed, Leaving, MayLeave, Unsubmitted>;

// What a peer's HELLO on the link says of it.
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
  // The same for messages that grow with what a tenant asks for: one that is longer than `node` takes, or more than may
  // wait for it, is not sent; RESOURCE_EXHAUSTED says why. (Send() loses the peer then, and with it everybody's jobs.)
  virtual absl::Status SendIfItFits(const std::string& node, ControlMessage message) = 0;
  // Groups wait for `node` for so long when nothing is heard of it: until then its link is kept, with the messages that
  // wait for it, and OnPeerSilent comes instead of OnPeerDown. Zero, as at first: it is lost at once.
  virtual void SetPatience(const std::string& node, absl::Duration patience) = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_CONTROL_MESSAGES_H_
