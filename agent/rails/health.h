// The health of rails: a pure state machine, fed with events and their times. Says which rail may carry new work to
// which peer. Holds a path back for a while after a failure, longer with each failure.
#ifndef RAILSD_AGENT_RAILS_HEALTH_H_
#define RAILSD_AGENT_RAILS_HEALTH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/base/ids.h"

namespace railsd {

enum class HealthState : uint8_t {
  kUp,
  kSuspect,  // connected, but bytes sent make no progress: new work goes over other rails
  kDown,
  kProbing,  // connected again after a failure, and held back until it has been good for a while
  // An operator has drained the peer's end. The path gets no new work, and a disconnect is no failure.
  kDrainedByPeer,
};
const char* HealthStateName(HealthState state);  // "up", "suspect", "down", "probing", "drained_by_peer"
inline constexpr HealthState kAllHealthStates[] = {HealthState::kUp, HealthState::kSuspect, HealthState::kDown,
                                                   HealthState::kProbing, HealthState::kDrainedByPeer};

struct HealthOptions {
  // How long a rail that is connected again is held back after its first failure; each further one doubles it.
  absl::Duration first_hold = absl::Milliseconds(200);
  absl::Duration max_hold = absl::Seconds(30);
  // Failures count half after so long.
  absl::Duration half_life = absl::Seconds(60);
  // Over TCP, a connection with data that the network has not acknowledged for so long is broken; 0: never.
  absl::Duration stall = absl::Milliseconds(400);
  friend bool operator==(const HealthOptions&, const HealthOptions&) = default;
};

// A rail of this node, for people.
struct RailHealthView {
  HealthState state = HealthState::kUp;
  bool drained = false;
  std::string why;      // when it is not up, or drained; a sentence without a full stop
  uint64_t drains = 0;  // how often it was drained
  uint64_t flaps = 0;   // failures so far: of the rail and of its paths to single peers
  absl::Duration held;  // kProbing: the longest time for which a path is still held
  // How long it has been in each state, in the order of kAllHealthStates, and drained; since the first Account().
  std::array<absl::Duration, std::size(kAllHealthStates) + 1> spent = {};
};

// A *path* is a rail to one peer: this node's end, the connection, the peer's end. A failure is charged to the rail
// when it is local (the link is down, or the connections to all of two or more peers broke within a second) and to the
// path otherwise. Not failures: first connections, peers that are lost or restart, rails that either end has drained.
// Owned by one thread, which calls everything with times that do not go back.
class RailHealth {
 public:
  RailHealth(const HealthOptions& options, size_t rails);

  // The link to the peer is up. If the boot id has changed, earlier failures of the paths to the peer do not count.
  void OnPeerUp(PeerIndex peer, BootId boot);
  // The link to the peer has ended. Takes back the failures of rails that came with it.
  void OnPeerLost(PeerIndex peer);
  void OnConnected(RailIndex rail, PeerIndex peer, absl::Time now);
  void OnDisconnected(RailIndex rail, PeerIndex peer, absl::Time now);
  // Data under way to the peer makes no progress, or does again.
  void OnStalled(RailIndex rail, PeerIndex peer, bool stalled);
  // The peer tells whether its own end of the rail is usable. `drained`: it is not because an operator drained it.
  void OnPeerSays(RailIndex rail, PeerIndex peer, bool usable, bool drained);
  // The state of this node's interface or port; `why` it is down. Down comes before the disconnects that it causes.
  void OnLink(RailIndex rail, bool up, const std::string& why, absl::Time now);
  // Sets what the operator wants. False: it was so before.
  bool SetDrained(RailIndex rail, bool drained);

  // Whether new work may go over the path. A path that is held back, or suspect, may be used when no better one reaches
  // the peer.
  bool MayUse(RailIndex rail, PeerIndex peer, absl::Time now) const;
  HealthState PathState(RailIndex rail, PeerIndex peer, absl::Time now) const;
  // True if this node's end works and is not drained. Peers are told this.
  bool EndUsable(RailIndex rail) const;
  bool drained(RailIndex rail) const { return rails_[rail.value()].drained; }
  bool link_up(RailIndex rail) const { return rails_[rail.value()].link_up; }
  // True if operators have taken the rail out of use: it is drained here, or by every peer that is up.
  bool Unwanted(RailIndex rail) const;
  RailHealthView View(RailIndex rail, absl::Time now) const;
  // Adds the time since the last call to the states that the rails were in at that call. Call it after whatever may
  // change a state.
  void Account(absl::Time now);
  // When an answer may change although nothing happens; InfiniteFuture: never.
  absl::Time NextChange(absl::Time now) const;

 private:
  // Failures, each of which counts less as time goes by.
  struct Failures {
    double count = 0;
    absl::Time at = absl::InfinitePast();
    double At(absl::Time now, absl::Duration half_life) const;
    void Add(absl::Time now, absl::Duration half_life);
  };
  struct Path {
    bool connected = false;
    bool stalled = false;
    bool end_usable = true;     // the peer's
    bool end_drained = false;   // the peer's; not usable then
    bool broken = false;        // disconnected by a failure, and not connected since
    Failures failures, before;  // `before`: what they were before the last one
    absl::Time broken_at = absl::InfinitePast();
    absl::Time held_until = absl::InfinitePast();
  };
  struct Rail {
    bool link_up = true;
    bool drained = false;
    bool charged = false;  // the failure under way is in `failures`
    std::string why;       // of the link
    Failures failures, before;
    uint64_t flaps = 0, drains = 0;
    size_t accounted = 0;  // the state that the time since `accounted_` counts for, as an index of `spent`
    std::array<absl::Duration, std::size(kAllHealthStates) + 1> spent = {};
  };
  struct Peer {
    BootId boot;
    bool known = false;  // it has been up
    bool up = false;
    std::vector<Path> paths;  // by rail
  };

  Peer& At(PeerIndex peer);
  HealthState RailState(const Rail& rail, size_t index, absl::Time now) const;
  const Path* FindPath(RailIndex rail, PeerIndex peer) const;
  void ChargeRail(size_t rail, absl::Time now);
  void ChargePath(Path& path, size_t rail, absl::Time now);
  // Charges the rail, not its paths, if the paths to all peers broke together.
  void JudgeTogether(size_t rail, absl::Time now);
  HealthState StateOf(const Rail& rail, const Path& path, absl::Time now) const;
  std::string Why(const Rail& rail, HealthState state, absl::Duration held) const;

  const HealthOptions options_;
  std::vector<Rail> rails_;
  std::vector<Peer> peers_;  // by index
  absl::Time accounted_ = absl::InfiniteFuture();
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_HEALTH_H_
