#include "agent/engine/early.h"

#include <algorithm>
#include <utility>

#include "agent/control/held_bytes.h"

namespace railsd {

std::vector<EarlyMessages::Message> EarlyMessages::Keep(Message message) {
  std::vector<Message> dropped;
  const size_t bytes = HeldBytes(message.message);
  if (bytes > kMaxBytes) {
    dropped.push_back(std::move(message));
    return dropped;
  }
  const PeerIndex from = message.from;
  const auto is_full = [&] {
    const Share& share = shares_[from];
    return share.messages >= kMaxMessages || share.bytes + bytes > kMaxBytes;
  };
  while (is_full()) {
    dropped.push_back(
        Remove(std::find_if(kept_.begin(), kept_.end(), [&](const Message& kept) { return kept.from == from; })));
  }
  Share& share = shares_[from];
  ++share.messages;
  share.bytes += bytes;
  kept_.push_back(std::move(message));
  return dropped;
}

std::optional<EarlyMessages::Message> EarlyMessages::Take(const std::function<bool(Epoch)>& known) {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Message& message) { return known(message.epoch); });
  if (found == kept_.end()) return std::nullopt;
  return Remove(found);
}

std::vector<EarlyMessages::Message> EarlyMessages::TakeOld(absl::Time now) {
  std::vector<Message> old;
  while (NextDeadline() <= now) old.push_back(Remove(kept_.begin()));
  return old;
}

void EarlyMessages::Forget(PeerIndex from) {
  std::erase_if(kept_, [&](const Message& message) { return message.from == from; });
  shares_.erase(from);
}

EarlyMessages::Message EarlyMessages::Remove(std::deque<Message>::iterator at) {
  Message message = std::move(*at);
  kept_.erase(at);
  Share& share = shares_[message.from];
  --share.messages;
  share.bytes -= HeldBytes(message.message);
  if (share.messages == 0) shares_.erase(message.from);
  return message;
}

}  // namespace railsd
