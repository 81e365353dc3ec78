#include "agent/rails/sprayer.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "agent/jobs/node_job.h"
#include "agent/jobs/sending.h"

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
  TenantQueues& mine = Of(r, *run->sending->job()->tenant);
  DestinationQueue& queue = At(mine, peer);
  (queue.tail == nullptr ? queue.head : queue.tail->next) = run;
  queue.tail = run;
  queue.queued_bytes += run->left_bytes;
  mine.queued_bytes += run->left_bytes;
  rail.queued_bytes += run->left_bytes;
}

void Sprayer::Queue(Sending* sending, size_t rail, uint64_t offset_bytes, uint64_t length_bytes) {
  Run* run = NewRun();
  run->sending = sending;
  run->offset_bytes = offset_bytes;
  run->left_bytes = length_bytes;
  Push(rail, sending->peer(), run);
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

void Sprayer::Drop(const Sending* sending) {
  const auto gone = [&](const Run& run) { return run.sending == sending; };
  for (RailState& rail : rails_state_) {
    for (TenantQueues& mine : rail.tenants) EraseRuns(rail, mine, At(mine, sending->peer()), gone);
  }
  EraseFences(gone);
}

void Sprayer::Drop(const NodeJob* job) {
  const auto gone = [&](const Run& run) { return run.sending->job() == job; };
  for (RailState& rail : rails_state_) {
    for (TenantQueues& mine : rail.tenants) {
      for (DestinationQueue& queue : mine.destinations) EraseRuns(rail, mine, queue, gone);
    }
  }
  EraseFences(gone);
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
  Sending& sending = *run->sending;
  const bool last = sending.unposted_bytes() == length;
  const RailMask fencing = last ? sending.FenceRailsWith(r) : 0;
  InFlight posted{&sending, RailIndex(static_cast<uint32_t>(r)), run->offset_bytes, length};
  const bool fence = last && !sending.HasFenceUnderWay(r);
  if (fence) {  // it travels with the last bytes
    posted.weight = Sending::WeightOf(r, fencing);
    posted.round = sending.round();
  }
  if (!Post(r, posted)) return false;
  if (sending.OnPosted(r, length, fence)) QueueFences(&sending, fencing & ~(fence ? RailBit(r) : 0));
  NodeJob& job = *sending.job();
  job.posted_bytes += length;
  if (JobTimeline* timeline = job.timeline.get()) {
    const Rank source = sending.flows().At(run->offset_bytes).source;
    in_flight_[posted_cookie_].record = timeline->OnPosted(posted.rail, peer, source, length, now);
  }
  job.first_chunk_at = std::min(job.first_chunk_at, now);
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

// Gives the order to the rail. False: its queue is full.
bool Sprayer::Post(size_t r, const InFlight& in_flight) {
  const Sending& sending = *in_flight.sending;
  const uint64_t cookie = NewCookie(in_flight);
  const uint64_t connection = peers_->Get(sending.peer()).rails[r].connection;
  SendOrder order{&sending.stream(), in_flight.offset_bytes, in_flight.length_bytes, cookie, connection};
  order.weight = in_flight.weight;
  order.round = in_flight.round;
  if (!(*rails_)[r].TryPost(order)) {
    free_cookies_.push_back(cookie);
    return false;
  }
  posted_cookie_ = cookie;
  ++sending.job()->outstanding_orders;
  return true;
}

void Sprayer::QueueFences(Sending* sending, RailMask rails) {
  const RailMask all = sending->FenceRails();
  for (; rails != 0; rails &= rails - 1) {
    const auto r = static_cast<size_t>(std::countr_zero(rails));
    Run* fence = NewRun();
    fence->sending = sending;
    fence->weight = Sending::WeightOf(r, all);
    fence->next = std::exchange(rails_state_[r].fences, fence);
  }
}

void Sprayer::DropFences(const Sending* sending) {
  EraseFences([&](const Run& run) { return run.sending == sending; });
}

size_t Sprayer::LeastQueued(RailMask rails, PeerIndex peer) const {
  RailMask reaching = 0;
  for (size_t r = 0; r < rails_state_.size(); ++r) {
    if (peers_->Get(peer).CanSendOver(r, rails)) reaching |= RailBit(r);
  }
  size_t best = rails_state_.size();
  for (RailMask left = reaching != 0 ? reaching : rails; left != 0; left &= left - 1) {
    const auto r = static_cast<size_t>(std::countr_zero(left));
    if (best == rails_state_.size() || rails_state_[r].queued_bytes < rails_state_[best].queued_bytes) best = r;
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
      const RailMask usable = run->sending->Usable();
      const bool stays = usable == 0 || peers_->Get(peer).CanSendOver(r, usable);
      Push(stays ? r : LeastQueued(usable, peer), peer, run);
      run = next;
    }
  }
}

bool Sprayer::PostFences(size_t r) {
  bool posted = false;
  for (Run** at = &rails_state_[r].fences; *at != nullptr;) {
    Run* const run = *at;
    Sending& sending = *run->sending;
    if (sending.HasFenceUnderWay(r)) {
      at = &run->next;
      continue;
    }
    if ((sending.Usable() & RailBit(r)) != 0) {  // else another round begins, without this rail
      const RailIndex rail(static_cast<uint32_t>(r));
      if (!Post(r, {&sending, rail, 0, 0, run->weight, sending.round()})) return posted;
      sending.OnFencePosted(r);
      posted = true;
    }
    *at = run->next;
    FreeRun(run);
  }
  return posted;
}

InFlight Sprayer::Finish(const RailEvent& event, absl::Time now) {
  const InFlight done = std::exchange(in_flight_[event.cookie], InFlight{});
  free_cookies_.push_back(event.cookie);
  NodeJob& job = *done.sending->job();
  --job.outstanding_orders;
  if (done.length_bytes == 0) return done;
  const bool acknowledged = event.result == SendResult::kAcknowledged;
  if (job.timeline != nullptr) job.timeline->OnEnded(done.record, done.rail, acknowledged, now);
  RailState& rail = rails_state_[done.rail.value()];
  PeerWindow& window = WindowTo(done.rail.value(), done.sending->peer());
  rail.returned_chunks += event.result == SendResult::kNotSent || event.result == SendResult::kRailFailed;
  if (acknowledged) job.tenant->CountSent(done.rail.value(), done.length_bytes);
  Of(done.rail.value(), *job.tenant).in_flight_bytes -= done.length_bytes;
  window.in_flight_bytes -= done.length_bytes;
  window.heard_at = now;
  rail.in_flight_bytes -= done.length_bytes;
  rail.busy_bytes += done.length_bytes;
  if (!acknowledged) rail.busy_since = absl::InfiniteFuture();  // says nothing of its rate
  if (rail.in_flight_bytes == 0) EndStretch(done.rail.value(), now);
  return done;
}

}  // namespace railsd
