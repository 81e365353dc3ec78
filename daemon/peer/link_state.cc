#include "daemon/peer/link_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {

LinkState::Effect LinkState::OnHello(Direction direction, const PeerHello& hello, uint32_t generation, absl::Time now,
                                     std::optional<std::string>* down) {
  down->reset();
  // A HELLO that was under way while its sender gave the link up must not open it again.
  if (hello.boot == last_boot_ && generation < last_generation_) return Effect::kStale;
  Effect effect = Effect::kNone;
  if (!hello_ || hello_->boot != hello.boot || peer_generation_ != generation) {
    effect = Effect::kNew;
    if (up_) {
      *down = hello_->boot != hello.boot ? absl::StrCat("node ", hello.node, " has restarted")
                                         : absl::StrCat("node ", hello.node, " had lost this node");
    }
    up_ = false;
    open_[0] = open_[1] = false;
    hello_ = hello;
    peer_generation_ = generation;
    last_boot_ = hello.boot;
    last_generation_ = generation;
  }
  open_[Index(direction)] = true;
  heard_[Index(direction)] = now;
  return effect;
}

bool LinkState::TakeUp() {
  if (up_ || !open_[0] || !open_[1]) return false;
  up_ = true;
  return true;
}

bool LinkState::Lose() {
  ++own_generation_;
  hello_.reset();
  open_[0] = open_[1] = false;
  return std::exchange(up_, false);
}

std::optional<Direction> LinkState::SilentFor(absl::Duration limit, absl::Time now) const {
  for (const Direction direction : {Direction::kOutbound, Direction::kInbound}) {
    if ((up_ || open_[Index(direction)]) && now - heard_[Index(direction)] > limit) return direction;
  }
  return std::nullopt;
}

}  // namespace railsd
