#include "agent/job/sprayer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "agent/job/node_job.h"

namespace railsd {
namespace {

// A piece posted at once is about this much of the rail's time, so that what is posted (and can no longer move) stays
// short on slow rails; fast rails take whole chunks.
constexpr double kPieceSeconds = 4e-3;
constexpr uint64_t kMinPieceBytes = 64 << 10;
// Pieces in flight to one destination: one on the wire, one behind it, one whose acknowledgement is under way.
constexpr uint64_t kWindowPieces = 3;
// On fast rails more pieces are posted: whoever posts must not be woken more often than this.
constexpr double kWindowSeconds = 1e-3;
// Of those while somebody of a higher priority is there, who must not wait for what is posted already.
constexpr double kYieldingPart = 0.25;
constexpr uint64_t kYieldingPieces = 2;  // one on the wire, one behind it

}  // namespace

Sprayer::Sprayer(const SprayerOptions& options, std::vector<RailHandle>* rails, PeerTable* peers,
                 const TenantTable* tenants)
    : options_(options), rails_(rails), peers_(peers), tenants_(tenants), rails_state_(rails->size()) {
  for (size_t r = 0; r < rails->size(); ++r) {
    const double speed = (*rails)[r].speed_bytes_per_s;
    const auto window = [&](double part, uint64_t pieces) {
      Window w;
      const auto least = static_cast<uint64_t>(part * static_cast<double>(kMinPieceBytes));
      w.piece_bytes = std::clamp(static_cast<uint64_t>(speed * part * kPieceSeconds),
                                 std::min(least, options.chunk_bytes), options.chunk_bytes);
      w.bytes = options.window_bytes > 0
                    ? options.window_bytes
                    : std::max(pieces * w.piece_bytes, static_cast<uint64_t>(speed * part * kWindowSeconds));
      return w;
    };
    rails_state_[r].window = window(1, kWindowPieces);
    rails_state_[r].yielding = window(kYieldingPart, kYieldingPieces);
    rails_state_[r].yielding_time = absl::Seconds(static_cast<double>(rails_state_[r].yielding.bytes) / speed);
  }
}

Sprayer::Run* Sprayer::NewRun() {
  if (free_runs_ == nullptr) return &run_storage_.emplace_back();
  Run* run = std::exchange(free_runs_, free_runs_->next);
  run->next = nullptr;
  return run;
}

void Sprayer::FreeRun(Run* run) {
  *run = Run{};
  run->next = std::exchange(free_runs_, run);
}

Sprayer::TenantQueues& Sprayer::Of(size_t rail, Tenant& tenant) {
  std::vector<TenantQueues>& tenants = rails_state_[rail].tenants;
  if (tenant.index() >= tenants.size()) tenants.resize(tenant.index() + 1);
  TenantQueues& mine = tenants[tenant.index()];
  mine.tenant = &tenant;
  return mine;
}

Sprayer::DestinationQueue& Sprayer::At(TenantQueues& mine, PeerIndex peer) {
  if (peer.value() >= mine.destinations.size()) mine.destinations.resize(peers_->size());
  return mine.destinations[peer.value()];
}

Sprayer::PeerWindow& Sprayer::WindowTo(size_t rail, PeerIndex peer) {
  std::vector<PeerWindow>& peers = rails_state_[rail].peers;
  if (peer.value() >= peers.size()) peers.resize(peers_->size());
  return peers[peer.value()];
}

void Sprayer::Push(size_t r, PeerIndex peer, Run* run) {
  RailState& rail = rails_state_[r];
  TenantQueues& mine = Of(r, *run->job->tenant);
  DestinationQueue& queue = At(mine, peer);
  (queue.tail == nullptr ? queue.head : queue.tail->next) = run;
  queue.tail = run;
  queue.queued_bytes += run->left_bytes;
  mine.queued_bytes += run->left_bytes;
  rail.queued_bytes += run->left_bytes;
}

void Sprayer::Queue(NodeJob* job, const SendFlow* flow, Rank source, ZoneRef zone, const PlanRun& planned,
                    FencedFlow* fenced) {
  Run* run = NewRun();
  run->job = job;
  run->flow = flow;
  run->source = source;
  run->zone = zone;
  run->offset_bytes = planned.offset_bytes;
  run->left_bytes = planned.length_bytes;
  run->fenced = fenced;
  Push(planned.rail.value(), flow->peer, run);
}

template <typename Gone>
void Sprayer::EraseFences(Gone gone) {
  for (RailState& rail : rails_state_) {
    for (Run** at = &rail.fences; *at != nullptr;) {
      Run* run = *at;
      if (gone(*run)) {
        *at = run->next;
        FreeRun(run);
      } else {
        at = &run->next;
      }
    }
  }
}

template <typename Gone>
void Sprayer::EraseRuns(RailState& rail, TenantQueues& mine, DestinationQueue& queue, Gone gone) {
  Run* run = std::exchange(queue.head, nullptr);
  queue.tail = nullptr;
  while (run != nullptr) {
    Run* next = std::exchange(run->next, nullptr);
    if (gone(*run)) {
      queue.queued_bytes -= run->left_bytes;
      mine.queued_bytes -= run->left_bytes;
      rail.queued_bytes -= run->left_bytes;
      FreeRun(run);
    } else {
      (queue.tail == nullptr ? queue.head : queue.tail->next) = run;
      queue.tail = run;
    }
    run = next;
  }
}

void Sprayer::Drop(const NodeJob* job) {
  const auto gone = [&](const Run& run) { return run.job == job; };
  for (RailState& rail : rails_state_) {
    for (TenantQueues& mine : rail.tenants) {
      for (DestinationQueue& queue : mine.destinations) EraseRuns(rail, mine, queue, gone);
    }
  }
  EraseFences(gone);
}

void Sprayer::DropTo(const NodeJob* job, PeerIndex peer, absl::FunctionRef<void(Rank, uint64_t)> on_dropped) {
  const auto gone = [&](const Run& run) {
    if (run.job != job) return false;
    on_dropped(run.source, run.left_bytes);
    return true;
  };
  for (RailState& rail : rails_state_) {
    for (TenantQueues& mine : rail.tenants) EraseRuns(rail, mine, At(mine, peer), gone);
  }
  EraseFences([&](const Run& run) { return run.job == job && run.fenced->exchange->peer == peer; });
}

uint64_t Sprayer::NewCookie(const InFlight& in_flight) {
  if (free_cookies_.empty()) {
    in_flight_.push_back(in_flight);
    free_cookies_.reserve(in_flight_.capacity());
    return in_flight_.size() - 1;
  }
  const uint64_t cookie = free_cookies_.back();
  free_cookies_.pop_back();
  in_flight_[cookie] = in_flight;
  return cookie;
}

bool Sprayer::PostNext(size_t r, TenantQueues& mine, PeerIndex peer, uint64_t length, absl::Time now) {
  RailState& rail = rails_state_[r];
  DestinationQueue& queue = At(mine, peer);
  PeerWindow& window = WindowTo(r, peer);
  Run* run = queue.head;
  FencedFlow* fenced = run->fenced;
  const bool last = fenced != nullptr && fenced->unposted_bytes == length;
  const uint64_t cookie = NewCookie({run->job, run->source, peer, RailIndex(static_cast<uint32_t>(r)), length,
                                     run->flow, fenced, last, fenced == nullptr ? uint8_t{0} : fenced->round});
  SendOrder order{run->flow, run->zone, run->offset_bytes, length, cookie};
  if (last) {  // this rail's fence travels with its last bytes
    order.fences = static_cast<uint8_t>(std::popcount(fenced->used | RailBit(r)));
    order.round = fenced->round;
  }
  if (!(*rails_)[r].TryPost(order)) {
    free_cookies_.push_back(cookie);
    return false;
  }
  if (fenced != nullptr) OnFencedPosted(*run, r, length);
  ++run->job->outstanding_orders;
  run->job->posted_bytes += length;
  if (JobTimeline* timeline = run->job->timeline.get()) {
    InFlight& posted = in_flight_[cookie];
    posted.record = timeline->OnPosted(posted.rail, peer, run->source, length, now);
  }
  run->job->first_chunk_at = std::min(run->job->first_chunk_at, now);
  run->offset_bytes += length;
  run->left_bytes -= length;
  queue.queued_bytes -= length;
  mine.queued_bytes -= length;
  mine.in_flight_bytes += length;
  if (window.in_flight_bytes == 0) window.heard_at = now;
  window.in_flight_bytes += length;
  if (rail.in_flight_bytes == 0) {
    rail.busy_since = now;
    rail.busy_bytes = 0;
  }
  queue.deficit_bytes -= std::min(queue.deficit_bytes, length);
  rail.queued_bytes -= length;
  rail.in_flight_bytes += length;
  if (run->left_bytes == 0) {
    queue.head = run->next;
    if (queue.head == nullptr) queue.tail = nullptr;
    FreeRun(run);
  }
  return true;
}

void Sprayer::OnFencedPosted(const Run& run, size_t r, uint64_t length) {
  FencedFlow& fenced = *run.fenced;
  PeerExchange& exchange = *fenced.exchange;
  fenced.unposted_bytes -= length;
  fenced.used |= RailBit(r);
  ++exchange.outstanding_orders;
  ++exchange.rail_orders[r];
  exchange.posted_bytes[r] += length;
  exchange.unposted_bytes -= length;
  if (exchange.unposted_bytes == 0) fully_posted_.push_back(&exchange);
  if (fenced.unposted_bytes > 0) return;
  fenced.fences_left = static_cast<uint32_t>(std::popcount(fenced.used));
  for (RailMask others = fenced.used & ~RailBit(r); others != 0; others &= others - 1) {
    Run* fence = NewRun();
    *fence = run;
    fence->offset_bytes = fence->left_bytes = 0;
    fence->next = std::exchange(rails_state_[static_cast<size_t>(std::countr_zero(others))].fences, fence);
  }
}

void Sprayer::QueueFences(NodeJob* job, const SendFlow* flow, Rank source, ZoneRef zone, FencedFlow* fenced) {
  fenced->fences_left = static_cast<uint32_t>(std::popcount(fenced->used));
  for (RailMask rails = fenced->used; rails != 0; rails &= rails - 1) {
    Run* fence = NewRun();
    fence->job = job;
    fence->flow = flow;
    fence->source = source;
    fence->zone = zone;
    fence->fenced = fenced;
    fence->next = std::exchange(rails_state_[static_cast<size_t>(std::countr_zero(rails))].fences, fence);
  }
}

void Sprayer::DropFences(const FencedFlow* fenced) {
  EraseFences([&](const Run& run) { return run.fenced == fenced; });
}

size_t Sprayer::LeastQueued(RailMask rails, PeerIndex peer) const {
  RailMask reaching = 0;
  for (size_t r = 0; r < rails_state_.size(); ++r) {
    if (peers_->Get(peer).CanSend(r)) reaching |= rails & RailBit(r);
  }
  size_t best = rails_state_.size();
  for (RailMask left = reaching != 0 ? reaching : rails; left != 0; left &= left - 1) {
    const auto r = static_cast<size_t>(std::countr_zero(left));
    if (best == rails_state_.size() || rails_state_[r].queued_bytes < rails_state_[best].queued_bytes) best = r;
  }
  return best;
}

size_t Sprayer::Refuge(size_t r, PeerIndex peer) const {
  size_t best = r;
  for (size_t other = 0; other < rails_state_.size(); ++other) {
    if (other == r || !peers_->Get(peer).CanSend(other)) continue;
    if (best == r || rails_state_[other].queued_bytes < rails_state_[best].queued_bytes) best = other;
  }
  return best;
}

void Sprayer::Evacuate(size_t r, PeerIndex peer) {
  RailState& rail = rails_state_[r];
  for (size_t t = 0; t < rail.tenants.size(); ++t) {
    TenantQueues& mine = rail.tenants[t];
    DestinationQueue& queue = At(mine, peer);
    Run* run = std::exchange(queue.head, nullptr);
    queue.tail = nullptr;
    mine.queued_bytes -= queue.queued_bytes;
    rail.queued_bytes -= std::exchange(queue.queued_bytes, 0);
    while (run != nullptr) {
      Run* next = std::exchange(run->next, nullptr);
      if (run->fenced == nullptr) {
        Push(peers_->Get(peer).CanSend(r) ? r : Refuge(r, peer), peer, run);
      } else {
        const bool usable = (run->fenced->usable & RailBit(r)) != 0 && peers_->Get(peer).CanSend(r);
        const bool stays = usable || run->fenced->usable == 0;
        Push(stays ? r : LeastQueued(run->fenced->usable, peer), peer, run);
      }
      run = next;
    }
  }
}

bool Sprayer::PostFences(size_t r) {
  bool posted = false;
  while (Run* run = rails_state_[r].fences) {
    FencedFlow& fenced = *run->fenced;
    if ((fenced.usable & RailBit(r)) == 0) {  // the flow begins another round, without this rail
      rails_state_[r].fences = run->next;
      FreeRun(run);
      continue;
    }
    const uint64_t cookie = NewCookie({run->job, run->source, run->flow->peer, RailIndex(static_cast<uint32_t>(r)), 0,
                                       run->flow, &fenced, /*fence=*/true, fenced.round});
    SendOrder order{run->flow, run->zone, 0, 0, cookie};
    order.fences = static_cast<uint8_t>(std::popcount(fenced.used));
    order.round = fenced.round;
    if (!(*rails_)[r].TryPost(order)) {
      free_cookies_.push_back(cookie);
      return posted;
    }
    posted = true;
    ++run->job->outstanding_orders;
    ++fenced.exchange->outstanding_orders;
    ++fenced.exchange->rail_orders[r];
    rails_state_[r].fences = run->next;
    FreeRun(run);
  }
  return posted;
}

InFlight Sprayer::Finish(const RailEvent& event, absl::Time now) {
  const InFlight done = std::exchange(in_flight_[event.cookie], InFlight{});
  free_cookies_.push_back(event.cookie);
  if (done.fenced != nullptr) {
    --done.fenced->exchange->outstanding_orders;
    --done.fenced->exchange->rail_orders[done.rail.value()];
  }
  if (done.length_bytes == 0) return done;
  if (done.job->timeline != nullptr) {
    done.job->timeline->OnEnded(done.record, done.rail, event.result == SendResult::kAcknowledged, now);
  }
  RailState& rail = rails_state_[done.rail.value()];
  PeerWindow& window = WindowTo(done.rail.value(), done.peer);
  rail.returned_chunks += event.result == SendResult::kReturned || event.result == SendResult::kRailFailed;
  if (event.result == SendResult::kAcknowledged) done.job->tenant->CountSent(done.rail.value(), done.length_bytes);
  Of(done.rail.value(), *done.job->tenant).in_flight_bytes -= done.length_bytes;
  window.in_flight_bytes -= done.length_bytes;
  window.heard_at = now;
  rail.in_flight_bytes -= done.length_bytes;
  rail.busy_bytes += done.length_bytes;
  if (event.result != SendResult::kAcknowledged) rail.busy_since = absl::InfiniteFuture();  // says nothing of its rate
  if (rail.in_flight_bytes == 0) EndStretch(done.rail.value(), now);
  return done;
}

}  // namespace railsd
