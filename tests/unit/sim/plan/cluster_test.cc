// The cluster: who sends and receives what, and the figures made of it.
#include "sim/plan/cluster.h"

#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace railsd::sim {
namespace {

using rails::workload::TrafficMatrix;
using ::testing::ElementsAre;

constexpr uint64_t kMiB = 1 << 20;

ClusterOptions Options(size_t nodes, size_t rails, uint32_t ranks, Policy policy = Policy::kLpt) {
  return {.nodes = nodes,
          .rail_speeds = std::vector<double>(rails, 1e9),
          .ranks_per_node = ranks,
          .plan = {.policy = policy}};
}

TEST(MeasureTest, WorstNodeBusiestNicAndTheBound) {
  // Two nodes, two rails: node 0 sends 30 and 10, node 1 receives them; node 1 sends 20 and 20.
  const NicBytes bytes{.rails = 2, .sent = {30, 10, 20, 20}, .received = {20, 20, 30, 10}};
  const Balance balance = Measure(bytes, {10, 10});
  EXPECT_DOUBLE_EQ(balance.send_max_over_mean, 1.5);
  EXPECT_DOUBLE_EQ(balance.receive_max_over_mean, 1.5);
  EXPECT_DOUBLE_EQ(balance.seconds, 3);
  EXPECT_DOUBLE_EQ(balance.bound_seconds, 2);
  EXPECT_DOUBLE_EQ(balance.CompletionOverBound(), 1.5);
  // With a first rail of three times the speed the same is perfect at node 0's rails.
  EXPECT_DOUBLE_EQ(Measure({.rails = 2, .sent = {30, 10}, .received = {0, 0}}, {30, 10}).send_max_over_mean, 1);
  EXPECT_DOUBLE_EQ(Measure({.rails = 2, .sent = {0, 0}, .received = {0, 0}}, {1, 1}).CompletionOverBound(), 1);
}

TEST(ClusterTest, BytesArriveOnTheRailThatTheyLeftOn) {
  Cluster cluster(Options(3, 4, 2, Policy::kPinned));
  TrafficMatrix ranks(6);
  ranks.at(1, 2) = 7 * kMiB;  // node 0 rank 1 -> node 1
  ranks.at(4, 1) = 5 * kMiB;  // node 2 rank 0 -> node 0
  ranks.at(2, 3) = 9 * kMiB;  // inside node 1: no NIC
  NicBytes bytes;
  ASSERT_TRUE(cluster.Run(ranks, &bytes).ok());
  EXPECT_THAT(bytes.sent, ElementsAre(0, 7 * kMiB, 0, 0, 0, 0, 0, 0, 5 * kMiB, 0, 0, 0));
  EXPECT_THAT(bytes.received, ElementsAre(5 * kMiB, 0, 0, 0, 0, 7 * kMiB, 0, 0, 0, 0, 0, 0));
}

TEST(ClusterTest, LptIsWithinHalfAPercentOfTheBoundOnSkewedTraffic) {
  const auto steps = rails::workload::Generate({.size = 4, .steps = 30, .seed = 11});
  ASSERT_TRUE(steps.ok());
  Cluster lpt(Options(4, 8, 8));
  Cluster pinned(Options(4, 8, 8, Policy::kPinned));
  double pinned_worst = 0;
  for (const auto& step : *steps) {
    const auto ranks = rails::workload::SpreadToRanks(step.dispatch, 8, rails::workload::Spread::kSkewed);
    ASSERT_TRUE(ranks.ok());
    NicBytes bytes;
    ASSERT_TRUE(lpt.Run(*ranks, &bytes).ok());
    const Balance balance = Measure(bytes, std::vector<double>(8, 1e9));
    EXPECT_LE(balance.send_max_over_mean, 1.01);
    EXPECT_LE(balance.receive_max_over_mean, 1.01);
    EXPECT_LE(balance.CompletionOverBound(), 1.005);
    ASSERT_TRUE(pinned.Run(*ranks, &bytes).ok());
    pinned_worst = std::max(pinned_worst, Measure(bytes, std::vector<double>(8, 1e9)).CompletionOverBound());
  }
  EXPECT_GT(pinned_worst, 1.03);
}

TEST(ClusterTest, ErrorsAreReported) {
  Cluster cluster(Options(2, 2, 2));
  NicBytes bytes;
  EXPECT_EQ(cluster.Run(TrafficMatrix(3), &bytes).code(), absl::StatusCode::kInvalidArgument);
  ClusterOptions dead = Options(2, 2, 1);
  dead.rail_speeds = {0, 0};
  TrafficMatrix ranks(2);
  ranks.at(0, 1) = 1;
  EXPECT_EQ(Cluster(dead).Run(ranks, &bytes).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace railsd::sim
