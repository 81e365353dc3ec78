// The steady state allocates nothing, under any policy.
#include "tests/support/allocations.h"
#include "tests/unit/agent/plan/plan_test_util.h"

namespace railsd::plan_test {
namespace {

TEST(AllocationTest, NoneOnceTheWorkspaceHasGrown) {
  Random random(1);
  std::vector<PlanFlow> flows(64);
  std::vector<PlanRail> rails = EqualRails(8);
  rails[5].speed_bytes_per_s = 5e8;
  for (const Policy policy : kAllPolicies) {
    Ledger ledger(8);
    PlanWorkspace workspace;
    const PlanOptions options{.policy = policy};
    uint64_t before = 0;
    for (int round = 0; round < 2; ++round) {
      before = testing::AllocationsSoFar().count;
      Random sizes(7);
      for (uint32_t job = 0; job < 200; ++job) {
        for (PlanFlow& flow : flows) flow.bytes = sizes.Size(64 * kMiB);
        ASSERT_TRUE(BuildPlan(flows, rails, PeerIndex(job % 16), options, &ledger, &workspace).ok());
      }
    }
    EXPECT_EQ(testing::AllocationsSoFar().count - before, 0u) << PolicyName(policy);
  }
}

}  // namespace
}  // namespace railsd::plan_test
