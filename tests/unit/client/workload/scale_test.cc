// Scaling and spreading keep sums exact.
#include "client/workload/workload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rails::workload {
namespace {

using ::testing::HasSubstr;

TEST(ScaleTest, OneFactorForAllSteps) {
  std::vector<Step> steps(2);
  steps[0].dispatch = TrafficMatrix(2);
  steps[0].dispatch.at(0, 0) = 300;
  steps[0].dispatch.at(0, 1) = 500;
  steps[0].dispatch.at(1, 0) = 800;
  steps[1].dispatch = TrafficMatrix(2);
  steps[1].dispatch.at(1, 1) = 801;
  const auto factor = ScaleToBytesPerRank(100, 4, &steps);
  ASSERT_TRUE(factor.ok()) << factor.status();
  EXPECT_EQ(*factor, 0.5);
  EXPECT_EQ(steps[0].dispatch.at(0, 0), 150u);
  EXPECT_EQ(steps[0].dispatch.at(0, 1), 250u);
  EXPECT_EQ(steps[0].dispatch.at(1, 0), 400u);
  EXPECT_EQ(steps[1].dispatch.at(1, 1), 400u);
}

TEST(ScaleTest, RowSumsStayExactWhateverTheFactor) {
  for (const uint64_t bytes : {1ull, 7ull, 16ull << 20, 1ull << 40}) {
    auto steps = Generate({.size = 8, .steps = 5});
    ASSERT_TRUE(steps.ok());
    ASSERT_TRUE(ScaleToBytesPerRank(bytes, 8, &*steps).ok());
    for (const Step& step : *steps) {
      for (size_t s = 0; s < 8; ++s) EXPECT_EQ(step.dispatch.RowSum(s), bytes * 8);
    }
  }
}

TEST(ScaleTest, NothingToScaleAndTooMuch) {
  std::vector<Step> steps;
  EXPECT_THAT(std::string(ScaleToBytesPerRank(1, 1, &steps).status().message()), HasSubstr("nothing to scale"));
  steps.resize(1);
  steps[0].dispatch = TrafficMatrix(3);
  EXPECT_EQ(ScaleToBytesPerRank(1, 1, &steps).status().code(), absl::StatusCode::kInvalidArgument);
  steps[0].dispatch.at(1, 2) = 5;
  EXPECT_THAT(std::string(ScaleToBytesPerRank(~0ull, 8, &steps).status().message()), HasSubstr("bytes_per_rank 184"));
  EXPECT_THAT(std::string(ScaleToBytesPerRank(0, 8, &steps).status().message()), HasSubstr("bytes_per_rank 0"));
  EXPECT_EQ(steps[0].dispatch.at(1, 2), 5u);
}

TEST(SpreadTest, NodePairsKeepTheirBytes) {
  const auto steps = Generate({.size = 5, .seed = 9, .bytes_per_source = 10'000'019});
  ASSERT_TRUE(steps.ok());
  const TrafficMatrix& nodes = (*steps)[0].dispatch;
  for (const Spread spread : {Spread::kEven, Spread::kSkewed}) {
    for (const uint32_t per_node : {1u, 3u, 8u}) {
      const auto ranks = SpreadToRanks(nodes, per_node, spread, 4);
      ASSERT_TRUE(ranks.ok()) << ranks.status();
      EXPECT_EQ(ranks->size(), 5 * per_node);
      EXPECT_EQ(*ranks, *SpreadToRanks(nodes, per_node, spread, 4));
      for (size_t s = 0; s < 5; ++s) {
        for (size_t d = 0; d < 5; ++d) {
          uint64_t sum = 0;
          uint64_t least = ~0ull;
          uint64_t most = 0;
          for (size_t i = 0; i < per_node * per_node; ++i) {
            const uint64_t cell = ranks->at(s * per_node + i / per_node, d * per_node + i % per_node);
            sum += cell;
            least = std::min(least, cell);
            most = std::max(most, cell);
          }
          EXPECT_EQ(sum, nodes.at(s, d));
          if (spread == Spread::kEven) {
            EXPECT_LE(most - least, 1u);
          } else if (per_node > 1) {
            EXPECT_GT(most, least + least / 10);
          }
        }
      }
    }
  }
}

TEST(SpreadTest, SizesAreChecked) {
  EXPECT_THAT(std::string(SpreadToRanks(TrafficMatrix(4), 0).status().message()), HasSubstr("ranks_per_node 0"));
  EXPECT_THAT(std::string(SpreadToRanks(TrafficMatrix(9), 1000).status().message()), HasSubstr("on 9 nodes"));
}

TEST(MatrixTest, Sums) {
  TrafficMatrix matrix(2);
  matrix.at(0, 1) = 3;
  matrix.at(1, 1) = 4;
  EXPECT_EQ(matrix.RowSum(0), 3u);
  EXPECT_EQ(matrix.ColumnSum(1), 7u);
  EXPECT_EQ(matrix.Total(), 7u);
  EXPECT_EQ(matrix.Transposed().at(1, 0), 3u);
}

}  // namespace
}  // namespace rails::workload
