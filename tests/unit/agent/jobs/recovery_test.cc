// Groups when a node is lost: they fail, wait, or go on without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <tuple>

#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Recovery kDegrade{RecoveryPolicy::kDegrade, absl::ZeroDuration()};
constexpr Recovery kWaitMinute{RecoveryPolicy::kWait, absl::Seconds(60)};
constexpr Recovery kWaitBriefly{RecoveryPolicy::kWait, absl::Seconds(10)};

// The peers of node `lost` give it up, and it does nothing any more.
void Lose(Cluster& cluster, size_t lost) {
  for (auto& rail : cluster.node(lost).rails) rail->frozen = true;
  for (size_t n = 0; n < cluster.size(); ++n) {
    if (n != lost) cluster.node(n).engine->OnPeerDown(cluster.node(lost).name, "silent for 5 s");
  }
}

class RecoveryTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rails, RecoveryTest, ::testing::Bool(), ModeOf);

TEST_P(RecoveryTest, RanksThatDisagreeAreToldSo) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g", {.join = false});
  exchange.trainer(1).recovery = {RecoveryPolicy::kWait, absl::Seconds(30)};
  for (uint32_t r : {0u, 1u}) exchange.trainer(r).Join("g", 2);
  cluster.Run();
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(exchange.trainer(r).group.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(exchange.trainer(r).group.status().ToString(), AllOf(HasSubstr("wait 30s"), HasSubstr("says fail")));
  }
  exchange.trainer(0).recovery = {RecoveryPolicy::kWait, absl::Hours(1)};
  exchange.trainer(0).Join("g", 2);
  EXPECT_THAT(exchange.trainer(0).group.status().ToString(),
              AllOf(HasSubstr("wait_limit: 1h"), HasSubstr("timeouts.max_peer_wait")));
}

TEST_P(RecoveryTest, ACommitDoesNotStretchThePatience) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g", {.recovery = kWaitBriefly, .join = false});
  for (uint32_t r : {0u, 1u}) exchange.trainer(r).Join("g", 2);
  cluster.Run([&] {
    for (GroupCommit* commit : Outgoing<GroupCommit>(cluster, 0)) commit->recovery.wait_limit = absl::Hours(9999);
    return false;
  });
  ASSERT_TRUE(exchange.trainer(1).group.ok()) << exchange.trainer(1).group.status();
  EXPECT_EQ(exchange.trainer(1).group->recovery.wait_limit, AgentOptions().max_peer_wait);
}

TEST_P(RecoveryTest, ThePatienceWithAPeerIsThatOfItsMostPatientLivingGroup) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange failing(&cluster, 2, "failing");
  EXPECT_EQ(cluster.node(0).patience["n1"], absl::ZeroDuration());
  Exchange short_one(&cluster, 2, "short", {.recovery = kWaitBriefly});
  EXPECT_EQ(cluster.node(0).patience["n1"], absl::Seconds(10));
  Exchange long_one(&cluster, 2, "long", {.recovery = kWaitMinute});
  for (size_t n : {0u, 1u}) EXPECT_EQ(cluster.node(n).patience[n == 0 ? "n1" : "n0"], absl::Seconds(60));
  long_one.trainer(1).Leave();
  cluster.Run();
  for (size_t n : {0u, 1u}) EXPECT_EQ(cluster.node(n).patience[n == 0 ? "n1" : "n0"], absl::Seconds(10));
}

TEST_P(RecoveryTest, SilenceBreaksGroupsThatFailAndLeavesThoseThatWait) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange failing(&cluster, "failing", AllLengths(2, 10));
  Exchange waiting(&cluster, "waiting", AllLengths(2, 300'000), {.recovery = kWaitMinute});
  waiting.SubmitAll(1);
  for (auto& rail : cluster.node(1).rails) rail->frozen = true;
  cluster.node(0).engine->OnPeerSilent("n1", "frozen");
  cluster.Run();
  EXPECT_THAT(failing.trainer(0).Submit(failing.For(0, 1)).ToString(), HasSubstr("node n1 is lost: frozen"));
  cluster.Advance(absl::Seconds(20));
  cluster.Run();
  for (auto& rail : cluster.node(1).rails) rail->frozen = false;
  waiting.ExpectCompletes(1);
  waiting.SetLengths(AllLengths(2, 1'000), 3);
  waiting.RunJob(2);
}

TEST_P(RecoveryTest, AGroupThatWaitedForNothingFails) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange waiting(&cluster, "waiting", AllLengths(2, 2'000'000), {.recovery = kWaitMinute});
  waiting.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(0, 0); });
  cluster.node(0).engine->OnPeerSilent("n1", "frozen");
  Lose(cluster, 1);
  cluster.Run();
  waiting.ExpectFailed(1, absl::StatusCode::kUnavailable, HasSubstr("silent for 5 s"), {0});
}

// After how many steps of a job on three nodes the last of them is lost.
class DegradeTest : public ::testing::TestWithParam<std::tuple<bool, int>> {};
INSTANTIATE_TEST_SUITE_P(AfterSteps, DegradeTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(0, 1, 2, 4, 6, 9, 13, 18, 25, 35, 50, 80, 120, 200)));

TEST_P(DegradeTest, TheOthersGoOnAndSayWhoIsLost) {
  const auto [remote, steps] = GetParam();
  for (const uint64_t seed : Seeds(2)) {
    SCOPED_TRACE(seed);
    Cluster cluster({.remote = remote, .nodes = 3, .rails = 2, .seed = seed});
    Exchange exchange(&cluster, 6, "g", {.buffer_bytes = 2 << 20, .recovery = kDegrade});
    exchange.SetLengths(AllLengths(6, 300'000), seed);
    exchange.SubmitAll(1);
    cluster.RunSteps(steps);
    Lose(cluster, 2);
    cluster.Run();
    // Ranks 2 and 5 are lost in this job, because they had not said that they were done. Ranks that were done already
    // do not know it.
    for (uint32_t r : {0u, 1u, 3u, 4u}) {
      const JobReport report = exchange.Report(r, 1);
      EXPECT_EQ(report.state, JobState::kDone) << report.status;
      if (report.bytes_received < report.bytes_to_receive || report.bytes_sent < report.bytes_to_send) {
        EXPECT_THAT(report.lost_ranks, ElementsAre(Rank(2), Rank(5)));
      }
      exchange.ExpectBytesBetween({0, 1, 3, 4}, r);
    }
    // Again, in the same epoch, with the nodes that are left.
    exchange.SetLengths(AllLengths(6, 50'000), seed + 100);
    for (uint32_t r : {0u, 1u, 3u, 4u}) {
      const absl::Status accepted = exchange.trainer(r).Submit(exchange.For(r, 2));
      ASSERT_TRUE(accepted.ok()) << accepted;
    }
    cluster.Run();
    for (uint32_t r : {0u, 1u, 3u, 4u}) {
      const JobReport report = exchange.Report(r, 2);
      EXPECT_EQ(report.state, JobState::kDone) << report.status;
      EXPECT_THAT(report.lost_ranks, ElementsAre(Rank(2), Rank(5)));
      EXPECT_EQ(report.bytes_received, 150'000u);
      exchange.ExpectBytesBetween({0, 1, 3, 4}, r);
    }
    for (size_t n : {0u, 1u}) {
      EXPECT_THAT(cluster.node(n).engine->Snapshot(0).groups.at(0).lost, ElementsAre("n2"));
      EXPECT_TRUE(cluster.node(n).engine->Snapshot(0).active_jobs.empty());
    }
  }
}

// Ranks 0 and 1 are done with each other, and know that rank 2 is lost.
void ExpectOthersDone(Exchange& exchange) {
  for (uint32_t rank : {0u, 1u}) {
    const JobReport report = exchange.Report(rank, 1);
    EXPECT_EQ(report.state, JobState::kDone) << report.status;
    exchange.ExpectBytesBetween({0, 1}, rank);
  }
  EXPECT_THAT(exchange.Report(0, 1).lost_ranks, ElementsAre(Rank(2)));
}

// The rails answer for the zones only after the peer is lost: they have no connection to it.
TEST(DegradeRemoteTest, APeerThatIsLostWhileItsZonesOpenIsLeftOut) {
  Cluster cluster({.remote = true, .nodes = 3, .rails = 2});
  Exchange exchange(&cluster, "g", AllLengths(3, 40'000), {.recovery = kDegrade});
  for (auto& rail : cluster.node(0).rails) rail->frozen = true;
  exchange.SubmitAll(1);
  cluster.Run();
  for (size_t r = 0; r < 2; ++r) cluster.fabric().Fail(cluster.AddressOf(2, r));
  Lose(cluster, 2);
  for (auto& rail : cluster.node(0).rails) rail->frozen = false;
  cluster.Run();
  ExpectOthersDone(exchange);
}

// The rails have no connection to the peer, and its zones are closing, to be opened again, when it is lost.
TEST(DegradeRemoteTest, APeerThatIsLostWhileItsZonesCloseAgainIsLeftOut) {
  Cluster cluster({.remote = true, .nodes = 3, .rails = 2});
  Exchange exchange(&cluster, "g", AllLengths(3, 40'000), {.recovery = kDegrade});
  for (auto& rail : cluster.node(0).rails) {
    rail->frozen = true;
    rail->watched.on_event = [&rail](const RailEvent& event) {
      const bool failed = event.kind == RailEvent::Kind::kZoneOpened && event.error_number == ENOTCONN;
      rail->frozen = rail->frozen || failed;  // nothing is closed yet
    };
  }
  exchange.SubmitAll(1);
  cluster.Run();
  for (size_t r = 0; r < 2; ++r) cluster.fabric().Fail(cluster.AddressOf(2, r));
  for (auto& rail : cluster.node(0).rails) rail->frozen = false;
  cluster.Run();
  for (auto& rail : cluster.node(0).rails) ASSERT_TRUE(rail->frozen);
  Lose(cluster, 2);
  cluster.Run();
  for (auto& rail : cluster.node(0).rails) rail->frozen = false;
  cluster.Run();
  ExpectOthersDone(exchange);
}

// n0 and n2 have lost each other; n1 reaches both, and has lost nobody.
class CutPairTest : public ::testing::TestWithParam<bool> {
 protected:
  CutPairTest() {
    cluster_.Lose(0, 2, "a cut cable");
    cluster_.node(2).engine->OnPeerDown("n0", "a cut cable");
    cluster_.Run();
  }
  absl::Status Submit(uint32_t rank, uint64_t seq) { return exchange_.trainer(rank).Submit(exchange_.For(rank, seq)); }
  // OK while it is not over.
  absl::Status EndOf(uint32_t rank, uint64_t seq) {
    const auto report = *exchange_.trainer(rank).Wait(seq);
    return report.ok() ? report->status : absl::OkStatus();
  }
  bool Broken(size_t n) { return cluster_.node(n).engine->Snapshot(0).groups.at(0).broken; }

  Cluster cluster_{{.remote = GetParam(), .nodes = 3, .rails = 2}};
  Exchange exchange_{&cluster_, "g", AllLengths(3, 40'000), {.recovery = kDegrade}};
};
INSTANTIATE_TEST_SUITE_P(Rails, CutPairTest, ::testing::Bool(), ModeOf);

TEST_P(CutPairTest, GoesOnByTheNodeBetween) {
  exchange_.SubmitAll(1);
  cluster_.Run();
  EXPECT_THAT((*exchange_.trainer(0).Wait(1))->lost_ranks, ElementsAre(Rank(2)));
  EXPECT_THAT((*exchange_.trainer(1).Wait(1))->lost_ranks, IsEmpty());
  EXPECT_THAT((*exchange_.trainer(2).Wait(1))->lost_ranks, ElementsAre(Rank(0)));
  exchange_.ExpectBytesBetween({0, 1, 2}, 1);
}

// The clock stands still: nothing ends by its deadline.
TEST_P(CutPairTest, TheEndOfTheEpochReachesWhoHadLostTheOneWhoEndsIt) {
  ASSERT_TRUE(Submit(0, 1).ok());
  ASSERT_TRUE(Submit(1, 1).ok());
  cluster_.node(2).engine->CloseSession(exchange_.trainer(2).session, "pid 42 was killed", [](absl::Status) {});
  cluster_.Run();
  for (uint32_t rank : {0u, 1u}) {
    EXPECT_THAT(EndOf(rank, 1).ToString(), HasSubstr("rank 2 on n2 is gone: pid 42 was killed")) << rank;
    EXPECT_TRUE(Broken(rank));
    EXPECT_THAT(Submit(rank, 2).ToString(), HasSubstr("rank 2 on n2 is gone: pid 42 was killed"));
  }
}

TEST_P(CutPairTest, TheEndOfAJobReachesWhoHadLostTheOneWhoEndsIt) {
  ASSERT_TRUE(Submit(0, 1).ok());
  ASSERT_TRUE(Submit(2, 1).ok());
  exchange_.trainer(2).Cancel(1);
  cluster_.Run();
  EXPECT_THAT(EndOf(0, 1).ToString(), HasSubstr("cancelled by rank 2 on n2"));
  ASSERT_TRUE(Submit(1, 1).ok());
  EXPECT_THAT(EndOf(1, 1).ToString(), HasSubstr("cancelled by rank 2 on n2"));
  // The group goes on, and nobody goes on telling it.
  exchange_.SubmitAll(2);
  cluster_.Run();
  for (uint32_t rank : {0u, 1u, 2u}) {
    const JobReport report = exchange_.Report(rank, 2);
    EXPECT_EQ(report.state, JobState::kDone) << report.status;
  }
  EXPECT_THAT((*exchange_.trainer(0).Wait(2))->lost_ranks, ElementsAre(Rank(2)));
}

// A link that has not failed yet may be slow: n1 hears of the end by n2, and not only that n2 aborts the job.
TEST_P(RecoveryTest, TheEndOfAnEpochIsHeardOfByWhomeverComesFirst) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 2});
  Exchange exchange(&cluster, "g", AllLengths(3, 40'000));
  cluster.Hold(0, 1);
  for (uint32_t rank : {0u, 1u}) ASSERT_TRUE(exchange.trainer(rank).Submit(exchange.For(rank, 1)).ok());
  cluster.node(0).engine->CloseSession(exchange.trainer(0).session, "pid 42 was killed", [](absl::Status) {});
  cluster.RunFor(absl::Seconds(2));  // for what n0 has not said yet
  EXPECT_THAT((*exchange.trainer(1).Wait(1))->status.ToString(), HasSubstr("pid 42 was killed"));
  EXPECT_THAT(exchange.trainer(1).Submit(exchange.For(1, 2)).ToString(), HasSubstr("pid 42 was killed"));
}

// n2 has a rank, and may end the epoch and each of its jobs; it cannot make the others send each other more than that.
TEST_P(RecoveryTest, EndsThatOneMemberInventsAreNotPassedOn) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1});
  Exchange exchange(&cluster, 3, "g", {.recovery = kDegrade});
  const Epoch epoch = exchange.trainer(1).group->epoch;
  const auto say = [&](ControlMessage message) {
    cluster.node(1).engine->OnPeerMessage("n2", cluster.node(2).boot, std::move(message));
  };
  for (uint64_t i = 0; i < 1000; ++i) say(Abort{{epoch, JobSeq(1000 + i)}, absl::StatusCode::kAborted, "invented"});
  EXPECT_THAT(Outgoing<Abort>(cluster, 1), IsEmpty()) << "no rank can be so far ahead";
  for (uint64_t i = 0; i < 1000; ++i) say(GroupBroken{epoch, JobSeq(1000 - i), absl::StatusCode::kAborted, "invented"});
  EXPECT_EQ(Outgoing<GroupBroken>(cluster, 1).size(), 1u + AgentLimits().max_jobs_per_group);
}

TEST_P(RecoveryTest, ANodeThatIsLeftOutHasNoSayEvenWhenItIsBack) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1});
  Exchange exchange(&cluster, 3, "g", {.recovery = kDegrade});
  // Both ends of the link see that it is lost, and then that it is up again.
  for (const auto& [here, there] : {std::pair(0, 2), std::pair(2, 0)}) {
    cluster.node(here).engine->OnPeerDown(cluster.node(there).name, "a cut cable");
  }
  cluster.Run();
  cluster.Connect(0, 2);
  cluster.Run();
  exchange.SetLengths(AllLengths(3, 40'000), 1);
  exchange.SubmitAll(1);
  cluster.Run();
  // n1 has lost nobody, and both others exchange with it.
  EXPECT_THAT((*exchange.trainer(1).Wait(1))->lost_ranks, IsEmpty());
  EXPECT_THAT((*exchange.trainer(0).Wait(1))->lost_ranks, ElementsAre(Rank(2)));
  EXPECT_THAT((*exchange.trainer(2).Wait(1))->lost_ranks, ElementsAre(Rank(0)));
  exchange.ExpectBytesBetween({0, 1, 2}, 1);
  exchange.ExpectBytesBetween({0, 1}, 0);
  exchange.ExpectBytesBetween({1, 2}, 2);
  // A trainer of n2 leaves: that ends the group for n1, which is told, and for n0 only by n1.
  cluster.Hold(1, 0);
  exchange.trainer(2).Leave();
  cluster.Run();
  EXPECT_FALSE(cluster.node(0).engine->Snapshot(0).groups.at(0).broken);
  EXPECT_TRUE(cluster.node(1).engine->Snapshot(0).groups.at(0).broken);
}

}  // namespace
}  // namespace railsd::testing
