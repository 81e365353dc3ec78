#include "client/railsctl/replay/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/seeds.h"

namespace rails::ctl {
namespace {

// Every byte of every flow lies in the segment once, and receive ranges keep their distance.
void CheckSide(const std::vector<PlacedFlow>& flows, const std::vector<uint64_t>& bytes, uint64_t segment_bytes,
               uint64_t guard) {
  std::vector<uint64_t> placed(bytes.size(), 0);
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const PlacedFlow& flow : flows) {
    for (const PlacedRange& range : flow.ranges) {
      EXPECT_GT(range.length, 0u);
      EXPECT_EQ(range.flow_offset, placed[flow.peer]);
      placed[flow.peer] += range.length;
      ranges.emplace_back(range.segment_offset, range.segment_offset + range.length);
    }
  }
  EXPECT_EQ(placed, bytes);
  std::sort(ranges.begin(), ranges.end());
  uint64_t free_from = 0;
  for (const auto& [begin, end] : ranges) {
    EXPECT_GE(begin, free_from + guard);
    free_from = end;
  }
  EXPECT_LE(free_from + guard, segment_bytes);
}

TEST(LayOut, PlacesEveryByteOnce) {
  std::mt19937_64 random = railsd::testing::SeededRandom();
  for (int round = 0; round < 200; ++round) {
    std::vector<uint64_t> row(1 + random() % 8), column(row.size());
    for (uint64_t& bytes : row) bytes = random() % 4 == 0 ? 0 : random() % 10000;
    for (uint64_t& bytes : column) bytes = random() % 4 == 0 ? 0 : random() % 10000;
    const auto layout = LayOut(row, column, 1 + random() % 20);
    ASSERT_TRUE(layout.ok());
    CheckSide(layout->sends, row, layout->send_bytes, 0);
    CheckSide(layout->receives, column, layout->receive_bytes, kGuardBytes);
  }
}

TEST(LayOut, CutsFlowsAndNeverMakesEmptyRanges) {
  const auto layout = LayOut({3, 0}, {0, 10}, 4);
  ASSERT_TRUE(layout.ok());
  ASSERT_EQ(layout->sends.size(), 1u);
  EXPECT_EQ(layout->sends[0].ranges.size(), 3u);
  ASSERT_EQ(layout->receives.size(), 1u);
  ASSERT_EQ(layout->receives[0].ranges.size(), 4u);
  EXPECT_GT(layout->receives[0].ranges[0].segment_offset, layout->receives[0].ranges[3].segment_offset);
}

TEST(LayOut, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(LayOut({1, 2}, {1}, 1).ok());
  EXPECT_FALSE(LayOut({1}, {1}, 0).ok());
  EXPECT_FALSE(LayOut({1}, {1}, 2'000'000).ok());
  EXPECT_FALSE(LayOut({~uint64_t{0}}, {1}, 1).ok());
  EXPECT_FALSE(LayOut({1, 1}, {uint64_t{1} << 46, 1}, 1).ok());
  EXPECT_TRUE(LayOut({}, {}, 1).ok());
}

}  // namespace
}  // namespace rails::ctl
