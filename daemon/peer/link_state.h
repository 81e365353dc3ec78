// Whether this node and one peer can talk, decided from what their two streams told.
//
// Each side counts how often it has lost the other in its present life (the link generation, in every HELLO). A link
// is named by both boot ids and both generations; numbers start from 1 in each link. When any of the four changes, the
// old link is over at both ends, whoever notices first: nothing of it is delivered after that, and what its outbox
// held is gone, so a message is lost only together with its link.
//
// Pure: no gRPC, no clock of its own, no threads; the caller synchronises.
#ifndef RAILSD_DAEMON_PEER_LINK_STATE_H_
#define RAILSD_DAEMON_PEER_LINK_STATE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/control/messages.h"

namespace railsd {

// A stream's direction as seen from here: the one this node dialled carries its own messages.
enum class Direction : uint8_t { kOutbound = 0, kInbound = 1 };

class LinkState {
 public:
  // `generation`: what this side begins with.
  explicit LinkState(absl::Duration lost_after, uint32_t generation = 1)
      : lost_after_(lost_after), own_generation_(generation) {}

  // What a HELLO changed.
  enum class Effect {
    kNone,   // the same link: a reconnect, or the other direction
    kNew,    // the first HELLO, or of another life: reset both boxes, close other streams
    kStale,  // of a link that is over: refuse the stream
  };
  // A HELLO arrived on a stream of `direction`, which is open from now on unless the effect is kStale.
  // `*down` is set when a link that was up ended by it, with the reason.
  Effect OnHello(Direction direction, const PeerHello& hello, uint32_t generation, absl::Time now,
                 std::optional<std::string>* down);
  void OnHeard(Direction direction, absl::Time now) { heard_[Index(direction)] = now; }
  void OnStreamEnd(Direction direction) { open_[Index(direction)] = false; }

  // Both streams are open, and up() was false until now. Call after OnHello(); true at most once per link.
  bool TakeUp();
  bool up() const { return up_; }
  bool known() const { return hello_.has_value(); }
  bool open(Direction direction) const { return open_[Index(direction)]; }

  // Ends the link from this side (overflow, silence, a broken promise): raises the own generation and forgets the
  // peer's HELLO. The caller closes both streams and resets both boxes. True when the link was up.
  bool Lose();

  // Up, and in trouble: a stream is gone, or was last heard before `then`.
  bool Troubled(absl::Time then) const {
    return up_ && (!open_[0] || !open_[1] || heard_[0] < then || heard_[1] < then);
  }
  // How long a link that is up outlives silence beyond `lost_after`, because somebody waits for the peer.
  void SetPatience(absl::Duration patience) { patience_ = patience; }
  // A direction that has been silent for too long, although the link is up or its stream is open.
  std::optional<Direction> Silent(absl::Time now) const { return SilentFor(lost_after_, now); }
  // Silent, and nobody waits any more.
  bool GivenUp(absl::Time now) const {
    return SilentFor(up_ ? std::max(lost_after_, patience_) : lost_after_, now).has_value();
  }

  // Of the last life that was heard of, also after Lose(). 0: none.
  BootId last_boot() const { return last_boot_; }

  uint32_t own_generation() const { return own_generation_; }
  const PeerHello& hello() const { return *hello_; }

 private:
  std::optional<Direction> SilentFor(absl::Duration limit, absl::Time now) const;
  static size_t Index(Direction direction) { return static_cast<size_t>(direction); }

  const absl::Duration lost_after_;
  absl::Duration patience_;
  uint32_t own_generation_;
  std::optional<PeerHello> hello_;
  uint32_t peer_generation_ = 0;
  BootId last_boot_;              // of the last link, also after Lose()
  uint32_t last_generation_ = 0;  // with last_boot_
  bool up_ = false;
  bool open_[2] = {false, false};
  absl::Time heard_[2];
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_LINK_STATE_H_
