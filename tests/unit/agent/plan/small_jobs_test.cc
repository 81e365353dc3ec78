// Many small jobs, each exchange on one rail: what a sender, a pair of nodes, and all senders to one destination give
// each rail.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/unit/agent/plan/plan_test_util.h"

namespace railsd::plan_test {
namespace {

struct Evenness {
  uint64_t sender_spread = 0;  // of the bytes of all jobs by rail, the worst sender's
  double pair = 0;             // the most of a rail over the mean of rails, of the worst pair
  double destination = 0;      // the same of all senders to a destination
  double job = 0;              // the same in one job, the mean over destinations and jobs
};

double MostOverMean(const std::vector<uint64_t>& bytes) {
  const uint64_t sum = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end()) * bytes.size()) / static_cast<double>(sum);
}

// Every node plans with a ledger of its own, for the other nodes in their order, as it does when all READYs are here.
Evenness PlanAll(uint32_t nodes, size_t rails_count, int jobs,
                 const std::function<uint64_t(uint32_t, uint32_t)>& bytes) {
  using ByRail = std::vector<uint64_t>;
  const ByRail none(rails_count, 0);
  const std::vector<PlanRail> rails = EqualRails(rails_count);
  std::vector<Ledger> ledgers(nodes, Ledger(rails_count));
  std::vector<ByRail> sent(nodes, none), received(nodes, none);
  std::vector<std::vector<ByRail>> pairs(nodes, sent);
  PlanWorkspace plan;
  Evenness found;
  for (int job = 0; job < jobs; ++job) {
    std::vector<ByRail> now(nodes, none);
    for (uint32_t s = 0; s < nodes; ++s) {
      for (uint32_t d = 0; d < nodes; ++d) {
        if (s == d) continue;
        const PlanOptions options = OptionsFor({.source = s, .destination = d, .nodes = nodes, .rails = rails_count},
                                               {.policy = Policy::kLptFlow});
        EXPECT_TRUE(BuildPlan(Flows({bytes(s, d)}), rails, PeerIndex(d), options, &ledgers[s], &plan).ok());
        EXPECT_EQ(plan.runs.size(), 1u);
        for (size_t r = 0; r < rails_count; ++r) {
          for (ByRail* to : {&sent[s], &received[d], &pairs[s][d], &now[d]}) (*to)[r] += plan.rail_bytes[r];
        }
      }
    }
    for (const ByRail& at : now) found.job += MostOverMean(at) / (jobs * nodes);
  }
  for (uint32_t s = 0; s < nodes; ++s) {
    found.sender_spread = std::max(found.sender_spread, SpreadOf(sent[s]));
    found.destination = std::max(found.destination, MostOverMean(received[s]));
    for (uint32_t d = 0; d < nodes; ++d)
      found.pair = s == d ? found.pair : std::max(found.pair, MostOverMean(pairs[s][d]));
  }
  return found;
}

TEST(SmallJobsTest, EqualExchangesSpreadOverTheRailsOfEveryDestinationInEachJob) {
  const Evenness found = PlanAll(16, 8, 1000, [](uint32_t, uint32_t) { return 128 * kKiB; });
  EXPECT_LE(found.sender_spread, 2 * 128 * kKiB);
  EXPECT_LE(found.pair, 1.02);
  EXPECT_LE(found.destination, 1.01);
  EXPECT_LE(found.job, 1.5) << "15 exchanges over 8 rails: 1.07 at best, 8 when all senders choose the same rail";
}

TEST(SmallJobsTest, JobsAreAboutAsEvenAsTheirNumberOfExchangesAllows) {
  for (const auto& [nodes, rails] : {std::pair(8u, 8u), {16, 8}, {33, 8}, {64, 8}, {100, 7}, {16, 3}}) {
    for (const int jobs : {1, 4}) {
      const Evenness found = PlanAll(nodes, rails, jobs, [](uint32_t, uint32_t) { return 8192; });
      EXPECT_LE(found.job, 1e-9 + std::ceil(1.0 * nodes / rails) * rails / (nodes - 1)) << nodes << " x " << rails;
      EXPECT_LE(found.sender_spread, 2 * 8192) << nodes << " x " << rails;
    }
  }
}

TEST(SmallJobsTest, ExchangesOfAnyLengthStayEvenPerSenderAndPerPair) {
  Random random(Seed());
  const Evenness found = PlanAll(16, 8, 1000, [&](uint32_t, uint32_t) { return random.Between(1, 256 * kKiB); });
  EXPECT_LE(found.sender_spread, 2 * 256 * kKiB);
  EXPECT_LE(found.pair, 1.05);
  EXPECT_LE(found.destination, 1.02);
}

// A destination gets a little less than two others together, in each job: with the sender's totals alone to go by, all
// of it goes over one rail, and what the others get over the other.
TEST(SmallJobsTest, AHotDestinationGetsItsShareOverAllRails) {
  const Evenness found = PlanAll(
      4, 2, 1000, [](uint32_t s, uint32_t d) -> uint64_t { return d == (s == 0 ? 1 : 0) ? 1'998'000 : 1'000'000; });
  EXPECT_LE(found.sender_spread, 2 * 1'998'000u);
  EXPECT_LE(found.pair, 1.01);
  EXPECT_LE(found.destination, 1.01);
}

}  // namespace
}  // namespace railsd::plan_test
