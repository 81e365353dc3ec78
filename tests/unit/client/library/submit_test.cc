// Groups and submissions: numbers, columns, refusals, the rank's own bytes.
#include <cstring>
#include <limits>
#include <string>

#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fate = FakeDaemon::Fate;

class SubmitTest : public GroupTest {};

TEST_F(ClientTest, GroupKnowsItsMembersAndLeaves) {
  auto group = Join(2);
  EXPECT_EQ(group->rank(), 2u);
  EXPECT_EQ(group->world_size(), 4u);
  EXPECT_THAT(group->members(), ElementsAre("node0", "node1", "node2", "node3"));
  EXPECT_TRUE(group->Leave().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(group->Submit({}).status()));
  group.reset();
  EXPECT_EQ(daemon_->leaves(), 1);
  Join().reset();
  EXPECT_EQ(daemon_->leaves(), 2);
}

TEST_F(ClientTest, JoinRefusalsNameTheField) {
  EXPECT_THAT(client_->JoinGroup({.name = "", .world_size = 1}).status().message(), HasSubstr("name"));
  EXPECT_THAT(client_->JoinGroup({.name = "g", .world_size = 0}).status().message(), HasSubstr("world_size"));
  EXPECT_THAT(client_->JoinGroup({.name = "g", .world_size = 2, .rank = 2}).status().message(), HasSubstr("rank 2"));
  daemon_->RefuseJoins(absl::DeadlineExceededError("ranks 1, 3 have not joined"));
  auto group = client_->JoinGroup({.name = "g", .world_size = 4});
  EXPECT_TRUE(absl::IsDeadlineExceeded(group.status()));
  EXPECT_EQ(group.status().message(), "ranks 1, 3 have not joined");
}

TEST_F(ClientTest, SubmissionCarriesColumns) {
  auto a = MakeSegment(), b = MakeSegment();
  auto group = Join(0);
  AllToAllv exchange;
  exchange.tag = 99;
  exchange.vote = 98;
  exchange.urgent = true;
  exchange.timeout = absl::Microseconds(1500);
  exchange.sends.push_back({1, {{a, 0, 10}, {a, 100, 20}, {a, 200, 0}}});
  exchange.sends.push_back({3, {{a, 5, 1}, {a, 6, 1}, {b, 7, 2}, {a, 8, 3}}});
  exchange.sends.push_back({2, {}});
  exchange.receives.push_back({2, {{b, kBytes - 1, 1}}});
  exchange.sends.push_back({0, {{a, 300, 7}}});
  exchange.receives.push_back({0, {{b, 400, 3}, {b, 500, 4}}});
  auto job = group->Submit(exchange);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)->seq(), 1u);
  const auto submissions = daemon_->submissions();
  ASSERT_EQ(submissions.size(), 1u);
  const v1::SubmitAllToAllRequest& request = submissions[0];
  EXPECT_EQ(request.tag(), 99u);
  EXPECT_EQ(request.vote(), 98u);
  EXPECT_TRUE(request.urgent());
  EXPECT_EQ(request.timeout_milliseconds(), 2u);
  EXPECT_EQ(request.job().seq(), 1u);
  EXPECT_EQ(request.job().epoch().counter(), 7u);
  ASSERT_EQ(request.sends_size(), 3);
  EXPECT_EQ(request.sends(0).peer_rank(), 1u);
  EXPECT_THAT(request.sends(0).segment_ids(), ElementsAre(a->id()));
  EXPECT_THAT(request.sends(0).offsets_bytes(), ElementsAre(0, 100, 200));
  EXPECT_THAT(request.sends(0).lengths_bytes(), ElementsAre(10, 20, 0));
  EXPECT_THAT(request.sends(1).segment_ids(), ElementsAre(a->id(), a->id(), b->id(), a->id()));
  ASSERT_EQ(request.receives_size(), 2);
  EXPECT_THAT(request.receives(0).offsets_bytes(), ElementsAre(kBytes - 1));
  EXPECT_EQ(request.sends(2).peer_rank(), 0u) << "the rank itself";
  EXPECT_THAT(request.receives(1).lengths_bytes(), ElementsAre(3, 4));
}

TEST_F(ClientTest, FifteenThousandRanges) {
  auto a = MakeSegment(15'000 * 16), b = MakeSegment(15'000 * 16);
  auto group = Join(0);
  AllToAllv exchange;
  exchange.sends.push_back({1, {}});
  exchange.receives.push_back({1, {}});
  for (uint64_t i = 0; i < 15'000; ++i) {
    exchange.sends[0].ranges.push_back({a, i * 16, 16});
    exchange.receives[0].ranges.push_back({i % 2 == 0 ? a : b, i * 16, 16});
  }
  ASSERT_TRUE(group->Submit(exchange).ok());
  const auto submissions = daemon_->submissions();
  EXPECT_EQ(submissions[0].sends(0).segment_ids_size(), 1);
  EXPECT_EQ(submissions[0].receives(0).segment_ids_size(), 15'000);
  EXPECT_EQ(submissions[0].receives(0).segment_ids(14'999), b->id());
  EXPECT_EQ(submissions[0].receives(0).offsets_bytes(14'999), 14'999u * 16);
}

TEST_F(SubmitTest, ARefusedJobLeavesTheNumberAndTheSegmentsFree) {
  for (const absl::Status& refusal :
       {absl::ResourceExhaustedError("tenants.t.quota.jobs_per_second"), absl::UnavailableError("the daemon drains"),
        absl::InvalidArgumentError("receives[0] overlaps receives[1]")}) {
    daemon_->PlanSubmissions({Fate::kRefuse}, refusal);
    EXPECT_EQ(StatusOfSubmit(), refusal);
  }
  EXPECT_FALSE(group_->Submit({.sends = {{9, {}}}}).ok());
  for (uint64_t seq = 1; seq <= 3; ++seq) EXPECT_EQ(Submit()->seq(), seq);
  EXPECT_THAT(daemon_->accepted(), ElementsAre(1, 2, 3));
}

TEST_F(ClientTest, ASubmissionThatIsTooLongDoesNotCostTheGroup) {
  auto a = MakeSegment(1 << 20), b = MakeSegment(1 << 20);
  auto group = Join();
  AllToAllv exchange = Exchange(a, b);
  for (size_t i = 0; i < 1'000'000; ++i) exchange.sends[0].ranges.push_back({a, 500'000 + i % 1000, 200});
  EXPECT_TRUE(absl::IsResourceExhausted(group->Submit(exchange).status()));
  EXPECT_TRUE(group->Submit(Exchange(a, b)).ok());
  EXPECT_THAT(daemon_->accepted(), ElementsAre(1));
}

TEST_F(SubmitTest, AFrozenDaemonIsWaitedForUntilTheTimeout) {
  EXPECT_TRUE(absl::IsInvalidArgument(group_->Submit(Exchange(send_, receive_), absl::ZeroDuration()).status()));
  daemon_->PlanSubmissions({Fate::kHold});
  const absl::Status status = group_->Submit(Exchange(send_, receive_), absl::Milliseconds(50)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("whether railsd accepted job 1 of group moe is not known after 50ms"));
  EXPECT_EQ(daemon_->submissions().size(), 1u) << "a second one would be accepted";
  EXPECT_EQ(group_->Submit({}).status(), status) << "the group is over";
  auto again = Join();
  EXPECT_TRUE(absl::IsFailedPrecondition(again->Submit(Exchange(send_, receive_)).status()))
      << "the daemon may use the segments";
}

TEST_F(ClientTest, BadInputIsRefusedWithFieldAndValue) {
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  auto a = MakeSegment(), b = MakeSegment();
  auto other = Connect();
  ASSERT_TRUE(other.ok());
  auto foreign = (*other)->CreateSegment(4096);
  ASSERT_TRUE(foreign.ok());
  auto group = Join(0);
  struct Case {
    AllToAllv exchange;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {{.sends = {{4, {}}}}, {"sends[0].rank 4", "4 ranks"}},
      {{.receives = {{1, {}}, {4'000'000'000, {}}}}, {"receives[1].rank 4000000000"}},
      {{.sends = {{1, {}}, {2, {}}, {1, {}}}}, {"sends[2].rank 1", "twice"}},
      {{.sends = {{0, {}}, {0, {}}}}, {"sends[1].rank 0", "twice"}},
      {{.sends = {{1, {{a, 0, 1}, {a, 0, kBytes + 1}}}}}, {"sends[0].ranges[1]", "length_bytes 65537", "65536 bytes"}},
      {{.sends = {{1, {{a, kBytes + 1, 0}}}}}, {"offset_bytes 65537"}},
      {{.receives = {{1, {{a, kHuge, 2}}}}}, {"receives[0].ranges[0]", "offset_bytes 18446744073709551615"}},
      {{.receives = {{1, {{a, 2, kHuge}}}}}, {"length_bytes 18446744073709551615"}},
      {{.sends = {{1, {{nullptr, 0, 0}}}}}, {"sends[0].ranges[0].segment", "null"}},
      {{.sends = {{1, {{*foreign, 0, 1}}}}}, {"sends[0].ranges[0].segment", "another client"}},
      {{.timeout = -absl::Seconds(1)}, {"timeout", "-1s"}},
  };
  for (const Case& one : cases) {
    auto job = group->Submit(one.exchange);
    EXPECT_TRUE(absl::IsInvalidArgument(job.status())) << job.status();
    for (const std::string& part : one.says) EXPECT_THAT(job.status().message(), HasSubstr(part));
  }
  EXPECT_TRUE(daemon_->submissions().empty()) << "the daemon was not asked";
}

}  // namespace
}  // namespace rails::testing
