#include "daemon/link/link_state.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

// True if the dialler of `one` dialled it after its HELLO on `other`.
bool DialledAfter(const ConnectionOrigin& one, const ConnectionOrigin& other) {
  return one.dialled_here ? one.own_hello > other.own_hello : one.peer_hello > other.peer_hello;
}

}  // namespace

bool Replaces(const ConnectionOrigin& fresh, const ConnectionOrigin& present, bool own_name_is_lower) {
  if (DialledAfter(fresh, present)) return true;
  if (fresh.dialled_here == present.dialled_here || DialledAfter(present, fresh)) return false;
  return fresh.dialled_here == own_name_is_lower;
}

LinkState::Effect LinkState::OnHello(const PeerHello& hello, uint32_t generation, std::optional<std::string>* down) {
  down->reset();
  // The sender gave this link up after it wrote the HELLO: the HELLO must not open the link again.
  if (hello.boot == last_boot_ && generation < last_generation_) return Effect::kStale;
  if (hello_ && hello_->boot == hello.boot && peer_generation_ == generation) return Effect::kNone;
  if (up_) {
    *down = hello_->boot != hello.boot ? absl::StrCat("node ", hello.node, " has restarted")
                                       : absl::StrCat("node ", hello.node, " counted this node as lost");
  }
  // A late HELLO of a former life may end the link here. The new generation makes the peer's daemon end it too.
  if (hello_ && hello_->boot != hello.boot) ++own_generation_;
  up_ = connected_ = false;
  hello_ = hello;
  peer_generation_ = generation;
  last_boot_ = hello.boot;
  last_generation_ = generation;
  return Effect::kNew;
}

void LinkState::OnConnected(absl::Time now) {
  connected_ = true;
  heard_ = now;
}

bool LinkState::Lose() {
  ++own_generation_;
  hello_.reset();
  connected_ = false;
  return std::exchange(up_, false);
}

}  // namespace railsd
