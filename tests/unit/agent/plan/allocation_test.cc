// The steady state allocates nothing, under any policy.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/agent/plan/plan_test_util.h"

namespace {
std::atomic<uint64_t> allocations{0};
}

[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace railsd::plan_test {
namespace {

TEST(AllocationTest, NoneOnceTheWorkspaceHasGrown) {
  Random random(1);
  std::vector<PlanFlow> flows(64);
  std::vector<PlanRail> rails = EqualRails(8);
  rails[5].source_speed = 5e8;
  for (const Policy policy : kAllPolicies) {
    Ledger ledger(8);
    PlanWorkspace workspace;
    const PlanOptions options{.policy = policy};
    uint64_t before = 0;
    for (int round = 0; round < 2; ++round) {
      before = allocations.load();
      Random sizes(7);
      for (uint32_t job = 0; job < 200; ++job) {
        for (PlanFlow& flow : flows) flow.bytes = sizes.Size(64 * kMiB);
        ASSERT_TRUE(BuildPlan(flows, rails, PeerIndex(job % 16), options, &ledger, &workspace).ok());
      }
    }
    EXPECT_EQ(allocations.load() - before, 0u) << PolicyName(policy);
  }
}

}  // namespace
}  // namespace railsd::plan_test
