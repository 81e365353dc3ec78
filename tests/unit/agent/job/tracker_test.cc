#include "agent/job/tracker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/seeds.h"

namespace railsd {
namespace {

TEST(ReceiveTrackerTest, CountsEachByteOnceInAnyOrder) {
  std::mt19937_64 random = testing::SeededRandom();
  for (int round = 0; round < 200; ++round) {
    const uint64_t total = 1 + random() % 500;
    std::vector<uint64_t> cuts{0, total};
    for (int i = 0; i < 20; ++i) cuts.push_back(random() % total);
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<size_t> order(cuts.size() - 1);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    ReceiveTracker tracker(total);
    uint64_t sum = 0;
    for (size_t i : order) {
      EXPECT_FALSE(tracker.complete());
      ASSERT_TRUE(tracker.Add(cuts[i], cuts[i + 1] - cuts[i]));
      sum += cuts[i + 1] - cuts[i];
      EXPECT_EQ(tracker.received_bytes(), sum);
      EXPECT_FALSE(tracker.Add(cuts[i], 1)) << "a byte twice";
    }
    EXPECT_TRUE(tracker.complete());
  }
}

TEST(ReceiveTrackerTest, RefusesWhatLeavesTheFlowAndChangesNothing) {
  ReceiveTracker tracker(100);
  EXPECT_FALSE(tracker.Add(0, 0));
  EXPECT_FALSE(tracker.Add(90, 11));
  EXPECT_FALSE(tracker.Add(~uint64_t{0}, 2));
  EXPECT_FALSE(tracker.Add(1, ~uint64_t{0}));
  ASSERT_TRUE(tracker.Add(40, 20));
  EXPECT_FALSE(tracker.Add(30, 11));
  EXPECT_FALSE(tracker.Add(59, 5));
  EXPECT_FALSE(tracker.Add(0, 100));
  EXPECT_EQ(tracker.received_bytes(), 20u);
  EXPECT_TRUE(tracker.Add(60, 40));
  EXPECT_TRUE(tracker.Add(0, 40));
  EXPECT_TRUE(tracker.complete());
}

// As a hostile sender may: each is an interval of its own, and before all others.
TEST(ReceiveTrackerTest, EverySecondByteBackwards) {
  constexpr uint64_t kTotal = 400'000;
  ReceiveTracker tracker(kTotal);
  for (uint64_t at = kTotal; at > 0; at -= 2) ASSERT_TRUE(tracker.Add(at - 1, 1));
  EXPECT_EQ(tracker.received_bytes(), kTotal / 2);
  for (uint64_t at = 0; at < kTotal; at += 2) ASSERT_TRUE(tracker.Add(at, 1));
  EXPECT_TRUE(tracker.complete());
}

}  // namespace
}  // namespace railsd
