// Jobs in which not every rank exchanges something with every other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/jobs/local_copies.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FlowWithTest, FindsTheRanksOfAListAndNoOthers) {
  std::mt19937_64 random = SeededRandom();
  for (uint64_t round = 0; round < Rounds(2000); ++round) {
    const uint32_t ranks = 1 + random() % 40, kept = 1 + random() % 8;  // in 8
    std::vector<CheckedFlow> flows;
    std::vector<size_t> place(ranks + 2, SIZE_MAX);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      if (random() % 8 >= kept) continue;
      place[rank] = flows.size();
      flows.push_back({.peer = Rank(rank)});
    }
    for (uint32_t rank = 0; rank < place.size(); ++rank) {
      const CheckedFlow* const found = FlowWith(Rank(rank), flows);
      ASSERT_EQ(found, place[rank] == SIZE_MAX ? nullptr : &flows[place[rank]]) << "rank " << rank << " of " << ranks;
    }
  }
}

// READY names what is sent: ranks that exchange nothing take no room in it.
class SparseTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Rails, SparseTest, ::testing::Bool(), ModeOf);

// Grants are waited for, and other READYs are not. Each node begins with the one after it.
TEST(SparseOrderTest, ReadysGoFirstToNodesThatBringBytes) {
  Cluster cluster({.nodes = 5, .rails = 2});
  Exchange exchange(&cluster, 5, "g");
  Lengths lengths = AllLengths(5, 0);
  lengths[0][1] = lengths[3][1] = 5000;
  exchange.SetLengths(lengths, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] { return !Outgoing<Ready>(cluster, 1).empty(); });
  std::vector<std::string> to;
  for (const auto& [node, message] : cluster.node(1).outbox) {
    if (std::holds_alternative<Ready>(message)) to.push_back(node);
  }
  EXPECT_THAT(to, ElementsAre("n3", "n0", "n2", "n4"));
  exchange.ExpectCompletes(1);
}

TEST_P(SparseTest, OnlyFlowsWithBytesAreNamed) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 6, "g");
  Lengths lengths = AllLengths(6, 0);
  lengths[0][3] = 30000;
  lengths[4][1] = 1;
  lengths[5][2] = 7000;
  lengths[2][4] = 50;
  exchange.SetLengths(lengths, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] { return !Outgoing<Ready>(cluster, 0).empty(); });
  const std::vector<Ready*> readys = Outgoing<Ready>(cluster, 0);
  ASSERT_EQ(readys.size(), 1u);
  ASSERT_EQ(readys[0]->sends.size(), 2u);
  EXPECT_EQ(readys[0]->sends[0].source, Rank(4));
  EXPECT_EQ(readys[0]->sends[0].destination, Rank(1));
  EXPECT_EQ(readys[0]->sends[1].bytes, 30000u);
  ASSERT_EQ(readys[0]->receives.size(), 1u);
  EXPECT_EQ(readys[0]->receives[0].bytes, 7000u);
  exchange.ExpectCompletes(1);
  cluster.ExpectNothingOpen();
}

TEST_P(SparseTest, EmptyFlowsOfAPeerAreTaken) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 4, "g");
  Lengths lengths = AllLengths(4, 0);
  lengths[1][2] = 9000;
  exchange.SetLengths(lengths, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] { return !Outgoing<Ready>(cluster, 0).empty(); });
  Ready* ready = Outgoing<Ready>(cluster, 0)[0];
  ASSERT_TRUE(ready->sends.empty());
  ready->sends = {{Rank(0), Rank(1), 0}, {Rank(2), Rank(1), 0}, {Rank(0), Rank(3), 0}, {Rank(2), Rank(3), 0}};
  exchange.ExpectCompletes(1);
}

// A flow that one end knows nothing of is found whichever end that is, at home and between nodes.
TEST_P(SparseTest, FlowsThatOneEndLeavesOutAreContradictions) {
  struct Case {
    uint32_t source, destination;
    bool sent;
  };
  for (const Case& c : {Case{0, 2, true}, Case{0, 2, false}, Case{0, 1, true}, Case{0, 1, false}}) {
    Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
    Exchange exchange(&cluster, "g", AllLengths(4, 10));
    for (uint32_t r = 0; r < 4; ++r) {
      Submission submission = exchange.For(r, 1);
      if (r == c.source && !c.sent) {
        std::erase_if(submission.sends, [&](const FlowRanges& f) { return f.peer == Rank(c.destination); });
      }
      if (r == c.destination && c.sent) {
        std::erase_if(submission.receives, [&](const FlowRanges& f) { return f.peer == Rank(c.source); });
      }
      ASSERT_TRUE(exchange.trainer(r).Submit(std::move(submission)).ok());
    }
    cluster.Run();
    const JobReport report = exchange.Report(3, 1);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr(absl::StrCat("rank 0 on n0 sends ", c.sent ? 10 : 0, " bytes to rank ", c.destination, " on ",
                                       c.destination % 2 == 0 ? "n0" : "n1", ", which expects ", c.sent ? 0 : 10)));
  }
}

// The planner aligns rails by the places of ranks on their nodes, whichever flows there are.
TEST(SparsePlanTest, PlacesOfRanksDoNotDependOnTheFlows) {
  for (const Policy policy : {Policy::kPinned, Policy::kAligned}) {
    Cluster cluster({.nodes = 2, .rails = 4, .plan = {.policy = policy}});
    Exchange exchange(&cluster, 8, "g");
    Lengths lengths = AllLengths(8, 0);
    lengths[4][7] = 8000;  // the third of its node to the fourth of its
    exchange.SetLengths(lengths, 1);
    exchange.SubmitAll(1);
    cluster.Run();
    exchange.ExpectDone(1);
    const auto report = *exchange.trainer(4).Wait(1);
    EXPECT_EQ(report->rail_tx_bytes[policy == Policy::kPinned ? 2 : 3], 8000u);
  }
}

}  // namespace
}  // namespace railsd::testing
