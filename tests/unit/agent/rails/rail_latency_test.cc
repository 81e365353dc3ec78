// Windows and pauses of a rail whose acknowledgements come late, or that was slow for a while.
#include "tests/unit/agent/rails/rail_scheduler_fixture.h"

namespace railsd::testing {
namespace {

class RailLatencyTest : public RailSchedulerTest {
 protected:
  // A rail of `speed_` whose acknowledgements take `latency` more. Runs until `end`; every `cadence` a job of the
  // urgent tenant with `urgent` bytes is announced and queued. Returns bytes carried of tenant kThree (priority 0).
  uint64_t Simulate(absl::Time end, absl::Duration latency, absl::Duration cadence, uint64_t urgent) {
    uint64_t low = 0;
    absl::Time next_job = cadence > absl::ZeroDuration() ? now_ : absl::InfiniteFuture();
    absl::Time wire_free = now_;
    std::deque<absl::Time> ends;
    size_t known = 0;
    for (const Chunk& chunk : chunks_) {
      wire_free += absl::Seconds(static_cast<double>(chunk.bytes) / speed_);
      ends.push_back(wire_free + latency);
      ++known;
    }
    while (now_ < end) {
      if (next_job <= now_) {
        next_job += cadence;
        scheduler_->Expect(1, now_);
        Queue(kUrgent, 1, urgent);
      }
      Post();
      for (; known < chunks_.size(); ++known) {
        wire_free = std::max(wire_free, now_) + absl::Seconds(static_cast<double>(chunks_[known].bytes) / speed_);
        ends.push_back(wire_free + latency);
      }
      absl::Time next = std::min({end, next_job, std::max(now_, scheduler_->NextDeadline())});
      if (!ends.empty()) next = std::min(next, ends.front());
      if (next == now_ && (ends.empty() || ends.front() > now_) && next_job > now_)
        next = now_ + absl::Microseconds(10);
      now_ = next;
      while (!ends.empty() && ends.front() <= now_) {
        ends.pop_front();
        --known;
        if (chunks_.front().tenant == kThree) low += chunks_.front().bytes;
        Acknowledge();
      }
    }
    return low;
  }
};

// A higher priority has a session (and nothing to send). Acknowledgements take 5 ms.
TEST_F(RailLatencyTest, YieldingWindowsDoNotCollapseWhereAcknowledgementsTakeAFewMilliseconds) {
  for (const double speed : {125e6, 1.25e9}) {
    now_ = absl::UnixEpoch();
    SetUpRail(speed);
    SetShares(1);
    Queue(kThree, 0, uint64_t{1} << 40);
    const uint64_t first = Simulate(now_ + absl::Milliseconds(20), absl::Milliseconds(5), absl::ZeroDuration(), 0);
    Simulate(now_ + absl::Seconds(2), absl::Milliseconds(5), absl::ZeroDuration(), 0);
    const uint64_t later = Simulate(now_ + absl::Milliseconds(20), absl::Milliseconds(5), absl::ZeroDuration(), 0);
    EXPECT_GT(later, first / 2) << speed;
  }
}

// Small urgent jobs every 15 ms; the rail is slow for two seconds and then as fast as before.
TEST_F(RailLatencyTest, LowerPrioritiesComeBackAfterASlowTime) {
  for (const double speed : {25e6, 125e6}) {
    now_ = absl::UnixEpoch();
    SetUpRail(speed);
    SetShares(1);
    Queue(kThree, 0, uint64_t{1} << 40);
    const absl::Duration cadence = absl::Milliseconds(15), latency = absl::Microseconds(200);
    constexpr uint64_t kUrgentBytes = 1000;
    const uint64_t before = Simulate(now_ + absl::Seconds(1), latency, cadence, kUrgentBytes);
    speed_ = speed / 100;
    Simulate(now_ + absl::Seconds(2), latency, cadence, kUrgentBytes);
    speed_ = speed;
    Simulate(now_ + absl::Seconds(1), latency, cadence, kUrgentBytes);
    const uint64_t after = Simulate(now_ + absl::Seconds(10), latency, cadence, kUrgentBytes);
    EXPECT_GT(after, 5 * before) << speed;
  }
}

}  // namespace
}  // namespace railsd::testing
