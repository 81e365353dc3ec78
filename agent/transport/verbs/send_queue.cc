#include "agent/transport/verbs/send_queue.h"

#include <algorithm>

namespace railsd::verbs {

uint32_t SendQueue::Free() const { return std::min(depth_ - outstanding(), room_->free()); }

uint32_t SendQueue::Next() {
  room_->Take(1);
  ++unsignalled_;
  return ++last_;
}

bool SendQueue::MustSignal() {
  if (2 * unsignalled_ < depth_) return false;
  unsignalled_ = 0;
  return true;
}

void SendQueue::Unpost(uint32_t count) {
  last_ -= count;
  // Signalled ones may be among them. Assume that no outstanding one is signalled, so that the next signal comes
  // sooner.
  unsignalled_ = outstanding();
  room_->Give(count);
}

bool SendQueue::Complete(uint32_t sequence) {
  const uint32_t count = sequence - completed_;
  if (count == 0 || count > outstanding()) return false;
  completed_ = sequence;
  room_->Give(count);
  return true;
}

}  // namespace railsd::verbs
