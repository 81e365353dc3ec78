// How the lanes beside a peer's streams come and go.
#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/hub.h"

namespace railsd {
namespace {

// In `lost_after`. A lane that breaks sooner, or does not open, is not tried again for a while: something on the way
// does not like it.
constexpr int kShortLife = 2;
constexpr int kNoLaneFor = 6;
// So long a broken lane's stream may still say that its daemon ends.
constexpr absl::Duration kLastWord = absl::Milliseconds(20);

}  // namespace

HubPeer* Hub::PeerOfLane(LaneId lane) {
  const auto it = lane_peers_.find(lane);
  return it == lane_peers_.end() ? nullptr : it->second;
}

void Hub::AgreeOnLane(HubPeer& peer, Target& target, const HelloFacts& answer) {
  const std::optional<KeyShare> own = std::exchange(target.lane_share, std::nullopt);  // good for one answer
  if (peer.out == nullptr || !own || !answer.lane_share) return;
  const absl::StatusOr<DataKey> key = own->Agree({options_.node, options_.boot, own->share()},
                                                 {answer.hello.node, answer.hello.boot, *answer.lane_share});
  if (!key.ok()) return;  // no half of a key: no lane
  peer.lanes.keys = {own->share(), *key, options_.tls != nullptr};
  peer.lanes.address = target.reached_at;
  DialLane(peer, absl::Now());
}

void Hub::DialLane(HubPeer& peer, absl::Time now) {
  HubLanes& lanes = peer.lanes;
  if (!lanes.keys || lanes.out != 0 || now < lanes.none_before || lanes_ == nullptr) return;
  lanes.out = lanes_->Dial(lanes.address, *lanes.keys);
  lane_peers_[lanes.out] = &peer;
}

std::optional<PublicShare> Hub::ExpectLane(HubPeer& peer, const HelloFacts& hello) {
  if (!hello.lane_share || lanes_ == nullptr) return std::nullopt;
  const absl::StatusOr<KeyShare> own = KeyShare::Draw();
  if (!own.ok()) return std::nullopt;
  const absl::StatusOr<DataKey> key =
      own->Agree({options_.node, options_.boot, own->share()}, {hello.hello.node, hello.hello.boot, *hello.lane_share});
  if (!key.ok()) return std::nullopt;
  LaneKeys keys;
  keys.dialler = *hello.lane_share;
  keys.key = *key;
  keys.sealed = options_.tls != nullptr;
  peer.lanes.in = lanes_->Expect(keys);
  lane_peers_[peer.lanes.in] = &peer;
  return own->share();
}

void Hub::CloseLane(HubPeer& peer, Direction direction) {
  HubLanes& lanes = peer.lanes;
  const bool out = direction == Direction::kOutbound;
  const LaneId lane = std::exchange(out ? lanes.out : lanes.in, LaneId{0});
  lane_peers_.erase(lane);
  if (lanes_ != nullptr) lanes_->Close(lane);
  if (out) {
    lanes.out_open = false;
    lanes.out_lost = absl::InfiniteFuture();
    lanes.keys.reset();
    lanes.highest_on_stream = lanes.highest_on_lane = 0;
    return;
  }
  lanes.in_open = lanes.in_lost = false;
  peer.early.clear();
  peer.early_bytes = 0;
  peer.stream_waits_for = 0;
  peer.acknowledge_soon = false;
}

void Hub::OnLaneOpen(LaneId lane) {
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = PeerOfLane(lane);
  if (peer == nullptr || stopping_) return;
  if (peer->lanes.in == lane) {
    peer->lanes.in_open = true;
    peer->acknowledge_soon = true;  // of what came over the stream
    return AcknowledgeIfMany(*peer);
  }
  ++counters_.lanes_opened;
  peer->lanes.out_open = true;
  peer->lanes.opened = absl::Now();
  peer->lanes.keys.reset();
  Pump(*peer);
}

void Hub::OnLaneWritable(LaneId lane) {
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = PeerOfLane(lane);
  if (peer != nullptr && peer->lanes.out == lane && !stopping_) Pump(*peer);
}

void Hub::OnLaneEnd(LaneId lane, const std::string& why, bool malformed) {
  absl::MutexLock lock(&mutex_);
  HubPeer* const peer = PeerOfLane(lane);
  if (peer == nullptr || stopping_) return;
  lane_peers_.erase(lane);
  HubLanes& lanes = peer->lanes;
  if (lanes.in == lane) {
    lanes.in = 0;
    lanes.in_lost = std::exchange(lanes.in_open, false);
    if (malformed) {
      ++counters_.protocol_errors;
      options_.log->error("peer_broke_the_protocol node={} reason={}", peer->node, LogValue("over its lane: " + why));
    }
    // What the lane had is not coming; the stream must not wait for the peer to notice.
    if (peer->stream_waits_for > peer->inbox.taken() + 1 && peer->in != nullptr) peer->in->Cancel();
    return;
  }
  lanes.out = 0;
  const absl::Time now = absl::Now();
  if (std::exchange(lanes.out_open, false)) {
    lanes.out_lost = now;
    lanes.lost_because = why;
    return;  // its stream may have ended, too
  }
  options_.log->info("control_lane_failed node={} address={} reason={}", peer->node, lanes.address, LogValue(why));
  ++counters_.lanes_lost;
  lanes.none_before = now + kNoLaneFor * options_.lost_after;
}

void Hub::TickLane(HubPeer& peer, absl::Time now) {
  HubLanes& lanes = peer.lanes;
  if (peer.out == nullptr) return;
  if (lanes.out_lost == absl::InfiniteFuture()) {
    DialLane(peer, now);
    // The streams are alive, and nothing comes through the lane: its connection has another way through the network.
    const absl::Duration limit = std::max(options_.lost_after / 2, 2 * options_.heartbeat);
    if (!lanes.out_open || peer.outbox.acknowledged() >= lanes.highest_on_lane || now - lanes.waits_since <= limit ||
        peer.link.Troubled(now - 2 * options_.heartbeat)) {
      return;
    }
    lanes.out_lost = now - kLastWord;
    lanes.lost_because = absl::StrCat("nothing was acknowledged for ", absl::FormatDuration(limit));
  }
  if (now - lanes.out_lost < kLastWord || lanes.lost_because.empty()) return;
  options_.log->info("control_lane_lost node={} reason={}", peer.node, LogValue(lanes.lost_because));
  ++counters_.lanes_lost;
  lanes.lost_because.clear();  // said
  if (now - lanes.opened < kShortLife * options_.lost_after) {
    lanes.none_before = now + kNoLaneFor * options_.lost_after;
  }
  peer.out->Cancel();
}

void Hub::DropInboundLane(HubPeer& peer) {
  HubLanes& lanes = peer.lanes;
  lane_peers_.erase(lanes.in);
  lanes_->Close(std::exchange(lanes.in, LaneId{0}));
  lanes.in_lost = std::exchange(lanes.in_open, false);
}

void Hub::BreakLane(const std::string& node) {
  absl::MutexLock lock(&mutex_);
  const auto it = peers_.find(node);
  if (it != peers_.end() && it->second->lanes.in != 0) DropInboundLane(*it->second);
}

}  // namespace railsd
