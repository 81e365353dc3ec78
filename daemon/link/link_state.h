// Whether this node and one peer can talk, decided from what their HELLOs told.
//
// Each side counts how often it has lost the other in its present life (the link generation, in every HELLO). A link
// is named by both boot ids and both generations; numbers start from 1 in each link. When any of the four changes, the
// old link is over at both ends, whoever notices first: nothing of it is delivered after that, and what its outbox
// held is gone, so a message is lost only together with its link.
//
// Pure: no sockets, no clock of its own, no threads; the caller synchronises.
#ifndef RAILSD_DAEMON_LINK_LINK_STATE_H_
#define RAILSD_DAEMON_LINK_LINK_STATE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "agent/control/messages.h"

namespace railsd {

// A connection, by how it came about. HELLOs of one life of a daemon are counted.
struct ConnectionOrigin {
  bool dialled_here = false;
  uint64_t own_hello = 0, peer_hello = 0;  // their counts
};

// Two connections of one link, whose HELLOs both ends have: does `fresh` replace `present`? Both ends find the same.
// A daemon dials only while it has no connection to the node; so a dial that came after its HELLO on the other
// connection says that it has lost that one. Dials that crossed each other: the one of the lower name stays.
bool Replaces(const ConnectionOrigin& fresh, const ConnectionOrigin& present, bool own_name_is_lower);

class LinkState {
 public:
  // `generation`: what this side begins with.
  explicit LinkState(absl::Duration lost_after, uint32_t generation = 1)
      : lost_after_(lost_after), own_generation_(generation) {}

  // What a HELLO changed.
  enum class Effect {
    kNone,   // the same link
    kNew,    // the first HELLO, or of another life: reset both boxes, close other connections
    kStale,  // of a link that is over: refuse the connection
  };
  // `*down` is set when a link that was up ended by it, with the reason.
  Effect OnHello(const PeerHello& hello, uint32_t generation, std::optional<std::string>* down);
  // A connection of the link carries messages from now on.
  void OnConnected(absl::Time now);
  // Both ends have accepted each other's HELLO. True when the link is up by it.
  bool TakeUp() { return !std::exchange(up_, true); }
  void OnDisconnected() { connected_ = false; }
  void OnHeard(absl::Time now) { heard_ = now; }

  bool up() const { return up_; }
  bool known() const { return hello_.has_value(); }

  // Ends the link from this side (overflow, silence, a broken promise): raises the own generation and forgets the
  // peer's HELLO. The caller closes the connection and resets both boxes. True when the link was up.
  bool Lose();

  // Up, and in trouble: the connection is gone, or nothing was heard since `then`.
  bool Troubled(absl::Time then) const { return up_ && (!connected_ || heard_ < then); }
  // How long a link that is up outlives silence beyond `lost_after`, because somebody waits for the peer.
  void SetPatience(absl::Duration patience) { patience_ = patience; }
  // Up, and silent for too long.
  bool Silent(absl::Time now) const { return up_ && now - heard_ > lost_after_; }
  // Silent, and nobody waits any more.
  bool GivenUp(absl::Time now) const { return up_ && now - heard_ > std::max(lost_after_, patience_); }

  // Of the last life that was heard of, also after Lose(). 0: none.
  BootId last_boot() const { return last_boot_; }

  uint32_t own_generation() const { return own_generation_; }
  uint32_t peer_generation() const { return peer_generation_; }
  const PeerHello& hello() const { return *hello_; }

 private:
  const absl::Duration lost_after_;
  absl::Duration patience_;
  uint32_t own_generation_;
  std::optional<PeerHello> hello_;
  uint32_t peer_generation_ = 0;
  BootId last_boot_;              // of the last link, also after Lose()
  uint32_t last_generation_ = 0;  // with last_boot_
  bool up_ = false, connected_ = false;
  absl::Time heard_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_LINK_STATE_H_
