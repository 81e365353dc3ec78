// The sprayer: planned runs in queues by (rail, tenant, destination), fed to the rails a bounded window at a time.
//
// Chunks are bound to rails when they are dequeued: what has not been posted may still leave a rail that lags. While
// several tenants have work on a rail, what is posted to it is bounded in all, so that the order in which chunks are
// dequeued is the order in which they leave: those of a higher priority first, others by weight.
#ifndef RAILSD_AGENT_RAILS_SPRAYER_H_
#define RAILSD_AGENT_RAILS_SPRAYER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "agent/base/ids.h"
#include "agent/base/rail_mask.h"
#include "agent/engine/peers.h"
#include "agent/plan/plan.h"
#include "agent/rails/rail_handle.h"
#include "agent/sessions/tenants.h"
#include "agent/transport/transport.h"

namespace railsd {

struct NodeJob;
class Sending;

// One order in flight; its index is the order's cookie.
struct InFlight {
  Sending* sending = nullptr;
  RailIndex rail;
  uint64_t offset_bytes = 0, length_bytes = 0;
  uint8_t weight = 0;   // of the fence that it carries; 0: none
  uint32_t round = 0;   // of that fence
  uint32_t record = 0;  // in the job's timeline, if it has one
};

struct SprayerOptions {
  uint64_t chunk_bytes = 1 << 20;
  bool late_binding = true;   // chunks may leave a rail that lags
  uint64_t window_bytes = 0;  // per (rail, destination); 0: from the rail's speed
};

// Owned by the engine's thread.
class Sprayer {
 public:
  Sprayer(const SprayerOptions& options, std::vector<RailHandle>* rails, PeerTable* peers, const TenantTable* tenants);

  // Queues bytes of the stream on a rail. The exchange outlives what is queued of it; its job has a tenant.
  void Queue(Sending* sending, size_t rail, uint64_t offset_bytes, uint64_t length_bytes);
  // Drops what is queued of an exchange, or of all exchanges of a job. Posted chunks are stopped by the rails.
  void Drop(const Sending* sending);
  void Drop(const NodeJob* job);
  // Chunks of this tenant are about to come: those of lower priorities pause for twice what it takes to carry what they
  // may have posted, so that these find the rails free. Nothing happens when nobody is of a lower one.
  void Expect(const Tenant& tenant, absl::Time now);
  // Posts what the windows allow; call after events. Returns false when there was nothing to do.
  bool Dispatch(absl::Time now);
  // When to call Dispatch() even if no event comes.
  absl::Time NextDeadline() const { return look_again_; }
  // Sends the exchange's fences on these rails: nothing of it is unposted.
  void QueueFences(Sending* sending, RailMask rails);
  // Forgets those that are not posted.
  void DropFences(const Sending* sending);
  // Moves what waits for the rail, but cannot use it (any more), to rails that it can use, if it has any.
  void Evacuate(size_t rail, PeerIndex peer);
  // The rail with the least to do among `rails`, which are not none; those that reach the peer first.
  size_t LeastQueued(RailMask rails, PeerIndex peer) const;
  // A posted chunk has ended. Returns what it was.
  InFlight Finish(const RailEvent& event, absl::Time now);

  uint64_t queued_bytes(size_t rail) const { return rails_state_[rail].queued_bytes; }
  uint64_t in_flight_bytes(size_t rail) const { return rails_state_[rail].in_flight_bytes; }
  uint64_t window_bytes(size_t rail) const { return rails_state_[rail].window.bytes; }
  double measured_speed(size_t rail) const { return rails_state_[rail].measured; }
  // What the next plan should count on, in bytes per second: the rail's own speed, or the part of it that was measured
  // lately where that is clearly less than what another rail is seen to deliver of its own.
  double PlanSpeed(size_t rail, absl::Time now) const;
  uint64_t stolen_chunks() const { return stolen_chunks_; }
  // Whose rail broke under them.
  uint64_t returned_chunks(size_t rail) const { return rails_state_[rail].returned_chunks; }

 private:
  // A stretch of a stream that waits; linked in its destination's queue.
  struct Run {
    Sending* sending = nullptr;
    uint64_t offset_bytes = 0, left_bytes = 0;  // none left: a fence
    uint8_t weight = 0;                         // of the fence
    Run* next = nullptr;
  };
  struct DestinationQueue {
    Run* head = nullptr;
    Run* tail = nullptr;
    uint64_t queued_bytes = 0;
    uint64_t deficit_bytes = 0;
  };
  // What one tenant has on one rail.
  struct TenantQueues {
    Tenant* tenant = nullptr;                    // null until it has queued something here
    std::vector<DestinationQueue> destinations;  // by peer
    uint64_t queued_bytes = 0, in_flight_bytes = 0;
    size_t turn = 0;  // into the spray order
    // Bytes over weight that left while others had work here, too, beyond the tenant of this priority that has had
    // least: that one is next (start-time fair queueing, Goyal, Vin and Cheng, 1996). One that had no work meanwhile
    // begins where the others are.
    double served = 0;
    bool blocked = false;  // in this round: nothing that it has can be posted
  };
  // What is posted to one peer, of all tenants: they share its connection.
  struct PeerWindow {
    uint64_t in_flight_bytes = 0;
    absl::Time heard_at;  // the last end of a chunk, or the first post after a rest
  };
  // How much is posted at once.
  struct Window {
    uint64_t piece_bytes = 0;  // a chunk at most
    uint64_t bytes = 0;
  };
  struct RailState {
    std::vector<TenantQueues> tenants;  // by Tenant::index()
    std::vector<PeerWindow> peers;      // by peer
    Run* fences = nullptr;              // that wait for room in the rail's queue
    uint64_t queued_bytes = 0, in_flight_bytes = 0;
    uint64_t returned_chunks = 0;
    Window window, yielding;
    absl::Duration yielding_time;  // that it takes to carry `yielding.bytes`
    // A stretch lasts while something is in flight.
    absl::Time busy_since;
    uint64_t busy_bytes = 0;
    double measured = 0;  // bytes per second, over the stretches so far
    absl::Time measured_at = absl::InfinitePast();
    uint32_t slow_stretches = 0;  // the last so many were clearly slower than another rail
  };

  template <typename Gone>
  void EraseFences(Gone gone);
  template <typename Gone>
  void EraseRuns(RailState& rail, TenantQueues& mine, DestinationQueue& queue, Gone gone);
  Run* NewRun();
  void FreeRun(Run* run);
  void Push(size_t rail, PeerIndex peer, Run* run);
  TenantQueues& Of(size_t rail, Tenant& tenant);
  DestinationQueue& At(TenantQueues& mine, PeerIndex peer);
  PeerWindow& WindowTo(size_t rail, PeerIndex peer);
  const Window& WindowOf(const RailState& rail, const TenantQueues& mine) const;
  bool PostNext(size_t rail, TenantQueues& mine, PeerIndex peer, uint64_t length_bytes, absl::Time now);
  bool Post(size_t rail, const InFlight& in_flight);
  bool PostFences(size_t rail);
  bool IsStuck(size_t rail, PeerIndex peer, const DestinationQueue& queue) const;
  bool DispatchRail(size_t rail, absl::Time now);
  // Posts a turn of one destination, as windows allow: the next in spray order that has work and an open window.
  struct Turn {
    uint64_t posted_bytes = 0;
    bool rail_full = false;
  };
  Turn PostTurn(size_t rail, TenantQueues& mine, absl::Time now);
  bool DispatchShared(size_t rail, absl::Time now);
  TenantQueues* NextTenant(RailState& rail) const;
  void Level(RailState& rail, uint32_t priority) const;
  bool HasRoom(const RailState& rail, const TenantQueues& mine, uint64_t stalled_bytes) const;
  uint64_t StalledBytes(const RailState& rail, absl::Time now) const;
  // How much of its speed the rail delivers, 0 to 1; 1 when that is not known.
  double Part(size_t rail, absl::Time now) const;
  // Of the best rail that was measured; 0 when none was.
  double BestPart(absl::Time now) const;
  // A stretch has ended.
  void EndStretch(size_t rail, absl::Time now);
  // What the rail delivers, as far as it is known now.
  double Rate(size_t rail, absl::Time now) const;
  bool HasSendable(size_t rail);
  bool Steal(size_t rail, absl::Time now);
  void Take(size_t from, size_t to, TenantQueues& mine, PeerIndex peer);
  uint64_t NewCookie(const InFlight& in_flight);

  const SprayerOptions options_;
  std::vector<RailHandle>* const rails_;
  PeerTable* const peers_;
  const TenantTable* const tenants_;
  std::vector<RailState> rails_state_;
  uint32_t highest_priority_ = 0;  // of the tenants that have sessions, as of this Dispatch()
  absl::Time look_again_ = absl::InfiniteFuture();
  std::deque<Run> run_storage_;
  Run* free_runs_ = nullptr;
  std::vector<InFlight> in_flight_;  // by cookie
  std::vector<uint64_t> free_cookies_;
  uint64_t posted_cookie_ = 0;  // of the order that was posted last
  uint64_t stolen_chunks_ = 0;
  std::vector<absl::Time> expected_at_;  // by priority
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_SPRAYER_H_
