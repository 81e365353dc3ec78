#include "agent/job/peers.h"

#include <algorithm>
#include <utility>

namespace railsd {

Peer& PeerTable::FindOrAdd(const std::string& node) {
  if (Peer* found = Find(node)) return *found;
  Peer& peer = peers_.emplace_back();
  peer.index = PeerIndex(static_cast<uint32_t>(peers_.size() - 1));
  peer.node = node;
  peer.rails.resize(rails_);
  by_name_.emplace(node, peer.index);
  spray_order_.push_back(peer.index);
  std::sort(spray_order_.begin(), spray_order_.end(), [this](PeerIndex a, PeerIndex b) {
    const std::string& x = Get(a).node;
    const std::string& y = Get(b).node;
    const bool wraps_x = x < self_, wraps_y = y < self_;
    return wraps_x != wraps_y ? wraps_y : x < y;
  });
  return peer;
}

Peer* PeerTable::Find(absl::string_view node) {
  auto it = by_name_.find(node);
  return it == by_name_.end() ? nullptr : &peers_[it->second.value()];
}

void Peer::UpdateStranded(absl::Time now) {
  bool reached = false;
  for (size_t r = 0; r < rails.size(); ++r) reached = reached || CanSend(r);
  stranded_since = reached ? absl::InfiniteFuture() : std::min(stranded_since, now);
}

void PeerTable::Update(Peer& peer, const PeerHello& hello) {
  peer.boot = hello.boot;
  for (PeerRail& rail : peer.rails) rail = PeerRail{};
  for (const PeerHello::Rail& rail : hello.rails) {
    if (rail.index.value() >= rails_) continue;
    PeerRail& mine = peer.rails[rail.index.value()];
    mine.known = true;
    mine.address = rail.address;
    mine.speed_bytes_per_s = static_cast<double>(rail.speed_bytes_per_s);
  }
}

}  // namespace railsd
