#include "agent/rails/rail_scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace railsd {
namespace {

// A piece posted at once is about this much of the rail's time, so that what is posted (and can no longer move) stays
// short on slow rails; fast rails take whole chunks.
constexpr double kPieceSeconds = 4e-3;
constexpr uint64_t kMinPieceBytes = 64 << 10;
// Pieces in flight to one peer: one on the wire, one behind it, one whose acknowledgement is under way.
constexpr uint64_t kWindowPieces = 3;
// On fast rails more pieces are posted: the rail's thread must not be woken more often than this.
constexpr double kWindowSeconds = 2e-4;
// Chunks in flight to one peer, however small they are: a transport holds a bounded number for all peers.
constexpr uint64_t kMaxChunks = 256;
// Pieces for other peers after which a peer has its turn, times the number of peers: large jobs leave a part to small
// ones.
constexpr uint64_t kPassedOver = 4;
// Windows in flight to all peers.
constexpr uint64_t kPeersAtOnce = 4;
// The part of it that is posted while a higher priority is there, which must not wait for posted bytes.
constexpr double kYieldingPart = 0.25;
constexpr uint64_t kYieldingPieces = 2;  // one on the wire, one behind it
// A peer that says nothing for so long does not count in the windows that others share. Many times what is in it takes.
constexpr absl::Duration kStalled = absl::Milliseconds(100);
// How long lower priorities pause, as a multiple of the time that their posted bytes need.
constexpr int kPause = 2;
// A stretch of so many pieces tells a rate, or one of so long.
constexpr int kMeasurablePieces = 8;
constexpr absl::Duration kMeasurable = absl::Milliseconds(5);

}  // namespace

RailScheduler::RailScheduler(const SchedulerOptions& options, RailProgress* progress)
    : options_(options),
      progress_(progress),
      window_(MakeWindow(1, kWindowPieces)),
      yielding_(MakeWindow(kYieldingPart, kYieldingPieces)),
      yielding_time_(absl::Seconds(static_cast<double>(yielding_.bytes) / options.speed_bytes_per_s)),
      measurable_(std::min(kMeasurable, kMeasurablePieces * absl::Seconds(static_cast<double>(window_.piece_bytes) /
                                                                          options.speed_bytes_per_s))) {
  progress_->speed_bytes_per_s = options.speed_bytes_per_s;
  progress_->piece_bytes = window_.piece_bytes;
  progress_->window_bytes = window_.bytes;
}

RailScheduler::Window RailScheduler::MakeWindow(double part, uint64_t pieces) const {
  const double speed = options_.speed_bytes_per_s * part;
  const auto least = static_cast<uint64_t>(part * static_cast<double>(kMinPieceBytes));
  Window window;
  window.piece_bytes = std::clamp(static_cast<uint64_t>(speed * kPieceSeconds), std::min(least, options_.chunk_bytes),
                                  options_.chunk_bytes);
  window.bytes = options_.window_bytes > 0
                     ? options_.window_bytes
                     : std::max(pieces * window.piece_bytes, static_cast<uint64_t>(speed * kWindowSeconds));
  return window;
}

void RailScheduler::SetShares(const RailShares& shares) { shares_ = shares; }

void RailScheduler::Expect(uint32_t priority, absl::Time now) {
  if (priority == 0) return;
  if (priority >= expected_at_.size()) expected_at_.resize(priority + 1, absl::InfinitePast());
  expected_at_[priority] = now;
}

RailScheduler::TenantQueue& RailScheduler::Of(uint32_t tenant) {
  if (tenant >= tenants_.size()) tenants_.resize(tenant + 1);
  return tenants_[tenant];
}

RailScheduler::Destination& RailScheduler::To(TenantQueue& queue, PeerIndex peer) {
  if (peer.value() >= queue.destinations.size()) {
    queue.destinations.resize(peer.value() + 1);
    queue.active.reserve(queue.destinations.size());
  }
  return queue.destinations[peer.value()];
}

RailScheduler::PeerWindow& RailScheduler::WindowTo(PeerIndex peer) {
  if (peer.value() >= peers_.size()) peers_.resize(peer.value() + 1);
  return peers_[peer.value()];
}

void RailScheduler::Add(uint32_t tenant, PeerIndex peer, uint32_t place, uint64_t bytes) {
  if (bytes == 0) return;
  TenantQueue& queue = Of(tenant);
  Destination& to = To(queue, peer);
  to.place = place;
  if (to.unposted_bytes == 0) {
    queue.active.push_back(peer);
    to.served_at = queue.pieces;
  }
  to.unposted_bytes += bytes;
  queue.unposted_bytes += bytes;
  unposted_bytes_ += bytes;
  Publish();
}

void RailScheduler::Remove(uint32_t tenant, PeerIndex peer, uint64_t bytes) {
  if (bytes == 0) return;
  TenantQueue& queue = Of(tenant);
  Destination& to = To(queue, peer);
  to.unposted_bytes -= bytes;
  if (to.unposted_bytes == 0) std::erase(queue.active, peer);
  queue.unposted_bytes -= bytes;
  unposted_bytes_ -= bytes;
  Publish();
}

void RailScheduler::Publish() {
  progress_->unposted_bytes.store(unposted_bytes_, std::memory_order_relaxed);
  progress_->in_flight_bytes.store(in_flight_bytes_, std::memory_order_relaxed);
}

// In flight to peers from which nothing has come back for long: it must not keep others from sending to other peers.
uint64_t RailScheduler::StalledBytes(absl::Time now) const {
  uint64_t bytes = 0;
  for (const PeerWindow& peer : peers_) {
    if (peer.in_flight_bytes > 0 && now - peer.heard_at >= kStalled) bytes += peer.in_flight_bytes;
  }
  return bytes;
}

// `shared`: one window for all tenants and peers, so that who is chosen first leaves first. What yields does not count.
bool RailScheduler::HasRoom(size_t tenant, bool shared, uint64_t stalled_bytes) const {
  uint64_t in_flight = 0;
  for (size_t t = 0; t < tenants_.size(); ++t) {
    if (ShareOf(t).priority >= ShareOf(tenant).priority) in_flight += tenants_[t].in_flight_bytes;
  }
  return in_flight < WindowOf(tenant).bytes * (shared ? 1 : kPeersAtOnce) + stalled_bytes;
}

void RailScheduler::BlockThoseWhoPause(absl::Time now) {
  const absl::Duration pause = kPause * yielding_time_;
  size_t expected = expected_at_.size();  // the highest priority that is, plus 1
  while (expected > 0 && now >= expected_at_[expected - 1] + pause) --expected;
  for (size_t t = 0; t < tenants_.size(); ++t) {
    tenants_[t].blocked = ShareOf(t).priority + 1 < expected;
    if (tenants_[t].blocked && tenants_[t].unposted_bytes > 0) {
      look_again_ = std::min(look_again_, expected_at_[expected - 1] + pause);
    }
  }
}

// Higher priorities first, then who has had least.
std::optional<size_t> RailScheduler::NextTenant() const {
  std::optional<size_t> best;
  for (size_t t = 0; t < tenants_.size(); ++t) {
    const TenantQueue& queue = tenants_[t];
    if (queue.unposted_bytes == 0 || queue.blocked) continue;
    if (best.has_value()) {
      const uint32_t priority = ShareOf(t).priority, highest = ShareOf(*best).priority;
      if (priority < highest || (priority == highest && queue.served >= tenants_[*best].served)) continue;
    }
    best = t;
  }
  return best;
}

// The peer with an open window for which most is left, unless one was passed over for long; among equal ones the next
// in order, so that node k begins with node k + 1 and no receiver is hit by all at once.
std::optional<PeerIndex> RailScheduler::NextPeer(TenantQueue& queue, const Window& window) {
  std::optional<PeerIndex> best;
  uint64_t most = 0;
  uint32_t nearest = 0;
  for (const PeerIndex peer : queue.active) {
    const PeerWindow& in_flight = WindowTo(peer);
    if (in_flight.in_flight_bytes >= window.bytes || in_flight.in_flight_chunks >= kMaxChunks) continue;
    const Destination& to = queue.destinations[peer.value()];
    if (queue.pieces - to.served_at >= kPassedOver * queue.active.size()) return peer;
    const uint32_t distance = to.place - queue.last_place - 1;  // wraps around
    if (best.has_value() && (to.unposted_bytes < most || (to.unposted_bytes == most && distance >= nearest))) continue;
    best = peer;
    most = to.unposted_bytes;
    nearest = distance;
  }
  return best;
}

std::optional<RailScheduler::Choice> RailScheduler::Next(absl::Time now) {
  look_again_ = absl::InfiniteFuture();
  if (unposted_bytes_ == 0) return std::nullopt;
  size_t working = 0;
  bool yields = false;
  for (size_t t = 0; t < tenants_.size(); ++t) {
    working += tenants_[t].unposted_bytes > 0 || tenants_[t].in_flight_bytes > 0;
    yields = yields || (tenants_[t].unposted_bytes > 0 && &WindowOf(t) == &yielding_);
  }
  BlockThoseWhoPause(now);
  const uint64_t stalled_bytes = StalledBytes(now);
  while (const std::optional<size_t> tenant = NextTenant()) {
    TenantQueue& queue = tenants_[*tenant];
    if (!HasRoom(*tenant, working > 1 || yields, stalled_bytes)) {
      queue.blocked = true;
      look_again_ = std::min(look_again_, now + kStalled);
      continue;
    }
    const Window& window = WindowOf(*tenant);
    if (const std::optional<PeerIndex> peer = NextPeer(queue, window)) {
      return Choice{static_cast<uint32_t>(*tenant), *peer, window.piece_bytes};
    }
    queue.blocked = true;
  }
  return std::nullopt;
}

void RailScheduler::OnPosted(uint32_t tenant, PeerIndex peer, uint64_t bytes, absl::Time now) {
  TenantQueue& queue = tenants_[tenant];
  queue.last_place = queue.destinations[peer.value()].place;
  queue.destinations[peer.value()].served_at = ++queue.pieces;
  queue.in_flight_bytes += bytes;
  PeerWindow& window = WindowTo(peer);
  if (window.in_flight_bytes == 0) window.heard_at = now;
  window.in_flight_bytes += bytes;
  ++window.in_flight_chunks;
  if (in_flight_bytes_ == 0) {
    busy_since_ = now;
    busy_bytes_ = 0;
    progress_->rate_bytes_per_s.store(0, std::memory_order_relaxed);
  }
  in_flight_bytes_ += bytes;
  Remove(tenant, peer, bytes);
  queue.served += static_cast<double>(bytes) / ShareOf(tenant).weight;
  Level(ShareOf(tenant).priority);
}

// Only differences count: who has had least of those that can post is at 0. What the others cannot use is lent and not
// paid back, and nobody is ahead for long, however the tenants and their shares change.
void RailScheduler::Level(uint32_t priority) {
  double least = std::numeric_limits<double>::infinity();
  for (size_t t = 0; t < tenants_.size(); ++t) {
    if (tenants_[t].unposted_bytes == 0 || tenants_[t].blocked || ShareOf(t).priority != priority) continue;
    least = std::min(least, tenants_[t].served);
  }
  if (least == std::numeric_limits<double>::infinity()) return;
  const auto most = static_cast<double>(window_.bytes + 2 * window_.piece_bytes);
  for (size_t t = 0; t < tenants_.size(); ++t) {
    if (ShareOf(t).priority == priority) tenants_[t].served = std::clamp(tenants_[t].served - least, 0.0, most);
  }
}

void RailScheduler::OnEnded(uint32_t tenant, PeerIndex peer, uint64_t bytes, bool acknowledged, absl::Time now) {
  tenants_[tenant].in_flight_bytes -= bytes;
  PeerWindow& window = WindowTo(peer);
  window.in_flight_bytes -= bytes;
  --window.in_flight_chunks;
  window.heard_at = now;
  in_flight_bytes_ -= bytes;
  busy_bytes_ += bytes;
  if (!acknowledged) busy_since_ = absl::InfiniteFuture();  // says nothing of its rate
  const absl::Duration busy = now - busy_since_;
  if (busy >= measurable_) {
    progress_->rate_bytes_per_s.store(
        static_cast<uint64_t>(static_cast<double>(busy_bytes_) / absl::ToDoubleSeconds(busy)),
        std::memory_order_relaxed);
    if (in_flight_bytes_ == 0) ended_ = Stretch{busy_bytes_, busy};
  }
  Publish();
}

std::optional<RailScheduler::Stretch> RailScheduler::TakeStretch() { return std::exchange(ended_, std::nullopt); }

}  // namespace railsd
