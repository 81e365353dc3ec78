// The scheduler beside one that looks at every tenant and every peer for each chunk: both choose the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/rails/rail_scheduler.h"
#include "tests/support/seeds.h"

namespace railsd {
namespace {

constexpr uint32_t kTenants = 5, kPeers = 11, kPriorities = 3;
constexpr SchedulerOptions kRail{.speed_bytes_per_s = 1e6, .chunk_bytes = 1000, .window_bytes = 3000};
constexpr absl::Duration kTick = absl::Milliseconds(10);  // stalled peers are looked for so often

class NaiveScheduler {
 public:
  void SetShares(const RailShares& shares) {
    for (uint32_t t = 0; t < kTenants; ++t) tenants_[t].served = Served(t) - least_[Of(t).priority];
    least_ = {};
    shares_ = shares;
  }
  void Expect(uint32_t priority, absl::Time now) { expected_at_[priority] = now; }
  void Add(uint32_t tenant, uint32_t peer, bool urgent, uint64_t bytes) {
    Queue& queue = tenants_[tenant].queues[urgent];
    Destination& to = queue.peers[peer];
    if (to.unposted_bytes == 0) to.served_at = queue.pieces;
    to.unposted_bytes += bytes;
  }
  void Remove(uint32_t tenant, uint32_t peer, bool urgent, uint64_t bytes) {
    tenants_[tenant].queues[urgent].peers[peer].unposted_bytes -= bytes;
  }
  uint64_t Unposted(uint32_t tenant, uint32_t peer, bool urgent) const {
    return tenants_[tenant].queues[urgent].peers[peer].unposted_bytes;
  }
  void SetPlaces(const std::array<uint32_t, kPeers>& places) { places_ = places; }

  struct Choice {
    uint32_t tenant, peer;
    bool urgent;
  };
  std::optional<Choice> Next(absl::Time now) {
    tried_ = {};
    while (const std::optional<uint32_t> tenant = NextTenant()) {
      const uint32_t priority = Of(*tenant).priority;
      for (uint32_t p = priority + 1; p < kPriorities; ++p) {
        if (now < expected_at_[p] + 2 * absl::Milliseconds(3)) return std::nullopt;
      }
      if (!HasRoom(*tenant, now)) return std::nullopt;
      for (const bool urgent : {true, false}) {
        if (const auto peer = NextPeer(tenants_[*tenant], urgent)) return Choice{*tenant, *peer, urgent};
      }
      tried_[*tenant] = true;
    }
    return std::nullopt;
  }
  void OnPosted(const Choice& choice, uint64_t bytes, absl::Time now) {
    const uint32_t t = choice.tenant, peer = choice.peer;
    Tenant& tenant = tenants_[t];
    Queue& queue = tenant.queues[choice.urgent];
    tenant.served = Served(t) + static_cast<double>(bytes) / Of(t).weight;
    queue.last_place = places_[peer];
    queue.peers[peer].served_at = ++queue.pieces;
    queue.peers[peer].unposted_bytes -= bytes;
    tenant.in_flight_bytes += bytes;
    if (windows_[peer].bytes == 0) windows_[peer].heard_at = now;
    windows_[peer].bytes += bytes;
    ++windows_[peer].chunks;
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t other = 0; other < kTenants; ++other) {
      if (Waits(other) && !tried_[other] && Of(other).priority == Of(t).priority)
        least = std::min(least, Served(other));
    }
    least_[Of(t).priority] = std::min(least, std::numeric_limits<double>::max()) == least ? least : tenant.served;
  }
  void OnEnded(uint32_t tenant, uint32_t peer, uint64_t bytes, absl::Time now) {
    tenants_[tenant].in_flight_bytes -= bytes;
    windows_[peer].bytes -= bytes;
    --windows_[peer].chunks;
    windows_[peer].heard_at = now;
  }

 private:
  struct Destination {
    uint64_t unposted_bytes = 0, served_at = 0;
  };
  struct Queue {
    std::array<Destination, kPeers> peers;
    uint64_t pieces = 0;
    uint32_t last_place = UINT32_MAX;
  };
  struct Tenant {
    std::array<Queue, 2> queues;  // by urgency
    uint64_t in_flight_bytes = 0;
    double served = 0;
  };
  struct Window {
    uint64_t bytes = 0, chunks = 0;
    absl::Time heard_at;
  };

  TenantShare Of(uint32_t tenant) const {
    return tenant < shares_.tenants.size() ? shares_.tenants[tenant] : TenantShare{};
  }
  double Served(uint32_t tenant) const { return std::max(tenants_[tenant].served, least_[Of(tenant).priority]); }
  static uint64_t Active(const Queue& queue) {
    return static_cast<uint64_t>(std::count_if(queue.peers.begin(), queue.peers.end(),
                                               [](const Destination& to) { return to.unposted_bytes > 0; }));
  }
  // Peers for which something waits, urgent or not.
  static uint64_t Active(const Tenant& tenant) {
    uint64_t active = 0;
    for (uint32_t peer = 0; peer < kPeers; ++peer) {
      active += tenant.queues[0].peers[peer].unposted_bytes + tenant.queues[1].peers[peer].unposted_bytes > 0;
    }
    return active;
  }
  bool Waits(uint32_t tenant) const { return Active(tenants_[tenant]) > 0; }
  std::optional<uint32_t> NextTenant() const {
    std::optional<uint32_t> best;
    for (uint32_t t = 0; t < kTenants; ++t) {
      if (!Waits(t) || tried_[t]) continue;
      const bool higher = best.has_value() && Of(t).priority > Of(*best).priority;
      const bool lower = best.has_value() && Of(t).priority < Of(*best).priority;
      if (!best.has_value() || higher || (!lower && Served(t) < Served(*best))) best = t;
    }
    return best;
  }
  bool HasRoom(uint32_t tenant, absl::Time now) const {
    const uint32_t priority = Of(tenant).priority;
    uint64_t in_flight = 0, stalled = 0, working = 0;
    bool yields = false;
    for (uint32_t t = 0; t < kTenants; ++t) {
      if (Of(t).priority >= priority) in_flight += tenants_[t].in_flight_bytes;
      working += Waits(t) || tenants_[t].in_flight_bytes > 0;
      yields = yields || (Waits(t) && Of(t).priority < shares_.highest_priority);
    }
    for (const Window& window : windows_) {
      if (window.bytes > 0 && now - window.heard_at >= absl::Milliseconds(100)) stalled += window.bytes;
    }
    return in_flight < kRail.window_bytes * (working > 1 || yields ? 1 : 2) + stalled;
  }
  std::optional<uint32_t> NextPeer(const Tenant& tenant, bool urgent) const {
    const Queue& queue = tenant.queues[urgent];
    std::optional<uint32_t> best;
    bool best_passed_over = false;
    for (uint32_t at = 1; at <= kPeers; ++at) {
      const uint32_t place = (queue.last_place + at) % kPeers;
      const uint32_t peer = static_cast<uint32_t>(std::find(places_.begin(), places_.end(), place) - places_.begin());
      const Destination& to = queue.peers[peer];
      const uint64_t each = std::max(kRail.chunk_bytes, kRail.window_bytes / std::max<uint64_t>(1, Active(tenant)));
      const bool open = windows_[peer].bytes + kRail.chunk_bytes / 2 <= each && windows_[peer].chunks < 256;
      if (to.unposted_bytes == 0 || !open) continue;
      const bool passed_over = queue.pieces - to.served_at >= 4 * Active(queue);
      const Destination* const other = best.has_value() ? &queue.peers[*best] : nullptr;
      const bool sooner = passed_over && best_passed_over ? to.served_at < other->served_at : passed_over;
      const bool more =
          !passed_over && !best_passed_over && other != nullptr && to.unposted_bytes > other->unposted_bytes;
      if (other != nullptr && !sooner && !more) continue;
      best = peer;
      best_passed_over = passed_over;
    }
    return best;
  }

  RailShares shares_;
  std::array<Tenant, kTenants> tenants_;
  std::array<Window, kPeers> windows_;
  std::array<uint32_t, kPeers> places_{};
  std::array<double, kPriorities> least_{};
  std::array<absl::Time, kPriorities> expected_at_{absl::InfinitePast(), absl::InfinitePast(), absl::InfinitePast()};
  std::array<bool, kTenants> tried_{};
};

class SchedulerWalk {
 public:
  explicit SchedulerWalk(uint64_t seed) : random_(seed) {
    for (uint32_t peer = 0; peer < kPeers; ++peer) places_[peer] = peer;
    std::shuffle(places_.begin(), places_.end(), random_);
    naive_.SetPlaces(places_);
    // The places become known.
    for (uint32_t peer = 0; peer < kPeers; ++peer) scheduler_.Add(0, PeerIndex(peer), places_[peer], 1);
    for (uint32_t peer = 0; peer < kPeers; ++peer) scheduler_.Remove(0, PeerIndex(peer), 1);
  }

  void Step() {
    const uint32_t tenant = Draw(kTenants), peer = Draw(kPeers);
    const bool urgent = Draw(3) == 0;
    switch (Draw(10)) {
      case 0:
      case 1: {
        const uint64_t bytes = Draw(4) == 0 ? Draw(50) : Draw(5) * 1000;
        scheduler_.Add(tenant, PeerIndex(peer), places_[peer], bytes, 0, urgent);
        naive_.Add(tenant, peer, urgent, bytes);
        break;
      }
      case 2: {
        const uint64_t bytes = std::min<uint64_t>(naive_.Unposted(tenant, peer, urgent), Draw(3000));
        scheduler_.Remove(tenant, PeerIndex(peer), bytes, urgent);
        naive_.Remove(tenant, peer, urgent, bytes);
        break;
      }
      case 3:
        now_ += kTick * (Draw(20) == 0 ? 20 : Draw(2));
        break;
      case 4:
        if (Draw(20) == 0) SetShares();
        if (Draw(20) == 0) Expect(1 + Draw(kPriorities - 1));
        break;
      case 5:
      case 6:
        Post(Draw(40));
        break;
      default:
        End();
    }
  }
  uint64_t posted() const { return posted_; }

 private:
  struct Chunk {
    uint32_t tenant, peer;
    uint64_t bytes;
  };

  uint32_t Draw(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }
  void SetShares() {
    RailShares shares;
    for (uint32_t t = 0; t < kTenants - 1; ++t) shares.tenants.push_back({1 + Draw(3), Draw(kPriorities)});
    shares.highest_priority = Draw(kPriorities);
    scheduler_.SetShares(shares);
    naive_.SetShares(shares);
  }
  void Expect(uint32_t priority) {
    scheduler_.Expect(priority, now_);
    naive_.Expect(priority, now_);
  }
  void Post(uint32_t limit) {
    while (limit-- > 0) {
      const std::optional<RailScheduler::Choice> choice = scheduler_.Next(now_);
      const std::optional<NaiveScheduler::Choice> expected = naive_.Next(now_);
      ASSERT_EQ(choice.has_value(), expected.has_value());
      if (!choice.has_value()) return;
      ASSERT_EQ(choice->tenant, expected->tenant);
      ASSERT_EQ(choice->peer.value(), expected->peer);
      ASSERT_EQ(choice->urgent, expected->urgent);
      const uint64_t unposted = naive_.Unposted(expected->tenant, expected->peer, expected->urgent);
      const uint64_t bytes = std::min(unposted, choice->piece_bytes);
      scheduler_.OnPosted(choice->tenant, choice->peer, bytes, now_, choice->urgent);
      naive_.OnPosted(*expected, bytes, now_);
      chunks_.push_back({expected->tenant, expected->peer, bytes});
      ++posted_;
    }
  }
  // Not acknowledged, so that windows and pauses do not follow the rate.
  void End() {
    if (chunks_.empty()) return;
    std::swap(chunks_[Draw(static_cast<uint32_t>(std::min<size_t>(3, chunks_.size())))], chunks_.back());
    const Chunk chunk = chunks_.back();
    chunks_.pop_back();
    scheduler_.OnEnded(chunk.tenant, PeerIndex(chunk.peer), chunk.bytes, /*acknowledged=*/false, now_);
    naive_.OnEnded(chunk.tenant, chunk.peer, chunk.bytes, now_);
  }

  std::mt19937_64 random_;
  absl::Time now_ = absl::UnixEpoch();
  RailProgress progress_;
  RailScheduler scheduler_{kRail, &progress_};
  NaiveScheduler naive_;
  std::array<uint32_t, kPeers> places_{};
  std::vector<Chunk> chunks_;
  uint64_t posted_ = 0;
};

TEST(RailSchedulerWalkTest, ChoosesWhatANaiveOneChooses) {
  uint64_t posted = 0;
  for (const uint64_t seed : testing::Seeds(100)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    SchedulerWalk walk(seed);
    for (int step = 0; step < 3000 && !::testing::Test::HasFailure(); ++step) walk.Step();
    if (::testing::Test::HasFailure()) return;
    posted += walk.posted();
  }
  EXPECT_GT(posted, 1000u);
}

}  // namespace
}  // namespace railsd
