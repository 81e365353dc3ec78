// A rail's scheduler and a simulated rail.
#ifndef RAILSD_TESTS_UNIT_AGENT_RAILS_RAIL_SCHEDULER_FIXTURE_H_
#define RAILSD_TESTS_UNIT_AGENT_RAILS_RAIL_SCHEDULER_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "agent/plan/plan.h"
#include "agent/rails/rail_scheduler.h"

namespace railsd::testing {

// The rail carries chunks in the order in which they were posted.
class RailSchedulerTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;
  static constexpr uint32_t kOne = 0, kThree = 1, kUrgent = 2;  // tenants
  // A rail of 25 MB/s: pieces of 12.5 kB and a window of 112.5 kB, 9 pieces. While a higher priority is there, a window
  // of two pieces for the lower ones.
  static constexpr double kSpeed = 25e6;
  static constexpr uint64_t kPiece = 12'500, kWindow = 112'500;

  struct Chunk {
    uint32_t tenant = 0, peer = 0;
    uint64_t bytes = 0;
    bool urgent = false;
  };

  RailSchedulerTest() { SetUpRail(kSpeed); }
  void SetUpRail(double speed, uint64_t chunk_bytes = kMiB, uint64_t window_bytes = 0) {
    speed_ = speed;
    chunks_.clear();
    left_.clear();
    urgent_left_.clear();
    scheduler_.emplace(SchedulerOptions{speed, chunk_bytes, window_bytes}, &progress_);
    SetShares(0);
  }
  // `highest_priority`: of tenants that have sessions.
  void SetShares(uint32_t highest_priority) {
    shares_.highest_priority = highest_priority;
    scheduler_->SetShares(shares_);
  }
  void Queue(uint32_t tenant, uint32_t peer, uint64_t bytes, uint32_t inflow_ppm = 0) {
    scheduler_->Add(tenant, PeerIndex(peer), places_[peer], bytes, inflow_ppm);
    left_[{tenant, peer}] += bytes;
  }
  // Bytes of an urgent job.
  void QueueUrgent(uint32_t tenant, uint32_t peer, uint64_t bytes) {
    scheduler_->Add(tenant, PeerIndex(peer), places_[peer], bytes, 0, /*urgent=*/true);
    urgent_left_[{tenant, peer}] += bytes;
  }
  // Posts whatever windows allow.
  void Post() {
    while (const std::optional<RailScheduler::Choice> choice = scheduler_->Next(now_)) {
      const uint32_t peer = choice->peer.value();
      uint64_t& left = (choice->urgent ? urgent_left_ : left_)[{choice->tenant, peer}];
      ASSERT_GT(left, 0u);
      const uint64_t bytes = NextChunkBytes(left, choice->piece_bytes);
      left -= bytes;
      scheduler_->OnPosted(choice->tenant, choice->peer, bytes, now_, choice->urgent);
      chunks_.push_back({choice->tenant, peer, bytes, choice->urgent});
    }
  }
  void Acknowledge(bool acknowledged = true) {
    const Chunk chunk = chunks_.front();
    chunks_.pop_front();
    scheduler_->OnEnded(chunk.tenant, PeerIndex(chunk.peer), chunk.bytes, acknowledged, now_);
  }
  // The rail carries so much. Returns the bytes of each tenant.
  std::map<uint32_t, uint64_t> CarryBytes(uint64_t bytes) {
    std::map<uint32_t, uint64_t> carried;
    for (uint64_t sum = 0; sum < bytes;) {
      Post();
      if (chunks_.empty()) break;
      sum += chunks_.front().bytes;
      carried[chunks_.front().tenant] += chunks_.front().bytes;
      most_in_flight_bytes_ = std::max(most_in_flight_bytes_, InFlight());
      now_ += absl::Seconds(static_cast<double>(chunks_.front().bytes) / speed_);
      Acknowledge();
    }
    return carried;
  }
  uint64_t InFlight() const { return progress_.in_flight_bytes.load(); }
  uint64_t InFlightTo(uint32_t peer) const {
    uint64_t bytes = 0;
    for (const Chunk& chunk : chunks_) bytes += chunk.peer == peer ? chunk.bytes : 0;
    return bytes;
  }
  std::vector<uint32_t> PostedPeers() const {
    std::vector<uint32_t> peers;
    for (const Chunk& chunk : chunks_) peers.push_back(chunk.peer);
    return peers;
  }

  absl::Time now_ = absl::UnixEpoch();
  double speed_ = 0;
  RailProgress progress_;
  RailShares shares_{{{.weight = 1}, {.weight = 3}, {.priority = 1}}, 0};
  std::optional<RailScheduler> scheduler_;
  std::map<uint32_t, uint32_t> places_{{0, 0}, {1, 1}, {2, 2}, {3, 3}};  // by peer
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> left_;               // by tenant and peer, of jobs not urgent
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> urgent_left_;
  std::deque<Chunk> chunks_;  // posted
  uint64_t most_in_flight_bytes_ = 0;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_RAILS_RAIL_SCHEDULER_FIXTURE_H_
