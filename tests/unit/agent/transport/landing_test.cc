#include "agent/transport/landing.h"

#include <gtest/gtest.h>

namespace railsd {
namespace {

TEST(LandingTest, PiecesThatFollowEachOtherAreOneRun) {
  Landing landing;
  EXPECT_EQ(landing.runs(), 0u);
  EXPECT_EQ(landing.bytes(), 0u);
  landing.Add(1000, 10);
  landing.Add(1010, 1);
  landing.Add(1011, 989);
  ASSERT_EQ(landing.runs(), 1u);
  EXPECT_EQ(landing.run(0).begin, 1000u);
  EXPECT_EQ(landing.run(0).end, 2000u);
  EXPECT_EQ(landing.bytes(), 1000u);
}

TEST(LandingTest, PiecesThatEndWhereARunBeginsBelongToIt) {
  Landing landing;
  for (uint64_t i = 10; i > 0; --i) landing.Add(100 * i, 100);
  ASSERT_EQ(landing.runs(), 1u);
  EXPECT_EQ(landing.run(0).begin, 100u);
  EXPECT_EQ(landing.run(0).end, 1100u);
  EXPECT_EQ(landing.bytes(), 1000u);
}

TEST(LandingTest, PiecesOfSeveralStretchesMayTakeTurns) {
  Landing landing;
  for (uint64_t i = 0; i < 10; ++i) {
    landing.Add(500 + i, 1);
    landing.Add(10 * i, 10);
  }
  ASSERT_EQ(landing.runs(), 2u);
  EXPECT_EQ(landing.run(0).begin, 500u);
  EXPECT_EQ(landing.run(0).end, 510u);
  EXPECT_EQ(landing.run(1).begin, 0u);
  EXPECT_EQ(landing.run(1).end, 100u);
  EXPECT_EQ(landing.bytes(), 110u);
}

TEST(LandingTest, BeyondTheRunsOnlyBytesAreCounted) {
  Landing landing;
  for (uint64_t i = 0; i < Landing::kMaxRuns + 5; ++i) landing.Add(100 * i, 7);
  ASSERT_EQ(landing.runs(), Landing::kMaxRuns);
  EXPECT_EQ(landing.bytes(), 7 * (Landing::kMaxRuns + 5));
  landing.Add(7, 3);  // known runs still grow
  EXPECT_EQ(landing.run(0).end, 10u);
  EXPECT_EQ(landing.runs(), Landing::kMaxRuns);
}

TEST(LandingTest, BytesThatLandTwiceCountTwice) {
  Landing landing;
  landing.Add(0, 50);
  landing.Add(0, 50);
  EXPECT_EQ(landing.bytes(), 100u);
  ASSERT_EQ(landing.runs(), 2u);
  EXPECT_EQ(landing.run(1).begin, 0u);
  EXPECT_EQ(landing.run(1).end, 50u);
}

}  // namespace
}  // namespace railsd
