// Sprayer: which chunk goes next, and over which rail.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "agent/jobs/node_job.h"
#include "agent/jobs/sending.h"
#include "agent/rails/sprayer.h"

namespace railsd {
namespace {

// A rail without work takes from another one only what that one would need longer for than this, and than this many
// pieces: less is noise, and moving chunks for it would cost the evenness that the plan has made.
constexpr double kStealSeconds = 10e-3;
constexpr uint64_t kStealPieces = 3;
// A peer that says nothing for so long does not count in the window that tenants share. Many times what is in it takes.
constexpr absl::Duration kStalled = absl::Milliseconds(100);
// So many times what was posted is waited for somebody of a higher priority.
constexpr int kExpectedFor = 2;

}  // namespace

// Work queued on this rail cannot be sent there, because the peer is not up or the exchange may not use the rail.
bool Sprayer::IsStuck(size_t r, PeerIndex peer, const DestinationQueue& queue) const {
  return queue.head == nullptr ? !peers_->Get(peer).CanSend(r)
                               : !peers_->Get(peer).CanSendOver(r, queue.head->sending->Usable());
}

const Sprayer::Window& Sprayer::WindowOf(const RailState& rail, const TenantQueues& mine) const {
  return mine.tenant->share().priority < highest_priority_ ? rail.yielding : rail.window;
}

// Deficit round robin over the destinations that have work and an open window.
Sprayer::Turn Sprayer::PostTurn(size_t r, TenantQueues& mine, absl::Time now) {
  RailState& rail = rails_state_[r];
  const Window& window = WindowOf(rail, mine);
  const std::vector<PeerIndex>& order = peers_->spray_order();
  Turn done;
  for (size_t idle = 0; idle < order.size() && mine.queued_bytes > 0 && done.posted_bytes == 0;) {
    const PeerIndex peer = order[mine.turn % order.size()];
    ++mine.turn;
    DestinationQueue& queue = At(mine, peer);
    PeerWindow& to = WindowTo(r, peer);
    if (queue.head == nullptr || to.in_flight_bytes >= window.bytes || IsStuck(r, peer, queue)) {
      queue.deficit_bytes = 0;
      ++idle;
      continue;
    }
    idle = 0;
    queue.deficit_bytes += window.piece_bytes;
    while (queue.head != nullptr && to.in_flight_bytes < window.bytes && !IsStuck(r, peer, queue)) {
      const uint64_t length = NextChunkBytes(queue.head->left_bytes, window.piece_bytes);
      if (queue.deficit_bytes < length) break;
      done.rail_full = !PostNext(r, mine, peer, length, now);
      if (done.rail_full) return done;
      done.posted_bytes += length;
    }
  }
  return done;
}

void Sprayer::Expect(const Tenant& tenant, absl::Time now) {
  const uint32_t priority = tenant.share().priority;
  if (priority == 0) return;
  if (priority >= expected_at_.size()) expected_at_.resize(priority + 1, absl::InfinitePast());
  expected_at_[priority] = now;
}

// Higher priorities first, then who has had least.
Sprayer::TenantQueues* Sprayer::NextTenant(RailState& rail) const {
  TenantQueues* best = nullptr;
  for (TenantQueues& mine : rail.tenants) {
    if (mine.queued_bytes == 0 || mine.blocked) continue;
    if (best != nullptr) {
      const uint32_t priority = mine.tenant->share().priority, highest = best->tenant->share().priority;
      if (priority < highest || (priority == highest && mine.served >= best->served)) continue;
    }
    best = &mine;
  }
  return best;
}

// Only differences count: who has had least of those that can post is at 0. What the others cannot use is lent and not
// paid back, and nobody is ahead for long, however the tenants and their shares change.
void Sprayer::Level(RailState& rail, uint32_t priority) const {
  double least = std::numeric_limits<double>::infinity();
  for (const TenantQueues& mine : rail.tenants) {
    if (mine.queued_bytes == 0 || mine.blocked || mine.tenant->share().priority != priority) continue;
    least = std::min(least, mine.served);
  }
  if (std::isinf(least)) return;
  const auto most = static_cast<double>(rail.window.bytes + 2 * rail.window.piece_bytes);
  for (TenantQueues& mine : rail.tenants) {
    if (mine.tenant == nullptr || mine.tenant->share().priority != priority) continue;
    mine.served = std::clamp(mine.served - least, 0.0, most);
  }
}

// In flight to peers from which nothing has come back for long: it must not keep others from sending to other peers.
uint64_t Sprayer::StalledBytes(const RailState& rail, absl::Time now) const {
  uint64_t bytes = 0;
  for (const PeerWindow& peer : rail.peers) {
    if (peer.in_flight_bytes > 0 && now - peer.heard_at >= kStalled) bytes += peer.in_flight_bytes;
  }
  return bytes;
}

// One window on the rail for all, so that who is dequeued first leaves first. What yields does not count.
bool Sprayer::HasRoom(const RailState& rail, const TenantQueues& mine, uint64_t stalled_bytes) const {
  uint64_t in_flight = 0;
  for (const TenantQueues& other : rail.tenants) {
    if (other.in_flight_bytes == 0 || other.tenant->share().priority < mine.tenant->share().priority) continue;
    in_flight += other.in_flight_bytes;
  }
  return in_flight < WindowOf(rail, mine).bytes + stalled_bytes;
}

// Several tenants have work, or one that yields.
bool Sprayer::DispatchShared(size_t r, absl::Time now) {
  RailState& rail = rails_state_[r];
  const uint64_t stalled_bytes = StalledBytes(rail, now);
  const absl::Duration pause = kExpectedFor * rail.yielding_time;
  size_t expected = expected_at_.size();  // the highest priority that is, plus 1
  while (expected > 0 && now >= expected_at_[expected - 1] + pause) --expected;
  for (TenantQueues& mine : rail.tenants) {
    mine.blocked = mine.tenant != nullptr && mine.tenant->share().priority + 1 < expected;
    if (mine.blocked && mine.queued_bytes > 0) look_again_ = std::min(look_again_, expected_at_[expected - 1] + pause);
  }
  bool posted = false;
  while (TenantQueues* next = NextTenant(rail)) {
    if (!HasRoom(rail, *next, stalled_bytes)) {
      next->blocked = true;
      look_again_ = std::min(look_again_, now + kStalled);
      continue;
    }
    const Turn turn = PostTurn(r, *next, now);
    if (turn.posted_bytes == 0) {
      if (turn.rail_full) break;
      next->blocked = true;
      continue;
    }
    posted = true;
    next->served += static_cast<double>(turn.posted_bytes) / next->tenant->share().weight;
    Level(rail, next->tenant->share().priority);
  }
  return posted;
}

bool Sprayer::DispatchRail(size_t r, absl::Time now) {
  RailState& rail = rails_state_[r];
  bool posted = PostFences(r);
  if (rail.queued_bytes == 0) return posted;
  TenantQueues* mine = nullptr;
  size_t tenants = 0;
  for (TenantQueues& other : rail.tenants) {
    if (other.queued_bytes > 0) mine = &other;
    tenants += other.queued_bytes > 0 || other.in_flight_bytes > 0;
  }
  if (tenants > 1 || &WindowOf(rail, *mine) == &rail.yielding) return DispatchShared(r, now) || posted;
  while (PostTurn(r, *mine, now).posted_bytes > 0) posted = true;
  return posted;
}

// Moves the tail of the queue `from` to `to`: one piece of it, or all when the old rail cannot send at all.
void Sprayer::Take(size_t from, size_t to, TenantQueues& mine, PeerIndex peer) {
  DestinationQueue& queue = At(mine, peer);
  Run* before = nullptr;
  for (Run* run = queue.head; run != queue.tail; run = run->next) before = run;
  Run* last = queue.tail;
  Run* moved = last;
  const uint64_t piece = rails_state_[to].window.piece_bytes;
  if (!IsStuck(from, peer, queue) && last->left_bytes > 2 * piece) {
    moved = NewRun();
    *moved = *last;
    moved->left_bytes = piece;
    moved->offset_bytes = last->offset_bytes + last->left_bytes - piece;
    last->left_bytes -= piece;
  } else {
    (before == nullptr ? queue.head : before->next) = nullptr;
    queue.tail = before;
  }
  moved->next = nullptr;
  queue.queued_bytes -= moved->left_bytes;
  mine.queued_bytes -= moved->left_bytes;
  rails_state_[from].queued_bytes -= moved->left_bytes;
  Push(to, peer, moved);
  ++stolen_chunks_;
}

// What it cannot send does not keep a rail busy.
bool Sprayer::HasSendable(size_t r) {
  for (TenantQueues& mine : rails_state_[r].tenants) {
    if (mine.queued_bytes == 0) continue;
    for (PeerIndex peer : peers_->spray_order()) {
      if (At(mine, peer).head != nullptr && !IsStuck(r, peer, At(mine, peer))) return true;
    }
  }
  return false;
}

// Late binding: a rail with nothing queued takes work from the one that would need longest for it; that of the highest
// priority there.
bool Sprayer::Steal(size_t to, absl::Time now) {
  if (HasSendable(to)) return false;
  const Window& window = rails_state_[to].window;
  std::pair<double, uint32_t> worst{0, 0};
  size_t from = to;
  TenantQueues* whose = nullptr;
  PeerIndex peer;
  for (size_t r = 0; r < rails_state_.size(); ++r) {
    RailState& rail = rails_state_[r];
    if (r == to || rail.queued_bytes == 0) continue;
    const double seconds = static_cast<double>(rail.queued_bytes) / Rate(r, now);
    const bool lags = seconds > kStealSeconds && rail.queued_bytes > kStealPieces * rail.window.piece_bytes;
    for (TenantQueues& mine : rail.tenants) {
      if (mine.queued_bytes == 0) continue;
      for (PeerIndex p : peers_->spray_order()) {
        const DestinationQueue& queue = At(mine, p);
        if (queue.head == nullptr || !peers_->Get(p).CanSendOver(to, queue.tail->sending->Usable())) continue;
        if (WindowTo(to, p).in_flight_bytes >= window.bytes) continue;
        const bool stuck = IsStuck(r, p, queue);
        if (!stuck && !lags) continue;
        const std::pair<double, uint32_t> badness{stuck ? 1e9 + seconds : seconds, mine.tenant->share().priority};
        if (badness <= worst) continue;
        worst = badness;
        from = r;
        whose = &mine;
        peer = p;
      }
    }
  }
  if (whose == nullptr) return false;
  Take(from, to, *whose, peer);
  return true;
}

bool Sprayer::Dispatch(absl::Time now) {
  bool any = false;
  highest_priority_ = tenants_->HighestPriority();
  look_again_ = absl::InfiniteFuture();
  for (size_t r = 0; r < rails_state_.size(); ++r) {
    any = DispatchRail(r, now) || any;
    while (options_.late_binding && Steal(r, now)) {
      if (!DispatchRail(r, now)) break;
      any = true;
    }
    (*rails_)[r].port->SetHungry(rails_state_[r].queued_bytes > 0);
  }
  return any;
}

}  // namespace railsd
