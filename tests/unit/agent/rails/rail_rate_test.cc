// The rate that the scheduler measures of its rail, and how windows follow it.
#include "tests/unit/agent/rails/rail_scheduler_fixture.h"

namespace railsd::testing {
namespace {

using RailRateTest = RailSchedulerTest;

// Posted bytes cannot move to a faster rail.
TEST_F(RailRateTest, WindowsShrinkOnARailThatIsSlowerThanItsSpeed) {
  constexpr uint64_t kLeastPiece = 8 << 10;
  SetUpRail(kSpeed);
  Queue(kOne, 0, 32000 * kPiece);
  CarryBytes(100 * kPiece);
  EXPECT_EQ(most_in_flight_bytes_, kWindow);
  speed_ = kSpeed / 20;
  CarryBytes(40 * kPiece);
  most_in_flight_bytes_ = 0;
  CarryBytes(40 * kPiece);
  EXPECT_LE(most_in_flight_bytes_, 4 * kLeastPiece) << "about what it carries in 25 ms";
  EXPECT_EQ(progress_.window_bytes, kWindow) << "what is told of the rail stays";
  speed_ = kSpeed;
  CarryBytes(40 * kPiece);
  most_in_flight_bytes_ = 0;
  CarryBytes(40 * kPiece);
  EXPECT_GE(most_in_flight_bytes_, kWindow) << "it is fast again";
}

TEST_F(RailRateTest, OneSlowMomentHardlyShrinksWindows) {
  Queue(kOne, 0, 400 * kPiece);
  CarryBytes(20 * kPiece);
  now_ += absl::Seconds(1);
  CarryBytes(kPiece);
  EXPECT_EQ(InFlight(), kWindow - kPiece);
  Post();
  EXPECT_EQ(InFlight(), kWindow);
}

// Short work and long waits say nothing of what the rail could carry.
TEST_F(RailRateTest, WindowsStayWhileTheyDoNotHoldTheRailBack) {
  speed_ = kSpeed / 100;
  for (int i = 0; i < 40; ++i) {
    Queue(kOne, 0, 1000);
    CarryBytes(1000);
  }
  Queue(kOne, 0, 100 * kPiece);
  Post();
  EXPECT_EQ(InFlight(), kWindow);
}

TEST_F(RailRateTest, AWindowThatIsConfiguredStays) {
  SetUpRail(kSpeed, kMiB, 5 * kPiece);
  speed_ = kSpeed / 20;
  Queue(kOne, 0, 100 * kPiece);
  CarryBytes(50 * kPiece);
  most_in_flight_bytes_ = 0;
  CarryBytes(20 * kPiece);
  EXPECT_GE(most_in_flight_bytes_, 5 * kPiece);
}

TEST_F(RailRateTest, AStretchTellsWhatTheRailDelivers) {
  speed_ = kSpeed / 2;
  Queue(kOne, 0, 64 * kPiece);
  CarryBytes(24 * kPiece);
  EXPECT_FALSE(scheduler_->TakeStretch().has_value()) << "it has not ended";
  EXPECT_EQ(progress_.rate_bytes_per_s.load(), kSpeed / 2) << "known while it goes on";
  CarryBytes(40 * kPiece);
  const std::optional<RailScheduler::Stretch> stretch = scheduler_->TakeStretch();
  ASSERT_TRUE(stretch.has_value());
  EXPECT_EQ(stretch->time, absl::Seconds(2 * static_cast<double>(stretch->bytes) / kSpeed));
  EXPECT_FALSE(scheduler_->TakeStretch().has_value()) << "told once";
}

TEST_F(RailRateTest, AStretchDoesNotCountTheTimeInWhichTheRailWasIdle) {
  for (int i = 0; i < 3; ++i) {
    now_ += absl::Seconds(1);
    Queue(kOne, 0, 32 * kPiece);
    CarryBytes(32 * kPiece);
    const std::optional<RailScheduler::Stretch> stretch = scheduler_->TakeStretch();
    ASSERT_TRUE(stretch.has_value());
    EXPECT_EQ(stretch->bytes, 23 * kPiece) << "until it ran dry: a window is under way then";
    EXPECT_EQ(stretch->time, absl::Microseconds(11'500));
  }
}

TEST_F(RailRateTest, BitsThatComeAfterTheRailRanDryTellNothing) {
  Queue(kOne, 0, 32 * kPiece);
  CarryBytes(24 * kPiece);
  ASSERT_TRUE(scheduler_->TakeStretch().has_value());
  now_ += absl::Milliseconds(50);
  Queue(kOne, 0, kPiece);
  CarryBytes(9 * kPiece);
  EXPECT_FALSE(scheduler_->TakeStretch().has_value());
}

TEST_F(RailRateTest, AStretchEndsWhenItsReceiversLimitTheRail) {
  for (const uint32_t peer : {1u, 2u}) Queue(kOne, peer, 16 * kPiece, 333'333);
  Queue(kOne, 0, 64 * kPiece, 333'333);
  while (left_[std::make_pair(kOne, 1u)] + left_[std::make_pair(kOne, 2u)] > 0) CarryBytes(kPiece);
  const std::optional<RailScheduler::Stretch> stretch = scheduler_->TakeStretch();
  ASSERT_TRUE(stretch.has_value());
  EXPECT_NEAR(static_cast<double>(stretch->bytes) / absl::ToDoubleSeconds(stretch->time), kSpeed, kSpeed / 100);
  speed_ = kSpeed / 3;  // as much as receiver 0 takes from this node
  CarryBytes(100 * kPiece);
  EXPECT_FALSE(scheduler_->TakeStretch().has_value());
}

// Small receivers end early, and their stretch is too short to tell a rate.
TEST_F(RailRateTest, TheReceiversThatAreLeftBeginAnotherStretch) {
  for (const uint32_t peer : {1u, 2u}) Queue(kOne, peer, 2 * kPiece, 333'333);
  Queue(kOne, 0, 64 * kPiece, 333'333);
  speed_ = kSpeed / 3;
  CarryBytes(68 * kPiece);
  EXPECT_EQ(scheduler_->unposted_bytes(), 0u);
  EXPECT_FALSE(scheduler_->TakeStretch().has_value()) << "receiver 0 takes no more, so the rail may be healthy";
}

TEST_F(RailRateTest, ARailIsMeasuredAgainstWhatItsReceiversTake) {
  speed_ = kSpeed / 2;
  Queue(kOne, 0, 64 * kPiece, 500'000);
  CarryBytes(64 * kPiece);
  EXPECT_FALSE(scheduler_->TakeStretch().has_value()) << "they got it, and the rail may be slow or not";
  Queue(kOne, 0, 64 * kPiece, 800'000);
  CarryBytes(64 * kPiece);
  std::optional<RailScheduler::Stretch> stretch = scheduler_->TakeStretch();
  ASSERT_TRUE(stretch.has_value());
  EXPECT_EQ(stretch->time, absl::Seconds(0.8 * 2 * static_cast<double>(stretch->bytes) / kSpeed));
  speed_ = kSpeed / 4;
  Queue(kOne, 0, 64 * kPiece, 500'000);
  CarryBytes(64 * kPiece);
  stretch = scheduler_->TakeStretch();
  ASSERT_TRUE(stretch.has_value());
  EXPECT_EQ(stretch->time, absl::Seconds(2 * static_cast<double>(stretch->bytes) / kSpeed));
}

// The rate that a part of the window allows must not make the window smaller.
TEST_F(RailRateTest, AWindowByInflowDoesNotShrinkWithTheRateThatItAllows) {
  SetUpRail(125e6);
  constexpr uint64_t kFloor = 2 * 62'500;
  Queue(kOne, 0, uint64_t{1} << 30, 100'000);
  for (int i = 0; i < 400; ++i) {
    Post();
    EXPECT_GE(InFlight(), kFloor - 62'500) << i;
    now_ += absl::Milliseconds(6);
    const size_t posted = chunks_.size();
    for (size_t chunk = 0; chunk < posted; ++chunk) Acknowledge();
  }
  Post();
  EXPECT_GE(InFlight(), kFloor);
}

TEST_F(RailRateTest, AShortStretchTellsNothing) {
  Queue(kOne, 0, kPiece);
  CarryBytes(kPiece);  // 0.5 ms
  EXPECT_FALSE(scheduler_->TakeStretch().has_value());
  EXPECT_EQ(progress_.rate_bytes_per_s.load(), 0u);
  SetUpRail(50e9);
  Queue(kOne, 0, 7 * kMiB);
  CarryBytes(7 * kMiB);
  EXPECT_FALSE(scheduler_->TakeStretch().has_value());
  Queue(kOne, 0, 8 * kMiB);
  CarryBytes(8 * kMiB);
  EXPECT_TRUE(scheduler_->TakeStretch().has_value()) << "eight pieces are enough on a fast rail";
}

TEST_F(RailRateTest, AFailureSaysNothingOfTheRate) {
  Queue(kOne, 0, 3 * kPiece);
  Post();
  now_ += absl::Seconds(1);
  Acknowledge(/*acknowledged=*/false);
  Acknowledge();
  Acknowledge();
  EXPECT_FALSE(scheduler_->TakeStretch().has_value());
  Queue(kOne, 0, 32 * kPiece);
  CarryBytes(32 * kPiece);
  EXPECT_TRUE(scheduler_->TakeStretch().has_value()) << "the next one counts again";
}

}  // namespace
}  // namespace railsd::testing
