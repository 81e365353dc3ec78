#include "agent/rails/rail_scheduler.h"

#include <algorithm>
#include <utility>

namespace railsd {
namespace {

// A piece takes about this much of the rail's time. Posted bytes can no longer move, so slow rails post short pieces;
// fast rails post whole chunks.
constexpr double kPieceSeconds = 5e-4;
constexpr uint64_t kMinPieceBytes = 8 << 10;
// Late binding moves no less than about this much of the rail's time.
constexpr double kMovableSeconds = 4e-3;
constexpr uint64_t kMinMovableBytes = 64 << 10;
// Fast rails move this much, or a chunk if that is more; of shorter chunks so many at most. With a chunk of 256 KiB a
// move, rails of very unequal speed took up to 7 % longer: the slow ones came back for the next one too often.
constexpr uint64_t kMovableBytes = 1 << 20, kMovableChunks = 4;
// Bytes in flight to all peers that bytes wait for, together, as time of the rail. More in flight would only wait:
// acknowledgements queue behind data at both ends, and bytes for one receiver queue in front of those for others. In an
// emulated fabric of slow rails 4 ms took 5 % longer where a node sends much to a busy receiver, and 6 ms took 10 %
// longer for jobs of 10 ms.
constexpr double kWindowSeconds = 4.5e-3;
// A window has at least 3 pieces: one on the wire, one behind it, one whose acknowledgement is under way. Short ones
// are as many as make up this size, 8 at most, which carries 25 Gbit/s over links of 100 us. 3 MiB left the
// processors' caches between the kernel's two copies, and the same bytes took 12 % more processor time.
constexpr uint64_t kLeastWindowPieces = 3, kMostWindowPieces = 8;
constexpr uint64_t kWindowBytes = 2 << 20;
// Very fast rails have windows of at least this time, so that the rail's thread is not woken more often.
constexpr double kLeastWindowSeconds = 2e-4;
// The most chunks in flight to one peer, even if they are small: a transport holds a bounded number for all peers.
constexpr uint64_t kMaxChunks = 256;
// A peer has its turn after this many pieces for other peers, times the number of peers, so that large jobs leave a
// part to small ones.
constexpr uint64_t kPassedOver = 4;
// The most windows in flight to all peers. One is not enough, because each peer may have one piece in flight even if
// there are many.
constexpr uint64_t kWindowsInAll = 2;
// The window of a lower priority while a higher one has sessions, which must not wait for posted bytes: one piece on
// the wire, one behind it, and on fast rails a part of the window.
constexpr uint64_t kYieldingPieces = 2;
constexpr double kYieldingPart = 0.25;
// Bytes in flight to a peer that is silent for so long do not count in the windows that others share. The time is twice
// that of these windows, within these bounds. No peer waits longer than that for others on a rail that works.
constexpr absl::Duration kStalled = absl::Milliseconds(100), kLongestStalled = absl::Seconds(1);
// How long lower priorities pause, as a multiple of the time that their posted bytes need.
constexpr int kPause = 2;
constexpr absl::Duration kLookForStalled = absl::Milliseconds(10);
// The most time that a window takes at the rate that the rail delivers, because posted bytes cannot move to a faster
// rail. It is many times the time of an acknowledgement, so that a small window does not slow the rail.
constexpr double kWindowDrainSeconds = 25e-3;
constexpr uint64_t kLeastPieces = 2;
// Inflows are in millionths of what a receiver's job brings to it.
constexpr uint32_t kWholeInflow = 1'000'000;
// A stretch has told its rate when the receivers left take less than this part of what all together took: from then on
// they limit the rail.
constexpr double kLeastInflowPart = 0.75;
// A measured speed may be wrong: pieces are made for this multiple of it, and one measurement divides the speed by no
// more than this.
constexpr double kMeasureDoubt = 2;
constexpr double kLeastSpeedPart = 1.0 / 32;
// A stretch tells a rate if it is as long as so many pieces, or so long.
constexpr int kMeasurablePieces = 8;
constexpr absl::Duration kMeasurable = absl::Milliseconds(5);

}  // namespace

RailScheduler::RailScheduler(const SchedulerOptions& options, RailProgress* progress)
    : options_(options), progress_(progress) {
  SetWindows(options.speed_bytes_per_s);
  measurable_ = std::min(kMeasurable, kMeasurablePieces * absl::Seconds(static_cast<double>(window_.piece_bytes) /
                                                                        options.speed_bytes_per_s));
  progress_->speed_bytes_per_s = options.speed_bytes_per_s;
  const uint64_t most_movable =
      std::min(kMovableChunks * options.chunk_bytes, std::max(options.chunk_bytes, kMovableBytes));
  progress_->movable_bytes = std::clamp(static_cast<uint64_t>(options.speed_bytes_per_s * kMovableSeconds),
                                        std::min(kMinMovableBytes, options.chunk_bytes), most_movable);
  progress_->window_bytes = window_.bytes;
  nominal_piece_bytes_ = window_.piece_bytes;
  window_pieces_ = (window_.bytes + window_.piece_bytes / 2) / window_.piece_bytes;
}

RailScheduler::Window RailScheduler::MakeWindow(double least_seconds, uint64_t least_pieces, double seconds) const {
  const double nominal = options_.speed_bytes_per_s;
  const auto piece_at = [&](double speed) {
    return std::clamp(static_cast<uint64_t>(speed * kPieceSeconds), std::min(kMinPieceBytes, options_.chunk_bytes),
                      options_.chunk_bytes);
  };
  Window window;
  window.piece_bytes = piece_at(std::min(nominal, kMeasureDoubt * speed_));
  if (options_.window_bytes > 0) {
    window.bytes = options_.window_bytes;
    return window;
  }
  // Nominal pieces: with smaller ones a window would limit the rate that is measured, follow it and shrink to nothing.
  const uint64_t most = std::max(std::clamp(static_cast<uint64_t>(nominal * seconds + 0.5),
                                            least_pieces * piece_at(nominal), least_pieces * options_.chunk_bytes),
                                 static_cast<uint64_t>(nominal * least_seconds));
  const auto drained = static_cast<uint64_t>(speed_ * kWindowDrainSeconds);
  window.bytes = std::min(most, std::max(kLeastPieces * window.piece_bytes, drained));
  return window;
}

void RailScheduler::SetWindows(double speed_bytes_per_s) {
  speed_ = speed_bytes_per_s;
  const uint64_t pieces = std::clamp(kWindowBytes / options_.chunk_bytes, kLeastWindowPieces, kMostWindowPieces);
  window_ = MakeWindow(kLeastWindowSeconds, pieces, kWindowSeconds);
  yielding_ = MakeWindow(kYieldingPart * kLeastWindowSeconds, kYieldingPieces, 0);
  // Nominal: while lower priorities pause nothing measures the rail, so a pause must not grow with an old measure.
  yielding_time_ = absl::Seconds(static_cast<double>(yielding_.bytes) / options_.speed_bytes_per_s);
  const absl::Duration all_windows = absl::Seconds(static_cast<double>(kWindowsInAll * window_.bytes) / speed_);
  stalled_ = std::clamp(2 * all_windows, kStalled, kLongestStalled);
  for (uint32_t peer = 0; peer < peers_.size(); ++peer) Resume(PeerIndex(peer));
}

void RailScheduler::SetShares(const RailShares& shares) {
  uint32_t highest = shares.highest_priority;
  for (const TenantShare& share : shares.tenants) highest = std::max(highest, share.priority);
  for (size_t t = 0; t < tenants_.size(); ++t) tenants_[t].served -= priorities_[ShareOf(t).priority].served;
  shares_ = shares;
  if (highest >= priorities_.size()) priorities_.resize(highest + 1);
  for (Priority& priority : priorities_) priority = {.expected_at = priority.expected_at};
  for (uint32_t t = 0; t < tenants_.size(); ++t) {
    Priority& priority = priorities_[ShareOf(t).priority];
    priority.unposted_bytes += tenants_[t].unposted_bytes;
    priority.in_flight_bytes += tenants_[t].in_flight_bytes;
    UpdateRank(t);
  }
  SetWindows(speed_);
}

void RailScheduler::Expect(uint32_t priority, absl::Time now) {
  if (priority == 0) return;
  if (priority >= priorities_.size()) priorities_.resize(priority + 1);
  priorities_[priority].expected_at = now;
}

// Places are a permutation: the peer that had `place` takes this peer's former place, until its own is set.
void RailScheduler::SetPlace(PeerIndex peer, uint32_t place) {
  while (peers_.size() <= std::max(peer.value(), place)) {
    peer_at_.emplace_back(static_cast<uint32_t>(peers_.size()));
    peers_.emplace_back().place = static_cast<uint32_t>(peer_at_.size() - 1);
  }
  const PeerIndex other = peer_at_[place];
  if (other == peer) return;
  std::swap(peers_[peer.value()].place, peers_[other.value()].place);
  std::swap(peer_at_[peers_[peer.value()].place], peer_at_[peers_[other.value()].place]);
  for (TenantQueue& tenant : tenants_) {
    for (PeerQueue& queue : tenant.peers) {
      if (queue.destinations.empty()) continue;
      queue.destinations.resize(peers_.size());
      UpdatePeer(queue, peer);
      UpdatePeer(queue, other);
    }
  }
}

void RailScheduler::UpdatePeer(PeerQueue& queue, PeerIndex peer) {
  const Destination& to = queue.destinations[peer.value()];
  const bool can = to.unposted_bytes > 0 && !to.set_aside;
  queue.left.Set(peers_[peer.value()].place, can ? to.unposted_bytes : 0);
  queue.waited.Set(peers_[peer.value()].place, can ? ~to.served_at : 0);
}

// A tenant that could not post begins with the least `served` of the others.
void RailScheduler::UpdateRank(uint32_t tenant) {
  TenantQueue& queue = tenants_[tenant];
  const uint32_t priority = ShareOf(tenant).priority;
  queue.served = std::max(queue.served, priorities_[priority].served);
  ranks_.Set(tenant, queue.unposted_bytes > 0 ? Rank(priority + 1, -queue.served) : Rank());
  const bool working = queue.unposted_bytes > 0 || queue.in_flight_bytes > 0;
  working_ += working;
  working_ -= std::exchange(queue.working, working);
}

void RailScheduler::Add(uint32_t tenant, PeerIndex peer, uint32_t place, uint64_t bytes, uint32_t inflow_ppm,
                        bool urgent) {
  if (bytes == 0) return;
  if (tenant >= tenants_.size()) tenants_.resize(tenant + 1);
  SetPlace(peer, place);
  PeerState& state = peers_[peer.value()];
  const uint32_t inflow = inflow_ppm == 0 ? kWholeInflow : inflow_ppm;
  state.unposted_bytes += bytes;
  if (inflow > state.inflow_ppm) {
    inflow_ += inflow - std::exchange(state.inflow_ppm, inflow);
    Resume(peer);
  }
  most_inflow_ = std::max(most_inflow_, inflow_);
  PeerQueue& queue = tenants_[tenant].peers[urgent];
  if (peer.value() >= queue.destinations.size()) queue.destinations.resize(peers_.size());
  Destination& to = queue.destinations[peer.value()];
  if (to.unposted_bytes == 0) {
    ++queue.active;
    tenants_[tenant].active += !tenants_[tenant].HasFor(peer);
    to.served_at = queue.pieces;
  }
  to.unposted_bytes += bytes;
  tenants_[tenant].unposted_bytes += bytes;
  priorities_[ShareOf(tenant).priority].unposted_bytes += bytes;
  unposted_bytes_ += bytes;
  UpdatePeer(queue, peer);
  UpdateRank(tenant);
  Publish();
}

void RailScheduler::Remove(uint32_t tenant, PeerIndex peer, uint64_t bytes, bool urgent) {
  if (bytes == 0) return;
  PeerQueue& queue = tenants_[tenant].peers[urgent];
  Destination& to = queue.destinations[peer.value()];
  to.unposted_bytes -= bytes;
  tenants_[tenant].unposted_bytes -= bytes;
  PeerState& state = peers_[peer.value()];
  state.unposted_bytes -= bytes;
  if (state.unposted_bytes == 0) inflow_ -= std::exchange(state.inflow_ppm, 0);
  if (to.unposted_bytes == 0) {
    --queue.active;
    const uint64_t active = tenants_[tenant].active -= !tenants_[tenant].HasFor(peer);
    // The others may have more of the window from now on.
    if (active > 0 && window_.bytes / active > window_.piece_bytes) {
      for (uint32_t other = 0; other < peers_.size(); ++other) Resume(PeerIndex(other));
    }
  }
  priorities_[ShareOf(tenant).priority].unposted_bytes -= bytes;
  unposted_bytes_ -= bytes;
  if (unposted_bytes_ == 0) full_since_ = absl::InfiniteFuture();
  UpdatePeer(queue, peer);
  UpdateRank(tenant);
  Publish();
}

void RailScheduler::Publish() {
  progress_->unposted_bytes.store(unposted_bytes_, std::memory_order_relaxed);
  progress_->in_flight_bytes.store(in_flight_bytes_, std::memory_order_relaxed);
}

// Bytes in flight to peers from which nothing has come back for long. They must not keep tenants from sending to other
// peers.
uint64_t RailScheduler::StalledBytes(absl::Time now) {
  if (now < look_for_stalled_at_) return stalled_bytes_;
  look_for_stalled_at_ = now + kLookForStalled;
  stalled_bytes_ = 0;
  for (PeerState& peer : peers_) {
    peer.stalled = peer.in_flight_bytes > 0 && now - peer.heard_at >= stalled_;
    if (peer.stalled) stalled_bytes_ += peer.in_flight_bytes;
  }
  return stalled_bytes_;
}

// While several tenants work, or lower priorities yield, all tenants and peers share one window, so that the tenant
// chosen first also leaves first. Bytes of lower priorities do not count. Lower priorities have no room when a higher
// one has none.
bool RailScheduler::HasRoom(uint32_t priority, absl::Time now) {
  bool shared = working_ > 1;
  for (uint32_t p = 0; p < shares_.highest_priority; ++p) shared = shared || priorities_[p].unposted_bytes > 0;
  uint64_t in_flight = 0;
  for (size_t p = priority; p < priorities_.size(); ++p) in_flight += priorities_[p].in_flight_bytes;
  const uint64_t room = WindowOf(priority).bytes * (shared ? 1 : kWindowsInAll);
  return in_flight < room || in_flight < room + StalledBytes(now);
}

// Peers that bytes wait for share a window in whole pieces, because a burst to one receiver would leave the others
// idle. All senders to a receiver share one window there by their inflows: a longer queue at its end of the rail would
// hold back the acknowledgements of all that the receiver itself sends. Two pieces keep a sender going that is alone,
// if an acknowledgement takes no longer than a piece. Parts are whole pieces, since a half for each sender adds up, and
// nominal: a part of the measured window would limit the rate that is measured, and shrink with it. Pieces of a stretch
// are equal, and so a little shorter than the longest.
bool RailScheduler::IsOpen(const PeerState& peer, const Window& window, uint64_t peers) const {
  const uint64_t pieces = (window_pieces_ * peer.inflow_ppm + kWholeInflow / 4) / kWholeInflow;
  const uint64_t by_inflow = std::max(kLeastPieces, pieces) * nominal_piece_bytes_;
  const uint64_t each = std::max(window.piece_bytes, std::min(window.bytes / peers, by_inflow));
  return peer.in_flight_bytes + window.piece_bytes / 2 <= each && peer.in_flight_chunks < kMaxChunks;
}

// The peer with an open window for which most is left. If one was passed over for long: the peer that has waited
// longest. Among equal ones the next in order, so that node k begins with node k + 1 and no receiver is hit by all at
// once.
std::optional<PeerIndex> RailScheduler::NextPeer(uint32_t tenant, bool urgent, const Window& window) {
  PeerQueue& queue = tenants_[tenant].peers[urgent];
  while (queue.left.largest() > 0) {
    const bool passed_over = queue.pieces - ~queue.waited.largest() >= kPassedOver * queue.active;
    const PeerIndex peer = peer_at_[(passed_over ? queue.waited : queue.left).Find(size_t{queue.last_place} + 1)];
    PeerState& state = peers_[peer.value()];
    if (IsOpen(state, window, tenants_[tenant].active)) return peer;
    state.set_aside.emplace_back(tenant, urgent);
    queue.destinations[peer.value()].set_aside = true;
    UpdatePeer(queue, peer);
  }
  return std::nullopt;
}

// The peer's window may be open again.
void RailScheduler::Resume(PeerIndex peer) {
  for (const auto& [tenant, urgent] : peers_[peer.value()].set_aside) {
    PeerQueue& queue = tenants_[tenant].peers[urgent];
    queue.destinations[peer.value()].set_aside = false;
    UpdatePeer(queue, peer);
  }
  peers_[peer.value()].set_aside.clear();
}

std::optional<RailScheduler::Choice> RailScheduler::Next(absl::Time now) {
  look_again_ = absl::InfiniteFuture();
  if (unposted_bytes_ == 0) return std::nullopt;
  for (const uint32_t tenant : set_aside_) UpdateRank(tenant);
  set_aside_.clear();
  while (ranks_.largest().first > 0) {  // a higher priority first, then the tenant that has had least
    const auto tenant = static_cast<uint32_t>(ranks_.Find(0));
    const uint32_t priority = ranks_.largest().first - 1;
    absl::Time paused_until = absl::InfinitePast();
    for (size_t p = priority + 1; p < priorities_.size(); ++p) {
      paused_until = std::max(paused_until, priorities_[p].expected_at + kPause * yielding_time_);
    }
    if (now < paused_until) {
      look_again_ = paused_until;
      full_since_ = absl::InfiniteFuture();
      return std::nullopt;
    }
    if (!HasRoom(priority, now)) {
      look_again_ = now + stalled_;
      break;
    }
    const Window& window = WindowOf(priority);
    for (const bool urgent : {true, false}) {
      const std::optional<PeerIndex> peer = NextPeer(tenant, urgent, window);
      if (peer.has_value()) return Choice{tenant, *peer, window.piece_bytes, urgent};
    }
    set_aside_.push_back(tenant);
    ranks_.Set(tenant, Rank());
  }
  if (full_since_ == absl::InfiniteFuture()) {
    full_since_ = now;
    full_bytes_ = 0;
  }
  return std::nullopt;
}

void RailScheduler::OnPosted(uint32_t tenant, PeerIndex peer, uint64_t bytes, absl::Time now, bool urgent) {
  TenantQueue& queue = tenants_[tenant];
  PeerQueue& peers = queue.peers[urgent];
  const TenantShare share = ShareOf(tenant);
  PeerState& state = peers_[peer.value()];
  peers.last_place = state.place;
  peers.destinations[peer.value()].served_at = ++peers.pieces;
  queue.in_flight_bytes += bytes;
  queue.served += static_cast<double>(bytes) / share.weight;
  priorities_[share.priority].in_flight_bytes += bytes;
  if (state.in_flight_bytes == 0) state.heard_at = now;
  state.in_flight_bytes += bytes;
  ++state.in_flight_chunks;
  if (state.stalled) stalled_bytes_ += bytes;
  if (in_flight_bytes_ == 0) {
    busy_since_ = now;
    busy_bytes_ = 0;
    told_ = false;
    most_inflow_ = inflow_;
    progress_->rate_bytes_per_s.store(0, std::memory_order_relaxed);
  }
  in_flight_bytes_ += bytes;
  Remove(tenant, peer, bytes, urgent);
  if (inflow_ < kLeastInflowPart * most_inflow_) EndStretch(now);
  const Rank& next = ranks_.largest();
  priorities_[share.priority].served = next.first == share.priority + 1 ? -next.second : queue.served;
}

void RailScheduler::OnEnded(uint32_t tenant, PeerIndex peer, uint64_t bytes, bool acknowledged, absl::Time now) {
  PeerState& state = peers_[peer.value()];
  if (std::exchange(state.stalled, false)) stalled_bytes_ -= state.in_flight_bytes;
  state.in_flight_bytes -= bytes;
  --state.in_flight_chunks;
  state.heard_at = now;
  Resume(peer);
  tenants_[tenant].in_flight_bytes -= bytes;
  priorities_[ShareOf(tenant).priority].in_flight_bytes -= bytes;
  UpdateRank(tenant);
  in_flight_bytes_ -= bytes;
  busy_bytes_ += bytes;
  if (!acknowledged) busy_since_ = full_since_ = absl::InfiniteFuture();  // tells no rate
  const absl::Duration busy = now - busy_since_;
  if (busy >= measurable_) {
    progress_->rate_bytes_per_s.store(
        static_cast<uint64_t>(static_cast<double>(busy_bytes_) / absl::ToDoubleSeconds(busy)),
        std::memory_order_relaxed);
  }
  if (in_flight_bytes_ == 0) TellStretch(now);
  Measure(bytes, now);
  Publish();
}

// The receivers that are left limit the rail, or nothing is left. If the stretch was too short to tell a rate, they
// begin another one.
void RailScheduler::EndStretch(absl::Time now) {
  TellStretch(now);
  if (told_ || inflow_ == 0 || busy_since_ == absl::InfiniteFuture()) return;
  busy_since_ = now;
  busy_bytes_ = 0;
  most_inflow_ = inflow_;
}

// Reports the present stretch, once. Its rate is measured against what its receivers take. If they take much less than
// the rail carries, and got it, it tells nothing.
void RailScheduler::TellStretch(absl::Time now) {
  absl::Duration busy = now - busy_since_;
  if (busy < measurable_ || busy_bytes_ == 0 || std::exchange(told_, true)) return;
  const double inflow = std::min(1.0, static_cast<double>(most_inflow_) / kWholeInflow);
  const absl::Duration nominal = absl::Seconds(static_cast<double>(busy_bytes_) / options_.speed_bytes_per_s);
  busy *= inflow;
  if (inflow >= kLeastInflowPart || busy > nominal) ended_ = Stretch{busy_bytes_, std::max(busy, nominal)};
}

// Adapts the windows to the rate that the rail delivers while only full windows hold it back.
void RailScheduler::Measure(uint64_t bytes, absl::Time now) {
  full_bytes_ += bytes;
  const absl::Duration full = now - full_since_;
  if (full < measurable_) return;
  const double rate = static_cast<double>(full_bytes_) / absl::ToDoubleSeconds(full);
  const double nominal = options_.speed_bytes_per_s;
  const double speed = std::clamp(rate, std::max(speed_ / kMeasureDoubt, nominal * kLeastSpeedPart), nominal);
  full_since_ = now;
  full_bytes_ = 0;
  if (speed != speed_) SetWindows(speed);
}

std::optional<RailScheduler::Stretch> RailScheduler::TakeStretch() { return std::exchange(ended_, std::nullopt); }

}  // namespace railsd
