// Chooses what a rail posts next: which tenant's bytes, and to which peer. Pure: no clock, no threads, no access to
// segments.
#ifndef RAILSD_AGENT_RAILS_RAIL_SCHEDULER_H_
#define RAILSD_AGENT_RAILS_RAIL_SCHEDULER_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agent/base/ids.h"
#include "agent/rails/rail_progress.h"
#include "agent/rails/tournament.h"
#include "agent/sessions/tenant_quota.h"

namespace railsd {

struct SchedulerOptions {
  double speed_bytes_per_s = 0;
  uint64_t chunk_bytes = 1 << 20;  // no chunk is longer
  uint64_t window_bytes = 0;       // in flight to peers that bytes wait for; 0: from the speed
};

// Shares of the tenants, as the engine told them last.
struct RailShares {
  std::vector<TenantShare> tenants;  // by Tenant::index(); missing ones have the default
  uint32_t highest_priority = 0;     // of tenants that have sessions
  friend bool operator==(const RailShares&, const RailShares&) = default;
};

// Posted bytes can neither move to another rail nor be overtaken. They are bounded by a window, which is shared by the
// peers that bytes wait for and by all that send to the same receiver, and by a limit for all peers together. Higher
// priorities go first, then the tenant that has had least for its weight (start-time fair queueing, Goyal, Vin and
// Cheng, 1996), then bytes of the tenant's urgent jobs, then the peer with most bytes left, because it would end last.
// Urgency changes no window: a peer has the same part of it, urgent or not, so it takes nothing from other tenants.
// A peer that was passed over for long has its turn. Windows shrink while the rail is slower than its speed. A chunk
// costs O(log peers + log tenants). Owned by the rail's thread.
class RailScheduler {
 public:
  // `progress` takes the counts, and outlives this.
  RailScheduler(const SchedulerOptions& options, RailProgress* progress);

  void SetShares(const RailShares& shares);
  // Tells that chunks of `priority` are about to come. Lower priorities pause, so that these chunks find the rail free:
  // for twice the time that their posted bytes may need.
  void Expect(uint32_t priority, absl::Time now);

  // Bytes to the peer wait to be posted. `place`: of the peer in the order in which this node serves its peers.
  // `inflow_ppm`: SendStream's; 0 counts as the whole. `urgent`: of an urgent job.
  void Add(uint32_t tenant, PeerIndex peer, uint32_t place, uint64_t bytes, uint32_t inflow_ppm = 0,
           bool urgent = false);
  // The bytes no longer wait, and were not posted.
  void Remove(uint32_t tenant, PeerIndex peer, uint64_t bytes, bool urgent = false);

  struct Choice {
    uint32_t tenant = 0;
    PeerIndex peer;
    uint64_t piece_bytes = 0;  // a chunk at most
    bool urgent = false;
  };
  // Chooses whose bytes are posted next; nullopt while windows are full, or all tenants that wait pause.
  std::optional<Choice> Next(absl::Time now);
  void OnPosted(uint32_t tenant, PeerIndex peer, uint64_t bytes, absl::Time now, bool urgent = false);
  void OnEnded(uint32_t tenant, PeerIndex peer, uint64_t bytes, bool acknowledged, absl::Time now);
  // When Next() may choose again, though nothing has ended.
  absl::Time NextDeadline() const { return look_again_; }

  // A time in which the rail was never idle, and the bytes that it carried. The time is shorter where receivers took
  // less than the rail carries, so that bytes over time tell what the rail can do.
  struct Stretch {
    uint64_t bytes = 0;
    absl::Duration time;
  };
  // The stretch that has ended since the last call, if it was long enough to tell a rate.
  std::optional<Stretch> TakeStretch();

  uint64_t unposted_bytes() const { return unposted_bytes_; }

 private:
  struct Destination {
    uint64_t unposted_bytes = 0;
    uint64_t served_at = 0;  // the queue's count of pieces when it was served last, or began to wait
    bool set_aside = false;  // its window was full when it was chosen; until a chunk to it ends
  };
  // Bytes of a tenant's urgent jobs, or of its others.
  struct PeerQueue {
    std::vector<Destination> destinations;  // by peer
    // By place, of peers that can be chosen: bytes to be posted, and ~served_at.
    Tournament<uint64_t> left, waited;
    uint64_t active = 0;  // peers with something to be posted
    uint64_t pieces = 0;  // posted so far
    uint32_t last_place = UINT32_MAX;
  };
  struct TenantQueue {
    std::array<PeerQueue, 2> peers;  // by urgency
    uint64_t active = 0;             // peers with something to be posted, urgent or not
    uint64_t unposted_bytes = 0, in_flight_bytes = 0;
    double served = 0;  // bytes over weight, as Priority::served
    bool working = false;

    bool HasFor(PeerIndex peer) const {
      return std::any_of(peers.begin(), peers.end(), [peer](const PeerQueue& queue) {
        return peer.value() < queue.destinations.size() && queue.destinations[peer.value()].unposted_bytes > 0;
      });
    }
  };
  struct Priority {
    uint64_t unposted_bytes = 0, in_flight_bytes = 0;
    // The least `served` of the tenants that can post. A tenant that could not post begins with it: others keep the
    // share that it has not used.
    double served = 0;
    absl::Time expected_at = absl::InfinitePast();
  };
  // The place of a tenant among those that can post: its priority plus 1, and the negative of `served`.
  using Rank = std::pair<uint32_t, double>;
  // One peer, whose connection all tenants share.
  struct PeerState {
    uint32_t place = 0;
    uint64_t in_flight_bytes = 0, in_flight_chunks = 0, unposted_bytes = 0;
    uint32_t inflow_ppm = 0;  // the most of the jobs since nothing waited to be posted
    absl::Time heard_at;      // the last end of a chunk, or the first post after a rest
    bool stalled = false;
    std::vector<std::pair<uint32_t, bool>> set_aside;  // tenants and urgency
  };
  // How much is posted at once.
  struct Window {
    uint64_t piece_bytes = 0;
    uint64_t bytes = 0;
  };

  Window MakeWindow(double least_seconds, uint64_t least_pieces, double seconds) const;
  void SetWindows(double speed_bytes_per_s);
  void SetPlace(PeerIndex peer, uint32_t place);
  TenantShare ShareOf(size_t tenant) const {
    return tenant < shares_.tenants.size() ? shares_.tenants[tenant] : TenantShare{};
  }
  const Window& WindowOf(uint32_t priority) const { return priority < shares_.highest_priority ? yielding_ : window_; }
  bool IsOpen(const PeerState& peer, const Window& window, uint64_t peers) const;
  // Called when the tenant, or a peer for it, can be chosen, or cannot any more.
  void UpdateRank(uint32_t tenant);
  void UpdatePeer(PeerQueue& queue, PeerIndex peer);
  void Resume(PeerIndex peer);
  std::optional<PeerIndex> NextPeer(uint32_t tenant, bool urgent, const Window& window);
  bool HasRoom(uint32_t priority, absl::Time now);
  uint64_t StalledBytes(absl::Time now);
  void Measure(uint64_t bytes, absl::Time now);
  void EndStretch(absl::Time now);
  void TellStretch(absl::Time now);
  void Publish();

  const SchedulerOptions options_;
  RailProgress* const progress_;
  double speed_;  // that windows are made for, in bytes per second
  Window window_, yielding_;
  uint64_t nominal_piece_bytes_ = 0, window_pieces_ = 0;
  absl::Duration yielding_time_;  // that it takes to carry `yielding_.bytes`
  absl::Duration stalled_;        // a peer that is silent for so long is stalled
  absl::Duration measurable_;     // a shorter stretch tells no rate
  RailShares shares_;
  std::vector<TenantQueue> tenants_;                             // by index
  std::vector<Priority> priorities_ = std::vector<Priority>(1);  // by priority
  Tournament<Rank> ranks_;                                       // of tenants, by index
  std::vector<uint32_t> set_aside_;                              // tenants that had no open peer at the last choice
  std::vector<PeerState> peers_;                                 // by index
  std::vector<PeerIndex> peer_at_;                               // by place
  uint64_t unposted_bytes_ = 0, in_flight_bytes_ = 0;
  uint64_t working_ = 0;  // tenants with bytes unposted or in flight
  uint64_t stalled_bytes_ = 0;
  absl::Time look_for_stalled_at_ = absl::InfinitePast();
  absl::Time look_again_ = absl::InfiniteFuture();
  // The present stretch, and the last one that was reported.
  absl::Time busy_since_;
  uint64_t busy_bytes_ = 0;
  bool told_ = false;  // the present one was reported
  std::optional<Stretch> ended_;
  uint32_t inflow_ = 0, most_inflow_ = 0;  // of all peers that bytes wait for: now, the most in the present stretch
  // Since when bytes have waited for windows to open, and the bytes that have ended since then.
  absl::Time full_since_ = absl::InfiniteFuture();
  uint64_t full_bytes_ = 0;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_SCHEDULER_H_
