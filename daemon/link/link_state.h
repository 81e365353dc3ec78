// The state of the link to one peer, derived from the HELLOs of both ends.
//
// Each side counts how often it has lost the other since it started (the link generation, in every HELLO). Both boot
// ids and both generations name a link. Numbers start from 1 in each link. When any of the four changes, the old link
// is over at both ends: none of its messages is delivered after that, and its outbox is emptied. A message is lost
// only together with its link.
//
// Pure: no sockets, no clock, no threads. The caller synchronises.
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

// How a connection came about. A daemon counts its HELLOs from its start.
struct ConnectionOrigin {
  bool dialled_here = false;
  uint64_t own_hello = 0, peer_hello = 0;  // counts of the two HELLOs
};

// True if `fresh` replaces `present`, another connection of the same link. Both ends have both HELLOs and get the same
// answer. A daemon dials while it has no connection to the node, or to replace the one that it has. Therefore a daemon
// whose dial came after its HELLO on the other connection no longer uses the other connection. If the dials crossed,
// the dial of the lower node name stays.
bool Replaces(const ConnectionOrigin& fresh, const ConnectionOrigin& present, bool own_name_is_lower);

class LinkState {
 public:
  // `generation`: this side's first generation.
  explicit LinkState(absl::Duration lost_after, uint32_t generation = 1)
      : lost_after_(lost_after), own_generation_(generation) {}

  // How a HELLO changes the link.
  enum class Effect {
    kNone,   // the same link
    kNew,    // first HELLO, another boot id or another generation: reset outbox and inbox, close other connections
    kStale,  // the HELLO belongs to a link that is over: refuse the connection
  };
  // If the HELLO ends a link that was up, sets `*down` to the reason.
  Effect OnHello(const PeerHello& hello, uint32_t generation, std::optional<std::string>* down);
  // A connection carries the link's messages from now on.
  void OnConnected(absl::Time now);
  // Both ends have accepted each other's HELLO. True if the link was down until now.
  bool TakeUp() { return !std::exchange(up_, true); }
  void OnDisconnected() { connected_ = false; }
  void OnHeard(absl::Time now) { heard_ = now; }

  bool up() const { return up_; }
  bool known() const { return hello_.has_value(); }

  // Ends the link from this side (overflow, silence, protocol error): raises the own generation and forgets the peer's
  // HELLO. The caller closes the connection and resets outbox and inbox. True if the link was up.
  bool Lose();

  // Up, but the connection is gone, or nothing was heard since `then`.
  bool Troubled(absl::Time then) const { return up_ && (!connected_ || heard_ < then); }
  // Sets how long silence may last before GivenUp(), if longer than `lost_after`: groups wait for the peer.
  void SetPatience(absl::Duration patience) { patience_ = patience; }
  // Up, and silent for longer than `lost_after`.
  bool Silent(absl::Time now) const { return up_ && now - heard_ > lost_after_; }
  // Silent(), and no group waits any longer.
  bool GivenUp(absl::Time now) const { return up_ && now - heard_ > std::max(lost_after_, patience_); }

  // Boot id of the last HELLO, kept by Lose(). 0: no HELLO yet.
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
  BootId last_boot_;              // of the last HELLO; kept by Lose()
  uint32_t last_generation_ = 0;  // likewise
  bool up_ = false, connected_ = false;
  absl::Time heard_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_LINK_STATE_H_
