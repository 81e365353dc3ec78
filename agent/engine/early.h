// Messages that came before the commit of their group, because they came over other links.
#ifndef RAILSD_AGENT_ENGINE_EARLY_H_
#define RAILSD_AGENT_ENGINE_EARLY_H_

#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "agent/base/ids.h"
#include "agent/control/messages.h"

namespace railsd {

// Each peer has its own bound on the messages that this node keeps for it, so that no peer takes another's place. Owned
// by the engine's thread.
class EarlyMessages {
 public:
  static constexpr size_t kMaxMessages = 1024;   // of one peer
  static constexpr size_t kMaxBytes = 16 << 20;  // of one peer, as HeldBytes() counts
  static constexpr absl::Duration kKept = absl::Seconds(60);

  struct Message {
    PeerIndex from;
    Epoch epoch;
    absl::Time arrived;
    ControlMessage message;
  };

  // Keeps the message. Returns the messages that it drops for it: the peer's oldest ones, or the message itself when it
  // is too large.
  std::vector<Message> Keep(Message message);
  // Removes and returns the oldest message whose epoch is known by now.
  std::optional<Message> Take(const std::function<bool(Epoch)>& known);
  // Takes the messages that have been kept for kKept. NextDeadline() tells when that is due; InfiniteFuture() when none
  // is kept.
  std::vector<Message> TakeOld(absl::Time now);
  absl::Time NextDeadline() const { return kept_.empty() ? absl::InfiniteFuture() : kept_.front().arrived + kKept; }
  // Drops the messages of a peer that is lost.
  void Forget(PeerIndex from);

 private:
  struct Share {
    size_t messages = 0, bytes = 0;
  };
  Message Remove(std::deque<Message>::iterator at);

  std::deque<Message> kept_;  // in the order of their arrival
  absl::flat_hash_map<PeerIndex, Share> shares_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_ENGINE_EARLY_H_
