// Policies beside each other, in the fluid model.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "agent/plan/plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/seeds.h"
#include "tests/unit/sim/network/exchange.h"

namespace railsd::sim {
namespace {

using rails::workload::Generator;
using rails::workload::TrafficMatrix;

constexpr double kRounding = 1 + 1e-6;
constexpr uint64_t kDaemonsChunkBytes = PlanOptions().chunk_bytes;

double SecondsOf(const Fabric& fabric, const TrafficMatrix& matrix, std::string_view policy, double tolerance = 1e-3) {
  return MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .fluid = {.tolerance = tolerance}})
      .seconds;
}

class WorkloadTest : public ::testing::TestWithParam<Generator> {};
INSTANTIATE_TEST_SUITE_P(All, WorkloadTest, ::testing::ValuesIn(rails::workload::kAllGenerators),
                         [](const auto& info) { return std::string(GeneratorName(info.param)); });

TEST_P(WorkloadTest, PlannerIsWithinTwoPercentOfTheBoundAndNeverBehindTheOthers) {
  for (const size_t nodes : {8, 64}) {
    if (railsd::testing::kSanitized && nodes > 8) continue;  // slow
    const Fabric fabric = MakeFabric(nodes);
    const TrafficMatrix matrix = MakeMatrix(GetParam(), nodes, 16 * kMiB, nodes);
    const double bound = BoundSeconds(fabric, matrix);
    const double planner = SecondsOf(fabric, matrix, "planner");
    const double planner_static = SecondsOf(fabric, matrix, "planner_static");
    EXPECT_LE(planner, 1.02 * bound);
    EXPECT_LE(planner_static, 1.02 * bound);
    for (const std::string_view other :
         {"ecmp", "pinned", "aligned", "plb", "lpt_flows", "rails_paper", "round_robin", "reps"}) {
      const double seconds = SecondsOf(fabric, matrix, other, 1e-2);
      RecordProperty(std::string(other) + "_" + std::to_string(nodes), std::to_string(seconds / bound));
      EXPECT_LE(planner, std::max(seconds * kRounding, 1.001 * bound)) << other << " on " << nodes << " nodes";
    }
  }
}

TEST_P(WorkloadTest, OneRailAtHalfSpeedStaysWithinFivePercentOfItsBound) {
  Fabric fabric = MakeFabric(8);
  fabric.rail_bytes_per_second[3] /= 2;
  const TrafficMatrix matrix = MakeMatrix(GetParam(), 8, 16 * kMiB);
  for (const std::string_view policy : {"planner", "planner_static"}) {
    EXPECT_LE(SecondsOf(fabric, matrix, policy), 1.05 * BoundSeconds(fabric, matrix)) << policy;
  }
  EXPECT_GE(SecondsOf(fabric, matrix, "round_robin"), 1.5 * BoundSeconds(fabric, matrix));
  // A rail that acknowledges at half the rate gets half the packets, although no switch marks them.
  EXPECT_LE(SecondsOf(fabric, matrix, "reps", 1e-2), 1.15 * BoundSeconds(fabric, matrix));
}

TEST_P(WorkloadTest, OwnRailSendsFromAndToTheRailOfTheSource) {
  const Fabric fabric = MakeFabric(4);
  const TrafficMatrix matrix = MakeMatrix(GetParam(), 4, 16 * kMiB);
  const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "own_rail"});
  std::vector<double> sent(fabric.nics(), 0), received(fabric.nics(), 0);
  for (size_t s = 0; s < matrix.size(); ++s) {
    for (size_t d = 0; d < matrix.size(); ++d) {
      if (s / fabric.gpus_per_node == d / fabric.gpus_per_node) continue;
      const size_t rail = fabric.OwnRail(s % fabric.gpus_per_node);
      sent[fabric.Nic(s / fabric.gpus_per_node, rail)] += static_cast<double>(matrix.at(s, d));
      received[fabric.Nic(d / fabric.gpus_per_node, rail)] += static_cast<double>(matrix.at(s, d));
    }
  }
  EXPECT_THAT(outcome.sent_bytes, ::testing::Pointwise(::testing::DoubleNear(1), sent));
  EXPECT_THAT(outcome.received_bytes, ::testing::Pointwise(::testing::DoubleNear(1), received));
}

TEST_P(WorkloadTest, OneRailThatDiesHalfWayStaysWithinTenPercentOfItsBound) {
  Fabric fabric = MakeFabric(8);
  const TrafficMatrix matrix = MakeMatrix(GetParam(), 8, 16 * kMiB);
  fabric.changes = {{.at = absl::Seconds(BoundSeconds(fabric, matrix) / 2), .rail = 5, .bytes_per_second = 0}};
  EXPECT_LE(SecondsOf(fabric, matrix, "planner"), 1.10 * BoundSeconds(fabric, matrix));
  fabric.changes[0].node = 2;
  EXPECT_LE(SecondsOf(fabric, matrix, "planner"), 1.10 * BoundSeconds(fabric, matrix)) << "at one node only";
}

// Exchanges so short that each goes over one rail: as many of them over every rail of a receiver as the numbers allow.
TEST(CompareTest, ShortExchangesAreEvenAtReceivers) {
  for (const size_t nodes : {8, 16, 72}) {
    Fabric fabric = MakeFabric(nodes);
    fabric.gpus_per_node = 1;
    TrafficMatrix matrix(nodes);
    for (size_t s = 0; s < nodes; ++s) {
      for (size_t d = 0; d < nodes; ++d) matrix.at(s, d) = s == d ? 0 : 8000;
    }
    const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "planner"});
    const double most = *std::max_element(outcome.received_bytes.begin(), outcome.received_bytes.end());
    const double pairs = static_cast<double>(nodes - 1), rails = static_cast<double>(fabric.rails());
    EXPECT_NEAR(most, 8000 * std::ceil(pairs / rails), 1) << nodes << " nodes";
    EXPECT_LE(outcome.seconds, kRounding * SecondsOf(fabric, matrix, "rails_paper")) << nodes << " nodes";
  }
}

TEST(CompareTest, SharesAreCountedByPeerAndRail) {
  const Fabric fabric = MakeFabric(3, 4, 4);
  TrafficMatrix matrix(12);
  for (size_t s = 0; s < 4; ++s) {
    for (size_t d = 4; d < 8; ++d) matrix.at(s, d) = 4 * kMiB;  // node 0 to node 1, in 64 chunks
  }
  matrix.at(4, 8) = 1000;  // node 1 to node 2: too short for several rails
  const auto shares = [&](std::string_view policy) {
    return MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy}).shares;
  };
  for (const std::string_view policy :
       {"planner", "planner_static", "rails_paper", "round_robin", "own_rail", "aligned", "pinned", "lpt_flows"}) {
    EXPECT_THAT(shares(policy), ::testing::ElementsAre(4, 5, 1)) << policy;
  }
  EXPECT_THAT(shares("reps"), ::testing::ElementsAre(4, 8, 4)) << "every rail has a part of each flow";
  EXPECT_THAT(shares("optimum"), ::testing::IsEmpty());
  // Two stages: the short exchange goes beside the long one, which then goes on.
  EXPECT_THAT(shares("fast"), ::testing::ElementsAre(8, 12, 4));
}

TEST(CompareTest, EvenSendersAreNotEnough) {
  // The paper's trap: two senders with as much for each of two destinations. By their own sums both senders lay the
  // first destination on rail 0 and the second on rail 1: each is even, and each destination receives through one NIC.
  const Fabric fabric = MakeFabric(4, 2, 1);
  TrafficMatrix matrix(4);
  for (const size_t source : {0, 1}) {
    for (const size_t destination : {2, 3}) matrix.at(source, destination) = kMiB;
  }
  const double bound = BoundSeconds(fabric, matrix);
  for (const NetworkMode mode : {NetworkMode::kFluid, NetworkMode::kPacket}) {
    for (const std::string_view policy : {"rails_paper", "lpt_flows"}) {
      const Outcome paper = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .mode = mode});
      EXPECT_DOUBLE_EQ(paper.sent_bytes[0], paper.sent_bytes[1]);
      EXPECT_DOUBLE_EQ(paper.received_bytes[fabric.Nic(2, 0)], 2 * kMiB);
      EXPECT_DOUBLE_EQ(paper.received_bytes[fabric.Nic(2, 1)], 0);
      EXPECT_NEAR(paper.seconds / bound, 2, 0.02) << policy;
    }
    const Outcome planner = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "planner", .mode = mode});
    EXPECT_LE(planner.OverBound(), 1.02);
  }
}

TEST(CompareTest, LateBindingMovesWhatASlowRailWouldEndLast) {
  // Long enough for LateBinder's thresholds: 1 GiB a rank.
  Fabric fabric = MakeFabric(4);
  const TrafficMatrix matrix = MakeMatrix(Generator::kMixtral, 4, 1024 * kMiB);
  fabric.changes = {{.at = absl::Seconds(BoundSeconds(fabric, matrix) / 4), .rail = 2, .bytes_per_second = kSpeed / 4}};
  const double bound = BoundSeconds(fabric, matrix);
  const Outcome moved = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "planner"});
  EXPECT_GT(moved.moves, 0);
  EXPECT_LE(moved.seconds, 1.10 * bound);
  EXPECT_GE(SecondsOf(fabric, matrix, "planner_static"), 2 * bound);
}

TEST(CompareTest, LateBindingWorksPacketByPacket) {
  Fabric fabric = MakeFabric(2, 4, 4);
  const TrafficMatrix matrix = MakeMatrix(Generator::kPermutation, 2, 128 * kMiB, 1, 4);
  fabric.changes = {{.at = absl::Seconds(BoundSeconds(fabric, matrix) / 4), .rail = 2, .bytes_per_second = kSpeed / 4}};
  const auto carry = [&](std::string_view policy) {
    return MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .mode = NetworkMode::kPacket});
  };
  const Outcome moved = carry("planner");
  EXPECT_GT(moved.moves, 0);
  // A rail's rate is that of its whole stretch of work, as daemons measure it: some time passes until it tells.
  EXPECT_LE(moved.OverBound(), 1.3);
  EXPECT_GE(carry("planner_static").OverBound(), 2);
}

TEST(CompareTest, DeadRailStopsWhatDoesNotReact) {
  Fabric fabric = MakeFabric(4);
  const TrafficMatrix matrix = MakeMatrix(Generator::kUniform, 4, 16 * kMiB);
  fabric.changes = {{.at = absl::Microseconds(50), .rail = 1, .bytes_per_second = 0}};
  for (const PolicyInfo& policy : Policies()) {
    const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy.name});
    EXPECT_EQ(std::isinf(outcome.seconds), !policy.reacts && policy.name != "optimum") << policy.name;
    EXPECT_EQ(outcome.unfinished_bytes > 0, std::isinf(outcome.seconds)) << policy.name;
  }
}

TEST(CompareTest, RailDeadFromTheStartIsAvoided) {
  Fabric fabric = MakeFabric(4);
  fabric.rail_bytes_per_second[6] = 0;
  fabric.changes = {{.at = absl::ZeroDuration(), .rail = 0, .node = 1, .bytes_per_second = 0}};
  const TrafficMatrix matrix = MakeMatrix(Generator::kMixtral, 4, 16 * kMiB);
  for (const std::string_view policy : PolicyNames()) {
    const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy});
    EXPECT_TRUE(std::isfinite(outcome.seconds)) << policy;
    EXPECT_EQ(outcome.sent_bytes[6] + outcome.received_bytes[8], 0) << policy;
  }
}

class ModeTest : public ::testing::TestWithParam<NetworkMode> {};
INSTANTIATE_TEST_SUITE_P(Both, ModeTest, ::testing::Values(NetworkMode::kFluid, NetworkMode::kPacket),
                         [](const auto& info) { return info.param == NetworkMode::kFluid ? "Fluid" : "Packet"; });

TEST_P(ModeTest, RailsComeUpUnderEveryPolicy) {
  const TrafficMatrix matrix = MakeMatrix(Generator::kZipf, 3, 4 * kMiB, 1, 4);
  Fabric dead_first = MakeFabric(3, 4, 4), comes_back = dead_first, one_node = dead_first;
  dead_first.rail_bytes_per_second[0] = 0;
  dead_first.changes = {{.at = absl::Microseconds(50), .rail = 0, .bytes_per_second = kSpeed}};
  comes_back.changes = {{.at = absl::Microseconds(30), .rail = 0, .bytes_per_second = 0},
                        {.at = absl::Microseconds(90), .rail = 0, .bytes_per_second = kSpeed / 2}};
  one_node.changes = {{.at = absl::ZeroDuration(), .rail = 1, .node = 1, .bytes_per_second = 0},
                      {.at = absl::Microseconds(50), .rail = 1, .node = 1, .bytes_per_second = 2 * kSpeed}};
  for (const Fabric& fabric : {dead_first, comes_back, one_node}) {
    for (const std::string_view policy : PolicyNames()) {
      const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .mode = GetParam()});
      EXPECT_TRUE(std::isfinite(outcome.seconds)) << policy;
      EXPECT_EQ(outcome.unfinished_bytes, 0) << policy;
      EXPECT_GE(outcome.seconds * kRounding, outcome.bound_seconds) << policy;
    }
  }
}

TEST_P(ModeTest, RailThatComesUpHasItsPartOfTheWork) {
  Fabric fabric = MakeFabric(2, 2, 2);
  fabric.rail_bytes_per_second[1] = 0;
  fabric.changes = {{.at = absl::Microseconds(50), .rail = 1, .bytes_per_second = kSpeed}};
  const TrafficMatrix matrix = MakeMatrix(Generator::kUniform, 2, 64 * kMiB, 1, 2);
  for (const std::string_view policy : {"planner", "reps"}) {
    const Outcome outcome = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .mode = GetParam()});
    EXPECT_LE(outcome.OverBound(), 1.2) << policy;
    EXPECT_GT(outcome.sent_bytes[1], 24 * kMiB) << policy << " of 64 MiB";
  }
}

TEST_P(ModeTest, PoliciesAreNotAskedWhileNothingMoves) {
  // No rail joins the nodes for 20 hours.
  Fabric fabric = MakeFabric(2, 2, 2);
  fabric.changes = {{.at = absl::Microseconds(20), .rail = 0, .node = 0, .bytes_per_second = 0},
                    {.at = absl::Microseconds(20), .rail = 1, .node = 1, .bytes_per_second = 0},
                    {.at = absl::Hours(20), .rail = 0, .node = 0, .bytes_per_second = kSpeed}};
  const TrafficMatrix matrix = MakeMatrix(Generator::kUniform, 2, 4 * kMiB, 1, 2);
  for (const PolicyInfo& policy : Policies()) {
    if (!policy.reacts) continue;
    const Outcome outcome =
        MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy.name, .mode = GetParam()});
    EXPECT_NEAR(outcome.seconds, 20 * 3600, 1) << policy.name;
    EXPECT_LT(outcome.events, 100'000) << policy.name;
  }
}

TEST(CompareTest, RailThatAlmostStandsStillAsksPoliciesLessAndLess) {
  Fabric fabric = MakeFabric(2, 2, 2);
  fabric.rail_bytes_per_second[1] = 100;  // plb lays flows on it for 12 hours; reps leaves it
  const TrafficMatrix matrix = MakeMatrix(Generator::kUniform, 2, 4 * kMiB, 1, 2);
  EXPECT_GT(SecondsOf(fabric, matrix, "plb"), 3600);
  EXPECT_LT(SecondsOf(fabric, matrix, "reps"), 1e-3);
}

TEST_P(ModeTest, OneFlowAcrossSpinesHasTheSpeedOfItsNic) {
  for (const size_t nodes : {2, 4}) {
    const Fabric fabric = MakeFabric(nodes);
    TrafficMatrix matrix(8 * nodes);
    matrix.at(0, 9) = 50'000'000;
    const Outcome pinned = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "pinned", .mode = GetParam()});
    EXPECT_NEAR(pinned.seconds, 1e-3, 1e-5) << nodes;
  }
}

TEST(CompareTest, LateBindingCostsLittleOnRailsOfVeryUnequalSpeed) {
  // A slow rail that has posted all takes from fast ones only what it carries before they end; a chunk at least moves.
  Fabric fabric = MakeFabric(4, 4, 2);
  fabric.rail_bytes_per_second = {12.5e9, 3.125e9, 12.5e9, 6.25e9};
  fabric.propagation = absl::Microseconds(1);
  for (const uint64_t chunk_bytes : {kMiB, kDaemonsChunkBytes}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const TrafficMatrix matrix = MakeMatrix(Generator::kMixtral, 4, 64 * kMiB, seed, 2);
      const auto carry = [&](std::string_view policy) {
        return MustSimulate({.fabric = fabric,
                             .matrix = matrix,
                             .policy = policy,
                             .mode = NetworkMode::kPacket,
                             .chunk_bytes = chunk_bytes});
      };
      const Outcome moved = carry("planner"), stayed = carry("planner_static");
      EXPECT_LE(moved.seconds, 1.1 * stayed.seconds) << seed << ", chunks of " << chunk_bytes;
    }
  }
}

TEST(CompareTest, LateBindingCostsNothingOnUnequalRails) {
  Fabric fabric = MakeFabric(4, 2, 2);
  for (const double slower : {25e9, 12.5e9}) {
    fabric.rail_bytes_per_second = {2 * slower, slower};
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const TrafficMatrix matrix = MakeMatrix(Generator::kZipf, 4, 64 * kMiB, seed, 2);
      const auto carry = [&](std::string_view policy) {
        return MustSimulate({.fabric = fabric, .matrix = matrix, .policy = policy, .mode = NetworkMode::kPacket});
      };
      EXPECT_LE(carry("planner").seconds, 1.002 * carry("planner_static").seconds) << seed << ", " << slower;
    }
  }
}

// A window of the daemon's short chunks still covers what is under way.
TEST(CompareTest, WindowsDoNotStarveRailsOfModerateDelay) {
  Fabric fabric = MakeFabric(2, 1, 1);
  fabric.rail_bytes_per_second = {3.125e9};
  fabric.propagation = absl::Microseconds(100);
  const TrafficMatrix matrix = MakeMatrix(Generator::kUniform, 2, 64 * kMiB, 1, 1);
  const Outcome outcome = MustSimulate({.fabric = fabric,
                                        .matrix = matrix,
                                        .policy = "planner",
                                        .mode = NetworkMode::kPacket,
                                        .chunk_bytes = kDaemonsChunkBytes});
  EXPECT_LT(outcome.seconds, 1.05 * BoundSeconds(fabric, matrix));
}

TEST(CompareTest, BytesInsideANodeUseItsOwnSpeed) {
  Fabric fabric = MakeFabric(2);
  fabric.inner_bytes_per_second = 1e9;
  TrafficMatrix matrix(16);
  matrix.at(0, 1) = 1000;  // inside node 0
  matrix.at(2, 10) = 500;  // GPU 2 to GPU 2: their own rail
  const Outcome aligned = MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "aligned"});
  EXPECT_DOUBLE_EQ(aligned.inner_seconds, 1e-6);
  EXPECT_DOUBLE_EQ(aligned.seconds, 1e-6);
  matrix.at(2, 13) = 700;  // GPU 2 to GPU 5: PXN moves it inside node 0 first
  matrix.at(0, 1) = 0;
  EXPECT_DOUBLE_EQ(MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "aligned"}).inner_seconds, 0.7e-6);
  EXPECT_DOUBLE_EQ(MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "pinned"}).inner_seconds, 0);
}

TEST(CompareTest, PolicyThatCannotRunSaysSoAtOnce) {
  using ::testing::HasSubstr;
  Fabric fabric = MakeFabric(129, 8, 1);
  fabric.spines = 0;
  const TrafficMatrix matrix(129);
  EXPECT_EQ(CanRun("fast", fabric).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(CanRun("fast", fabric).message()), HasSubstr("up to 128 nodes; there are 129"));
  EXPECT_EQ(Simulate({.fabric = fabric, .matrix = matrix, .policy = "fast"}).status(), CanRun("fast", fabric));
  EXPECT_EQ(CanRun("best", fabric).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(CanRun("pinned", fabric).ok()) << "all GPUs have rail 0";
  fabric.nodes = 128;
  fabric.gpus_per_node = 8;
  EXPECT_TRUE(CanRun("fast", fabric).ok());
  for (const PolicyInfo& policy : Policies()) {
    EXPECT_EQ(CanRun(policy.name, fabric).ok(), policy.name != "pinned") << policy.name;
  }
  EXPECT_THAT(std::string(CanRun("pinned", fabric).message()), HasSubstr("no spines"));
}

TEST(CompareTest, ChunksAreBounded) {
  const Fabric fabric = MakeFabric(2);
  const TrafficMatrix matrix = MakeMatrix(Generator::kUniform, 2, uint64_t{1} << 40);
  for (const std::string_view policy : PolicyNames()) {
    const absl::Status status =
        Simulate(
            {.fabric = fabric, .matrix = matrix, .policy = policy, .chunk_bytes = 1 << 10, .min_chunk_bytes = 1 << 10})
            .status();
    EXPECT_EQ(status.ok(), policy != "rails_paper") << policy << status;
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("give longer chunks"));
  }
}

TEST(CompareTest, HostileRequests) {
  Fabric fabric = MakeFabric(2);
  const TrafficMatrix matrix(16);
  const auto error = [&](const Request& request) { return std::string(Simulate(request).status().message()); };
  using ::testing::HasSubstr;
  EXPECT_THAT(error({.fabric = fabric, .matrix = matrix, .policy = "best"}), HasSubstr("\"best\" is none of optimum"));
  EXPECT_THAT(error({.fabric = fabric, .matrix = TrafficMatrix(8), .policy = "ecmp"}), HasSubstr("2 nodes x 8 GPUs"));
  EXPECT_THAT(error({.fabric = fabric, .matrix = matrix, .policy = "ecmp", .chunk_bytes = 0}),
              HasSubstr("chunk_bytes"));
  EXPECT_THAT(error({.fabric = fabric, .matrix = matrix, .policy = "ecmp", .fluid = {.tolerance = -1}}),
              HasSubstr("tolerance is -1"));
  fabric.changes = {{.at = absl::Seconds(1), .rail = 8}};
  EXPECT_THAT(error({.fabric = fabric, .matrix = matrix, .policy = "ecmp"}), HasSubstr("changes[0].rail is 8"));
  fabric.changes.clear();
  fabric.rail_bytes_per_second[2] = -1;
  EXPECT_THAT(error({.fabric = fabric, .matrix = matrix, .policy = "ecmp"}),
              HasSubstr("rail_bytes_per_second[2] is -1"));
  fabric = MakeFabric(2);
  fabric.spines = 0;
  TrafficMatrix crossing(16);
  crossing.at(0, 9) = 1;
  EXPECT_EQ(Simulate({.fabric = fabric, .matrix = crossing, .policy = "pinned"}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  fabric.rail_bytes_per_second.assign(8, 0);
  EXPECT_EQ(Simulate({.fabric = fabric, .matrix = crossing, .policy = "planner"}).status().code(),
            absl::StatusCode::kUnavailable);
  // No bytes take no time.
  EXPECT_EQ(MustSimulate({.fabric = fabric, .matrix = matrix, .policy = "planner"}).seconds, 0);
}

}  // namespace
}  // namespace railsd::sim
