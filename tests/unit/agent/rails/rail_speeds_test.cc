#include "agent/rails/rail_speeds.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace railsd {
namespace {

class RailSpeedsTest : public ::testing::Test {
 protected:
  static constexpr double kSpeed = 25e6;

  // The rail carries 400 kB at this rate, without a pause.
  void Carry(size_t rail, double bytes_per_s) {
    const absl::Duration time = absl::Seconds(400'000 / bytes_per_s);
    now_ += time;
    speeds_->OnStretch(rail, 400'000, time, now_);
  }
  double ForPlan(size_t rail) const { return speeds_->ForPlan(rail, now_); }

  absl::Time now_ = absl::UnixEpoch();
  std::optional<RailSpeeds> speeds_{std::in_place, std::vector<double>{kSpeed, kSpeed}, true};
};

TEST_F(RailSpeedsTest, PlansCountOnWhatASlowRailDelivers) {
  EXPECT_EQ(ForPlan(0), kSpeed) << "nothing is known";
  EXPECT_EQ(speeds_->measured(0), 0);
  Carry(0, 12.5e6);
  EXPECT_NEAR(speeds_->measured(0), 12.5e6, 1);
  EXPECT_EQ(ForPlan(0), kSpeed) << "perhaps it is not the rail: no other has been seen";
  Carry(1, 24e6);
  for (int i = 0; i < 2; ++i) Carry(0, 12.5e6);
  EXPECT_EQ(ForPlan(0), kSpeed) << "twice may be chance";
  Carry(0, 12.5e6);
  EXPECT_NEAR(ForPlan(0), 13e6, 0.5e6);
  EXPECT_EQ(ForPlan(1), kSpeed);
  for (int i = 0; i < 8; ++i) Carry(0, 24e6);
  EXPECT_EQ(ForPlan(0), kSpeed) << "it has become fast again";
  for (int i = 0; i < 20; ++i) Carry(0, 1e6);
  EXPECT_NEAR(ForPlan(0), 2.6e6, 0.2e6) << "enough to see when that changes";
  now_ += absl::Minutes(1);
  EXPECT_EQ(ForPlan(0), kSpeed) << "that is long ago";
}

TEST_F(RailSpeedsTest, AnEstimateOutlivesWhatReceiversAndProcessorsDoToSingleStretches) {
  Carry(1, 25e6);
  for (int i = 0; i < 4; ++i) Carry(0, 12.5e6);
  for (const double rate : {2e6, 4e6, 12.5e6, 3e6, 12.5e6}) Carry(0, rate);
  EXPECT_NEAR(speeds_->measured(0), 12.5e6, 1) << "two in a row may be chance";
  Carry(0, 11e6);
  EXPECT_NEAR(speeds_->measured(0), 12.3e6, 0.1e6) << "near, it counts a little";
  for (const double rate : {2e6, 4e6, 3e6}) Carry(0, rate);
  EXPECT_NEAR(speeds_->measured(0), 4e6, 1) << "the best of three";
}

TEST_F(RailSpeedsTest, BitsOfWorkSayNothing) {
  Carry(1, 25e6);
  for (int i = 0; i < 20; ++i) Carry(0, 12.5e6);
  for (int i = 0; i < 3; ++i) speeds_->OnStretch(0, 50'000, absl::Milliseconds(50), now_);
  EXPECT_NEAR(speeds_->measured(0), 12.5e6, 1);
  for (int i = 0; i < 40; ++i) speeds_->OnStretch(0, 50'000, absl::Milliseconds(50), now_);
  EXPECT_NEAR(speeds_->measured(0), 1e6, 1) << "all work is so short now";
}

TEST_F(RailSpeedsTest, EstimatesOfTheEndsOfARailComeTogether) {
  speeds_->OnTold(0, 5e6, now_);
  EXPECT_EQ(ForPlan(0), kSpeed) << "this end is not slow";
  Carry(1, 25e6);
  for (int i = 0; i < 4; ++i) Carry(0, 12.5e6);
  for (int i = 0; i < 100; ++i) speeds_->OnTold(0, 14e6, now_);
  EXPECT_NEAR(ForPlan(0), 14e6, 0.1e6);
  speeds_->OnTold(0, 2e6, now_);
  EXPECT_NEAR(ForPlan(0), 14e6, 0.1e6) << "another node's trouble";
}

TEST_F(RailSpeedsTest, PlansStayEvenWhereRailsAreNotTheLimit) {
  Carry(1, 10e6);
  for (int i = 0; i < 8; ++i) Carry(0, 5e6);
  EXPECT_EQ(ForPlan(0), kSpeed) << "the best one is far from its speed, too";
}

TEST_F(RailSpeedsTest, PlansStayEvenWhenARailIsNotClearlySlower) {
  Carry(1, 25e6);
  for (int i = 0; i < 8; ++i) Carry(0, 21e6);
  EXPECT_EQ(ForPlan(0), kSpeed);
  for (int i = 0; i < 8; ++i) Carry(0, i % 3 == 2 ? 25e6 : 12.5e6);
  EXPECT_EQ(ForPlan(0), kSpeed) << "noise";
}

TEST_F(RailSpeedsTest, PlansStayEvenWhenBothDeliverTheirSpeed) {
  Carry(1, 500e6);
  for (int i = 0; i < 8; ++i) Carry(0, 50e6);
  EXPECT_EQ(ForPlan(0), kSpeed);
}

TEST_F(RailSpeedsTest, PlansGoByTheConfigurationWhenNothingMayMove) {
  speeds_.emplace(std::vector<double>{kSpeed, kSpeed}, /*adapt=*/false);
  Carry(1, 25e6);
  for (int i = 0; i < 8; ++i) Carry(0, 12.5e6);
  EXPECT_EQ(ForPlan(0), kSpeed);
  EXPECT_LT(speeds_->measured(0), 13e6) << "measured nevertheless, for people";
}

}  // namespace
}  // namespace railsd
