// The fluid model against closed forms.
#include "sim/network/fluid.h"

#include <cmath>
#include <numeric>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/seeds.h"
#include "tests/unit/sim/network/exchange.h"

namespace railsd::sim {
namespace {

using rails::workload::Generator;
using rails::workload::TrafficMatrix;
using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Le;

Transfer Make(uint32_t source, uint32_t destination, uint16_t rail, double bytes, float weight = 1) {
  return {
      .path = {.source_node = source, .destination_node = destination, .source_rail = rail, .destination_rail = rail},
      .weight = weight,
      .bytes = bytes};
}

Outcome Carry(const Fabric& fabric, std::vector<Transfer> transfers, Sharing sharing = Sharing::kByWeight,
              uint32_t stages = 1, double tolerance = 0) {
  return RunFluid(fabric, {.transfers = std::move(transfers), .sharing = sharing, .stages = stages},
                  {.tolerance = tolerance}, 0, nullptr);
}

Fabric Unit(size_t nodes, std::vector<double> speeds = {1}) {
  return {.nodes = nodes, .gpus_per_node = 1, .rail_bytes_per_second = std::move(speeds)};
}

TEST(FluidTest, OneFlowTakesBytesOverSpeedAndThePropagation) {
  Fabric fabric = Unit(2, {4});
  fabric.propagation = absl::Seconds(0.5);
  const Outcome outcome = Carry(fabric, {Make(0, 1, 0, 12)});
  EXPECT_DOUBLE_EQ(outcome.network_seconds, 3 + 2 * 0.5);
  EXPECT_DOUBLE_EQ(outcome.sent_bytes[0], 12);
  EXPECT_DOUBLE_EQ(outcome.received_bytes[1], 12);
  EXPECT_DOUBLE_EQ(outcome.send_busy_seconds[0], 3);
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[0 * 2 + 1], 4);
}

TEST(FluidTest, IncastSharesTheReceiver) {
  // Equal shares: the small flow ends at 2 * 3, the others share what it leaves. The receiver is never idle.
  const Outcome outcome = Carry(Unit(3), {Make(0, 2, 0, 3), Make(1, 2, 0, 9)});
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[0 * 3 + 2], 6);
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[1 * 3 + 2], 12);
  EXPECT_DOUBLE_EQ(outcome.receive_busy_seconds[2], 12);
}

TEST(FluidTest, SharesFollowWeights) {
  const Outcome outcome = Carry(Unit(3), {Make(0, 2, 0, 3, 1), Make(1, 2, 0, 9, 3)});
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[0 * 3 + 2], 12);
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[1 * 3 + 2], 12);
}

TEST(FluidTest, MaxMinGivesWhatOneBottleneckLeavesToTheOthers) {
  // Node 0 sends to 2 and 3; node 1 sends to 2 at the same time. NIC 2 receives from two, so 0 -> 3 has 1/2 as well;
  // then 0 -> 2 and 0 -> 3 end together.
  const Outcome outcome = Carry(Unit(4), {Make(0, 2, 0, 1), Make(0, 3, 0, 1), Make(1, 2, 0, 1)});
  EXPECT_DOUBLE_EQ(outcome.network_seconds, 2);
  // With a third sender to node 2, 0 -> 2 has 1/3 and 0 -> 3 the other 2/3.
  const Outcome more = Carry(Unit(5), {Make(0, 2, 0, 1), Make(0, 3, 0, 1), Make(1, 2, 0, 1), Make(4, 2, 0, 1)});
  EXPECT_DOUBLE_EQ(more.pair_finish_seconds[0 * 5 + 3], 1.5);
  EXPECT_DOUBLE_EQ(more.pair_finish_seconds[0 * 5 + 2], 3);
}

TEST(FluidTest, PermutationRunsAtLineRate) {
  std::vector<Transfer> transfers;
  for (uint32_t node = 0; node < 8; ++node) transfers.push_back(Make(node, (node + 3) % 8, 0, 5));
  EXPECT_DOUBLE_EQ(Carry(Unit(8), transfers).network_seconds, 5);
}

TEST(FluidTest, SharingByBytesLeftMeetsTheBusiestNic) {
  // By equal shares node 0 would end the 2 bytes to node 1 first, and then wait for node 3's NIC.
  const std::vector<Transfer> transfers = {Make(0, 1, 0, 2), Make(0, 3, 0, 8), Make(2, 3, 0, 2)};
  EXPECT_DOUBLE_EQ(Carry(Unit(4), transfers, Sharing::kByBytesLeft).network_seconds, 10);
  EXPECT_DOUBLE_EQ(
      Carry(Unit(4), {Make(0, 1, 0, 5), Make(0, 3, 0, 5), Make(2, 3, 0, 5)}, Sharing::kByBytesLeft).network_seconds,
      10);
}

// Rates by bytes left are set once. A change of speeds sets them anew, also one that changes nothing.
TEST(FluidTest, RatesByBytesLeftLastUntilTheEnd) {
  std::mt19937_64 random = railsd::testing::SeededRandom();
  const auto below = [&random](uint32_t end) { return static_cast<uint32_t>(random() % end); };
  Fabric fabric = Unit(12, {1, 3});
  fabric.spines = 2;
  fabric.spine_bytes_per_second = 2;
  std::vector<Transfer> transfers;
  for (uint32_t source = 0; source < 12; ++source) {
    for (uint32_t destination = 0; destination < 12; ++destination) {
      if (source == destination || below(3) == 0) continue;
      transfers.push_back(Make(source, destination, static_cast<uint16_t>(below(2)), std::exp2(below(200) / 10.0)));
      if (below(4) > 0) continue;
      Path& path = transfers.back().path;
      path.destination_rail = 1 - path.source_rail;
      path.spine = below(2);
    }
  }
  const Outcome once = Carry(fabric, transfers, Sharing::kByBytesLeft);
  for (int i = 1; i < 500; ++i) {
    fabric.changes.push_back({.at = absl::Seconds(once.network_seconds * i / 500), .rail = 0, .bytes_per_second = 1});
  }
  const Outcome again = Carry(fabric, transfers, Sharing::kByBytesLeft);
  EXPECT_LE(once.events, 2);
  EXPECT_GE(again.events, 500);
  for (size_t i = 0; i < once.pair_finish_seconds.size(); ++i) {
    EXPECT_NEAR(once.pair_finish_seconds[i], again.pair_finish_seconds[i], 1e-9 * once.network_seconds) << i;
  }
  for (size_t nic = 0; nic < once.sent_bytes.size(); ++nic) {
    EXPECT_NEAR(once.sent_bytes[nic], again.sent_bytes[nic], 1e-9 * once.sent_bytes[nic]) << nic;
    EXPECT_NEAR(once.received_bytes[nic], again.received_bytes[nic], 1e-9 * once.received_bytes[nic]) << nic;
    EXPECT_NEAR(once.send_busy_seconds[nic], again.send_busy_seconds[nic], 1e-9 * once.network_seconds) << nic;
  }
}

TEST(FluidTest, StagesFollowEachOther) {
  Transfer second = Make(0, 1, 0, 3);
  second.stage = 1;
  const Outcome outcome = Carry(Unit(4), {second, Make(0, 2, 0, 2), Make(3, 1, 0, 4)}, Sharing::kByWeight, 2);
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[0 * 4 + 1], 7);
}

TEST(FluidTest, SpinesLimitWhatCrossesRails) {
  Fabric fabric = Unit(4, {1, 1});
  fabric.spines = 1;
  fabric.spine_bytes_per_second = 0.5;
  Transfer crossing = Make(0, 1, 0, 1);
  crossing.path.destination_rail = 1;
  crossing.path.spine = 0;
  Transfer other = crossing;
  other.path.source_node = 2;
  other.path.destination_node = 3;
  // Two transfers share the link at 1/4 each; a third one stays on its rail.
  const Outcome outcome = Carry(fabric, {crossing, other, Make(2, 3, 0, 3)});
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[0 * 4 + 1], 4);
  EXPECT_DOUBLE_EQ(outcome.pair_finish_seconds[2 * 4 + 3], 4);
}

TEST(FluidTest, RailsThatChangeAndDie) {
  Fabric fabric = Unit(2, {2, 1});
  fabric.changes = {{.at = absl::Seconds(2), .rail = 0, .bytes_per_second = 1},
                    {.at = absl::Seconds(3), .rail = 1, .node = 1, .bytes_per_second = 0}};
  // Rail 0: 4 bytes by 2 s, then 2 more in 2 s.
  EXPECT_DOUBLE_EQ(Carry(fabric, {Make(0, 1, 0, 6), Make(0, 1, 1, 2)}).network_seconds, 4);
  const Outcome dead = Carry(fabric, {Make(0, 1, 0, 6), Make(0, 1, 1, 5)});
  EXPECT_TRUE(std::isinf(dead.network_seconds));
  EXPECT_EQ(dead.unfinished_bytes, 2);
  EXPECT_DOUBLE_EQ(dead.sent_bytes[1], 3);
}

TEST(FluidTest, UniformAllToAllMeetsTheBoundUnderEveryEvenPolicy) {
  const Fabric fabric = MakeFabric(8);
  TrafficMatrix even(64);
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < 64; ++j) even.at(i, j) = i / 8 == j / 8 ? 0 : kMiB;
  }
  for (const std::string_view policy : {"optimum", "planner", "planner_static", "reps", "fast", "aligned"}) {
    const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = even, .policy = policy});
    EXPECT_NEAR(outcome.OverBound(), 1, 1e-3) << policy;
    EXPECT_NEAR(outcome.bound_seconds, 56.0 * 8 * kMiB / (8 * kSpeed), 1e-12);
  }
}

TEST(FluidTest, EveryByteIsSentAndReceivedOnceUnderEveryPolicy) {
  Fabric fabric = MakeFabric(8);
  const TrafficMatrix matrix = MakeMatrix(Generator::kZipf, 8, kMiB);
  double between = 0;
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < 64; ++j) between += i / 8 == j / 8 ? 0 : static_cast<double>(matrix.at(i, j));
  }
  for (const std::string_view policy : PolicyNames()) {
    const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .timeline_bins = 50});
    const auto sum = [](const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); };
    EXPECT_NEAR(sum(outcome.sent_bytes) / between, 1, 1e-9) << policy;
    EXPECT_NEAR(sum(outcome.received_bytes) / between, 1, 1e-9) << policy;
    EXPECT_EQ(outcome.unfinished_bytes, 0) << policy;
    EXPECT_GE(outcome.OverBound(), 1 - 1e-9) << policy;
    EXPECT_THAT(outcome.send_busy_seconds, Each(AllOf(Ge(0), Le(outcome.seconds * (1 + 1e-9))))) << policy;
    const double in_timeline = policy == "optimum" ? between : sum(outcome.timeline.bytes);
    EXPECT_NEAR(in_timeline / between, 1, 1e-9) << policy;
    EXPECT_LE(outcome.timeline.bins(), 100) << policy;
  }
}

TEST(FluidTest, ToleranceCostsNoMoreThanThreeTimesItself) {
  const Fabric fabric = MakeFabric(8);
  for (const Generator generator : {Generator::kSparse, Generator::kMixtral, Generator::kZipf}) {
    if (railsd::testing::kSanitized && generator != Generator::kSparse) continue;  // slow
    const TrafficMatrix matrix = MakeMatrix(generator, 8, 4 * kMiB, 3);
    for (const std::string_view policy : {"planner_static", "ecmp", "pinned", "reps"}) {
      const Outcome exact =
          MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .fluid = {.tolerance = 0}});
      for (const double tolerance : {1e-3, 1e-2}) {
        const Outcome rough =
            MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .fluid = {.tolerance = tolerance}});
        EXPECT_NEAR(rough.seconds / exact.seconds, 1, 3 * tolerance) << policy << " " << GeneratorName(generator);
      }
    }
  }
}

TEST(FluidTest, BytesBesideGigabytesArrive) {
  const Fabric fabric = MakeFabric(8);
  TrafficMatrix matrix(64);
  uint64_t draw = 1;
  for (size_t i = 0; i < 64; ++i) {
    for (size_t j = 0; j < 64; ++j) {
      draw = draw * 6364136223846793005 + 1442695040888963407;
      constexpr uint64_t kBytes[] = {0, 1, 3, 5000, 10'000'000'000};
      matrix.at(i, j) = kBytes[(draw >> 33) % 5];
    }
  }
  for (const std::string_view policy : PolicyNames()) {
    if (railsd::testing::kSanitized && policy != "planner") continue;  // slow
    for (const double tolerance : {0.0, 1e-2}) {
      const Outcome outcome =
          MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .fluid = {.tolerance = tolerance}});
      EXPECT_TRUE(std::isfinite(outcome.seconds)) << policy;
      EXPECT_GE(outcome.OverBound(), 1 - 1e-9) << policy;
      EXPECT_LE(outcome.OverBound(), 3) << policy;
    }
  }
}

TEST(FluidTest, TheSameRequestGivesTheSameOutcome) {
  const Fabric fabric = MakeFabric(8);
  const TrafficMatrix matrix = MakeMatrix(Generator::kSparse, 8, 4 * kMiB);
  for (const std::string_view policy : PolicyNames()) {
    const Request request{.fabric = fabric, .matrix = matrix, .policy = policy, .seed = 7};
    EXPECT_EQ(MustSimulate(request).pair_finish_seconds, MustSimulate(request).pair_finish_seconds) << policy;
  }
}

}  // namespace
}  // namespace railsd::sim
