#include "agent/engine/peers.h"

#include <algorithm>
#include <utility>

namespace railsd {

Peer& PeerTable::FindOrAdd(const std::string& node) {
  if (Peer* found = Find(node)) return *found;
  Peer& peer = *peers_.emplace_back(std::make_unique<Peer>());
  peer.index = PeerIndex(static_cast<uint32_t>(peers_.size() - 1));
  peer.node = node;
  peer.rails.resize(rails_);
  peer.planned_tx_bytes.resize(rails_);
  by_name_.emplace(node, peer.index);
  // The place of each peer is the number of peers before it.
  const auto sooner = [this](const Peer& a, const Peer& b) {
    const bool wraps_a = a.node < self_, wraps_b = b.node < self_;
    return wraps_a != wraps_b ? wraps_b : a.node < b.node;
  };
  places_.push_back(0);
  for (const auto& other : peers_) {
    places_[other->index.value()] += sooner(peer, *other);
    places_.back() += sooner(*other, peer);
  }
  return peer;
}

Peer* PeerTable::Find(absl::string_view node) {
  auto it = by_name_.find(node);
  return it == by_name_.end() ? nullptr : &Get(it->second);
}

void Peer::UpdateStranded(absl::Time now) {
  stranded_since = Paths() != 0 ? absl::InfiniteFuture() : std::min(stranded_since, now);
}

void Peer::TakePlanned(absl::Span<const uint64_t> by_rail) {
  PeerRail* rail = rails.data();
  for (const uint64_t bytes : by_rail.first(std::min(rails.size(), by_rail.size()))) {
    if (bytes > rail->told_planned_bytes) {
      rail->planned_rx_bytes += bytes - rail->told_planned_bytes;
      rail->told_planned_bytes = bytes;
    }
    ++rail;
  }
}

void PeerTable::Update(Peer& peer, const PeerHello& hello) {
  const bool restarted = peer.boot != hello.boot;
  peer.boot = hello.boot;
  if (restarted) peer.planned_tx_bytes.assign(rails_, 0);
  peer.connected = 0;
  peer.usable = ~RailMask{0};
  for (PeerRail& rail : peer.rails) {
    const PeerRail before = std::exchange(rail, PeerRail{});
    rail.tx_bytes = before.tx_bytes;
    rail.rx_bytes = before.rx_bytes;
    rail.shown_rx_bytes = before.shown_rx_bytes;
    rail.planned_rx_bytes = before.planned_rx_bytes;
    if (restarted) continue;
    rail.told_planned_bytes = before.told_planned_bytes;
  }
  for (const PeerHello::Rail& rail : hello.rails) {
    if (rail.index.value() >= rails_) continue;
    PeerRail& mine = peer.rails[rail.index.value()];
    mine.known = true;
    mine.address = rail.address;
    mine.speed_bytes_per_s = static_cast<double>(rail.speed_bytes_per_s);
  }
}

}  // namespace railsd
