// Each policy's definition, dead rails, errors, determinism, names.
#include <limits>

#include "gmock/gmock.h"
#include "tests/unit/agent/plan/plan_test_util.h"

namespace railsd::plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr PeerIndex kOtherPeer(3);

PlanWorkspace Plan(Policy policy, const std::vector<PlanFlow>& flows, const std::vector<PlanRail>& rails,
                   Ledger* ledger = nullptr) {
  Ledger fresh(rails.size());
  PlanWorkspace plan;
  const PlanOptions options{.policy = policy, .chunk_bytes = kMiB};
  EXPECT_TRUE(BuildPlan(flows, rails, kOtherPeer, options, ledger == nullptr ? &fresh : ledger, &plan).ok());
  ExpectIsPlan(flows, rails, options, plan);
  return plan;
}

std::vector<PlanFlow> AllPairs(uint32_t ranks, uint64_t bytes) {
  std::vector<PlanFlow> flows;
  for (uint32_t s = 0; s < ranks; ++s) {
    for (uint32_t d = 0; d < ranks; ++d) {
      flows.push_back(
          {.bytes = bytes + s, .source_local_rank = s, .destination_local_rank = d, .hash = (uint64_t{s} << 32) | d});
    }
  }
  return flows;
}

TEST(PoliciesTest, PinnedAndAlignedUseTheRanksOwnRail) {
  const std::vector<PlanFlow> flows = AllPairs(8, 3 * kMiB);
  for (const PlanRun& run : Plan(Policy::kPinned, flows, EqualRails(4)).runs) {
    EXPECT_EQ(run.rail.value(), flows[run.flow].source_local_rank % 4);
  }
  for (const PlanRun& run : Plan(Policy::kAligned, flows, EqualRails(4)).runs) {
    EXPECT_EQ(run.rail.value(), flows[run.flow].destination_local_rank % 4);
  }
}

TEST(PoliciesTest, PinnedMovesOnlyTheRanksOfADeadRail) {
  const std::vector<PlanFlow> flows = AllPairs(8, kMiB);
  std::vector<PlanRail> rails = EqualRails(4);
  rails[1].speed_bytes_per_s = 0;
  for (const PlanRun& run : Plan(Policy::kPinned, flows, rails).runs) {
    const uint32_t rank = flows[run.flow].source_local_rank;
    if (rank % 4 == 1) {
      const uint32_t usable[] = {0, 2, 3};
      EXPECT_EQ(run.rail.value(), usable[rank % 3]);
    } else {
      EXPECT_EQ(run.rail.value(), rank % 4);
    }
  }
}

TEST(PoliciesTest, EcmpIsWholeFlowsByHash) {
  const std::vector<PlanFlow> flows = AllPairs(16, 3 * kMiB);
  const PlanWorkspace plan = Plan(Policy::kEcmp, flows, EqualRails(8));
  EXPECT_EQ(plan.runs.size(), flows.size());
  std::vector<uint32_t> rail_of_flow(flows.size());
  std::vector<int> flows_on_rail(8, 0);
  for (const PlanRun& run : plan.runs) {
    rail_of_flow[run.flow] = run.rail.value();
    ++flows_on_rail[run.rail.value()];
  }
  for (const int count : flows_on_rail) EXPECT_GT(count, 10);  // 32 expected: the hash spreads, unevenly
  // A flow's rail does not depend on the other flows or on their order.
  std::vector<PlanFlow> reversed(flows.rbegin(), flows.rend());
  reversed.resize(20);
  for (const PlanRun& run : Plan(Policy::kEcmp, reversed, EqualRails(8)).runs) {
    EXPECT_EQ(run.rail.value(), rail_of_flow[flows.size() - 1 - run.flow]);
  }
}

TEST(PoliciesTest, RoundRobinDealsChunksInTurnAcrossFlowsAndPlans) {
  Ledger ledger(4);
  // 3 chunks on rails 0 1 2, then 2 chunks on 3 0, then 1 on 1.
  const std::vector<PlanFlow> flows = Flows({3 * kMiB, 2 * kMiB, 10});
  EXPECT_THAT(Plan(Policy::kRoundRobin, flows, EqualRails(4), &ledger).rail_bytes,
              ElementsAre(2 * kMiB, kMiB + 10, kMiB, kMiB));
  // The turn goes on: 6 chunks on 2 3 0 1 2 3.
  EXPECT_THAT(Plan(Policy::kRoundRobin, Flows({6 * kMiB}), EqualRails(4), &ledger).rail_bytes,
              ElementsAre(kMiB, kMiB, 2 * kMiB, 2 * kMiB));
  // Chunks of one flow differ by at most a byte: 2 MiB + 2 is three chunks.
  EXPECT_THAT(Plan(Policy::kRoundRobin, Flows({2 * kMiB + 2}), EqualRails(2)).rail_bytes,
              ElementsAre(699052 + 699051, 699051));
}

TEST(PoliciesTest, LptFlowKeepsFlowsWhole) {
  const std::vector<PlanFlow> flows = Flows({10 * kMiB, 7 * kMiB, 6 * kMiB, 5 * kMiB, 0});
  const PlanWorkspace plan = Plan(Policy::kLptFlow, flows, EqualRails(2));
  EXPECT_EQ(plan.runs.size(), 4u);
  EXPECT_THAT(plan.rail_bytes, ElementsAre(15 * kMiB, 13 * kMiB));
  EXPECT_EQ(plan.runs[0].flow, 0u);  // larger flows first
}

TEST(PoliciesTest, DeadRailsCarryNothingUnderAnyPolicy) {
  Random random(Seed());
  for (uint64_t round = 0; round < Rounds(300); ++round) {
    const size_t rails_count = random.Between(1, 8);
    std::vector<PlanRail> rails = EqualRails(rails_count);
    for (PlanRail& rail : rails) {
      if (random.Below(2) == 0) rail.speed_bytes_per_s = 0;
    }
    rails[random.Below(rails_count)] = EqualRails(1)[0];
    std::vector<PlanFlow> flows = AllPairs(4, random.Size(8 * kMiB));
    for (const Policy policy : kAllPolicies) {
      SCOPED_TRACE(PolicyName(policy));
      Plan(policy, flows, rails);
    }
  }
}

TEST(PoliciesTest, SameInputSamePlan) {
  Random random(Seed());
  std::vector<PlanFlow> flows = AllPairs(8, 0);
  for (PlanFlow& flow : flows) flow.bytes = random.Size(8 * kMiB);
  std::vector<PlanRail> rails = EqualRails(5);
  rails[2].speed_bytes_per_s = 3e8;
  for (const Policy policy : kAllPolicies) {
    Ledger one(5);
    Ledger two(5);
    PlanWorkspace reused;
    for (int job = 0; job < 5; ++job) {
      const PlanOptions options{.policy = policy};
      PlanWorkspace fresh;
      ASSERT_TRUE(BuildPlan(flows, rails, kOtherPeer, options, &one, &fresh).ok());
      ASSERT_TRUE(BuildPlan(flows, rails, kOtherPeer, options, &two, &reused).ok());
      ASSERT_EQ(fresh.runs.size(), reused.runs.size());
      for (size_t i = 0; i < fresh.runs.size(); ++i) {
        EXPECT_EQ(fresh.runs[i].flow, reused.runs[i].flow);
        EXPECT_EQ(fresh.runs[i].rail, reused.runs[i].rail);
        EXPECT_EQ(fresh.runs[i].offset_bytes, reused.runs[i].offset_bytes);
        EXPECT_EQ(fresh.runs[i].length_bytes, reused.runs[i].length_bytes);
      }
    }
  }
}

TEST(PoliciesTest, ErrorsNameFieldAndValueAndLeaveTheLedgerAlone) {
  Ledger ledger(2);
  PlanWorkspace plan;
  const auto expect = [&](const std::vector<PlanFlow>& flows, const std::vector<PlanRail>& rails,
                          const PlanOptions& options, absl::StatusCode code, const std::string& text) {
    const absl::Status status = BuildPlan(flows, rails, kOtherPeer, options, &ledger, &plan);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_TRUE(plan.runs.empty());
    EXPECT_THAT(ledger.Sender(), ElementsAre(0, 0));
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const std::vector<PlanFlow> flows = Flows({kMiB});
  expect(flows, EqualRails(2), {.chunk_bytes = 0}, invalid, "chunk_bytes is 0");
  expect(flows, EqualRails(2), {.min_chunk_bytes = 0}, invalid, "min_chunk_bytes is 0");
  expect(flows, EqualRails(2), {.chunk_bytes = 10, .min_chunk_bytes = 11}, invalid, "11 is above chunk_bytes 10");
  expect(flows, EqualRails(3), {}, invalid, "ledger is for 2 rails, the plan for 3");
  std::vector<PlanRail> rails = EqualRails(2);
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const auto& [speed, text] : {std::pair(-1.0, "-1"), std::pair(nan, "nan"), std::pair(infinity, "inf")}) {
    const std::string named = absl::StrCat(": speed_bytes_per_s ", text);
    rails = EqualRails(2);
    rails[1].speed_bytes_per_s = speed;
    expect(flows, rails, {}, invalid, "rail 1" + named);
    expect(Flows({1}), std::vector<PlanRail>(2, rails[1]), {}, invalid, "rail 0" + named);  // rails that are alike
  }
  expect(Flows({uint64_t{1} << 63, 1}), EqualRails(2), {}, invalid, "flow 1: 1 bytes");
  rails = EqualRails(2, 0);
  expect(flows, rails, {}, absl::StatusCode::kUnavailable, "none of the 2 rails is usable");
  // With nothing to send, no rail is needed.
  EXPECT_TRUE(BuildPlan(Flows({0, 0}), rails, kOtherPeer, {}, &ledger, &plan).ok());
  EXPECT_TRUE(plan.runs.empty());
  EXPECT_THAT(plan.rail_bytes, ElementsAre(0, 0));
}

TEST(PoliciesTest, NamesRoundTrip) {
  for (const Policy policy : kAllPolicies) EXPECT_EQ(*ParsePolicy(PolicyName(policy)), policy);
  const auto status = ParsePolicy("fastest").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()),
            "policy \"fastest\" is none of lpt, pinned, aligned, ecmp, round_robin, lpt_flow");
}

TEST(LedgerTest, PairsAreCreatedAtFirstUseAndForgotten) {
  Ledger ledger(2);
  ledger.Pair(PeerIndex(7))[1] = 5;
  EXPECT_THAT(ledger.Pair(PeerIndex(7)), ElementsAre(0, 5));
  EXPECT_THAT(ledger.Pair(PeerIndex(2)), ElementsAre(0, 0));
  ledger.Forget(PeerIndex(7));
  ledger.Forget(PeerIndex(100));
  EXPECT_THAT(ledger.Pair(PeerIndex(7)), ElementsAre(0, 0));
}

TEST(BoundTest, LargerDirectionOverTheSumOfSpeeds) {
  EXPECT_EQ(NodeBoundSeconds(0, 0, 0), 0);
  EXPECT_EQ(NodeBoundSeconds(100, 400, 100), 4);
  EXPECT_EQ(NodeBoundSeconds(400, 100, 100), 4);
  EXPECT_EQ(NodeBoundSeconds(1, 0, 0), std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace railsd::plan_test
