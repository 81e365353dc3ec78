// Daemons that leave and come back: the cut, waiting for what the others have not ended, and epochs that go on where
// the last one ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Recovery kWaits{RecoveryPolicy::kWait, absl::Seconds(60)};

class RestartTest : public ::testing::TestWithParam<bool> {
 protected:
  // One rank a node.
  void Make(uint32_t nodes, const Recovery& recovery = kWaits, bool join = true) {
    exchange_.reset();
    cluster_ = std::make_unique<Cluster>(Cluster::Options{.remote = GetParam(), .nodes = nodes, .rails = 2});
    exchange_ = std::make_unique<Exchange>(cluster_.get(), "g", AllLengths(nodes, 20'000),
                                           ExchangeOptions{.recovery = recovery, .join = join});
  }
  Trainer& trainer(uint32_t r) { return exchange_->trainer(r); }
  Engine& engine(size_t n) { return *cluster_->node(n).engine; }
  absl::Status Submit(uint32_t r, uint64_t seq) { return trainer(r).Submit(exchange_->For(r, seq)); }
  // The status becomes known when the drain has ended.
  std::shared_ptr<absl::Status> Drain(size_t n) {
    auto status = std::make_shared<absl::Status>(absl::UnknownError("drains"));
    engine(n).Drain(absl::Seconds(10), [status](absl::Status s) { *status = std::move(s); });
    return status;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Exchange> exchange_;
};
INSTANTIATE_TEST_SUITE_P(Rails, RestartTest, ::testing::Bool(), ModeOf);

TEST_P(RestartTest, AnEpochGoesOnWhereTheLastOneEnded) {
  Make(2, kWaits, false);
  for (uint32_t r : {0u, 1u}) trainer(r).next_seq = JobSeq(5);
  exchange_->JoinAll();
  EXPECT_EQ(trainer(1).group->next_seq, JobSeq(5));
  EXPECT_EQ(Submit(1, 6).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Submit(1, 4).ToString(), HasSubstr("ended long ago"));
  exchange_->RunJob(5);
}

TEST_P(RestartTest, RanksThatHaveFinishedDifferentJobsAreAllToldSo) {
  Make(3, kWaits, false);
  for (uint32_t r : {0u, 1u, 2u}) {
    trainer(r).next_seq = JobSeq(r == 1 ? 8 : 7);
    trainer(r).Join("g", 3);
    cluster_->Run();  // who came first is told when the last one has come
  }
  for (uint32_t r : {0u, 1u, 2u}) {
    EXPECT_EQ(trainer(r).group.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(trainer(r).group.status().ToString(),
                AllOf(HasSubstr("rank 1 on n1 has finished its jobs up to 7"), HasSubstr("rank 0 on n0 up to 6")));
  }
}

TEST_P(RestartTest, OtherPoliciesBeginAtOne) {
  Make(1, Recovery{}, false);
  trainer(0).next_seq = JobSeq(2);
  trainer(0).Join("g", 1);
  EXPECT_THAT(trainer(0).group.status().ToString(), AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("next_seq: 2")));
  trainer(0).recovery = kWaits;
  trainer(0).next_seq = JobSeq(~uint64_t{0});
  trainer(0).Join("g", 1);
  EXPECT_THAT(trainer(0).group.status().ToString(), HasSubstr("next_seq: 18446744073709551615 is not between"));
}

TEST_P(RestartTest, TheCutStandsWhenTheDrainBegins) {
  Make(2);
  exchange_->ReceiveApart(3);
  for (uint64_t seq : {1u, 2u}) ASSERT_TRUE(Submit(1, seq).ok());
  cluster_->Run();
  ASSERT_TRUE(Submit(0, 1).ok());
  const auto drained = Drain(0);
  ASSERT_TRUE(Submit(1, 3).ok());  // offered too late
  EXPECT_TRUE(Submit(0, 2).ok());
  EXPECT_THAT(Submit(0, 3).ToString(), AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("the last job taken is 2")));
  cluster_->Run();
  EXPECT_TRUE(drained->ok()) << *drained;
  EXPECT_EQ((*trainer(1).Wait(2))->state, JobState::kDone);
  const auto again = Drain(0);
  EXPECT_EQ(Submit(0, 3).code(), absl::StatusCode::kUnavailable) << "a further drain keeps the cut";
  engine(0).Undrain();
  EXPECT_EQ(again->code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Submit(0, 3).ok());
  cluster_->Run();
  EXPECT_EQ((*trainer(1).Wait(3))->state, JobState::kDone);
}

TEST_P(RestartTest, NothingIsTakenOnceTheDrainHasEnded) {
  Make(2);
  ASSERT_TRUE(Submit(1, 1).ok());
  cluster_->Run();
  const auto drained = Drain(0);
  cluster_->Run();
  EXPECT_TRUE(drained->ok()) << *drained;
  EXPECT_THAT(Submit(0, 1).ToString(), HasSubstr("the last job taken is 0"));
}

TEST_P(RestartTest, ANodeLeavesWhenTheOthersHaveEndedItsJobs) {
  Make(3);
  // n1 and n2 cannot exchange yet; with n0 both can.
  cluster_->Hold(1, 2);
  cluster_->Hold(2, 1);
  exchange_->SubmitAll(1);
  cluster_->Run();
  ASSERT_EQ((*trainer(0).Wait(1))->state, JobState::kDone);
  const auto drained = Drain(0);
  cluster_->Run();
  EXPECT_EQ(drained->code(), absl::StatusCode::kUnknown) << *drained;
  cluster_->Release(1, 2);
  cluster_->Release(2, 1);
  cluster_->Run();
  EXPECT_TRUE(drained->ok()) << *drained;
  exchange_->ExpectDone(1);
  exchange_->ExpectBytes();
}

TEST_P(RestartTest, ThePatienceOfADrainHasALimitThatNamesWhoIsWaitedFor) {
  Make(3);
  cluster_->Hold(1, 2);
  cluster_->Hold(2, 1);
  exchange_->SubmitAll(1);
  cluster_->Run();
  const auto drained = Drain(0);
  cluster_->RunFor(absl::Seconds(11));
  EXPECT_EQ(drained->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(drained->ToString(), HasSubstr("job 1 of group g, or one before it, was still active on n"));
}

TEST_P(RestartTest, NobodyWaitsForWhoHasGone) {
  Make(3);
  cluster_->Hold(1, 2);
  cluster_->Hold(2, 1);
  exchange_->SubmitAll(1);
  cluster_->Run();
  const auto drained = Drain(0);
  cluster_->Run();
  for (size_t n : {1u, 2u}) engine(0).OnPeerDown(cluster_->node(n).name, "is stopping", /*ended=*/true);
  cluster_->Run();
  EXPECT_TRUE(drained->ok()) << *drained;
}

TEST_P(RestartTest, WhoKnowsNothingOfAGroupIsDoneWithIt) {
  Make(2);
  const uint64_t ignored = engine(1).Snapshot(0).counters.control_messages_ignored;
  engine(1).OnPeerMessage("n0", cluster_->node(0).boot, Leaving{{BootId(5), 6}, JobSeq(7)});
  const auto answers = Outgoing<MayLeave>(*cluster_, 1);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0]->seq, JobSeq(7));
  engine(1).OnPeerMessage("n0", cluster_->node(0).boot, MayLeave{{BootId(5), 6}, JobSeq(7)});
  EXPECT_EQ(engine(1).Snapshot(0).counters.control_messages_ignored, ignored + 1);
}

TEST_P(RestartTest, WhatADaemonTookAlongCanBeReplayed) {
  Make(3);
  ASSERT_TRUE(Submit(1, 1).ok());
  ASSERT_TRUE(Submit(2, 1).ok());
  const auto report = trainer(1).Wait(1);
  cluster_->Run();
  // n2 hears it from n1 only.
  engine(1).OnPeerDown("n0", "node n0 is stopping", /*ended=*/true);
  cluster_->Run();
  for (uint32_t r : {1u, 2u}) {
    const auto end = trainer(r).Wait(1);
    ASSERT_TRUE(end->ok()) << end->status();
    EXPECT_EQ((*end)->state, JobState::kFailed);
    EXPECT_TRUE((*end)->replayable) << (*end)->status;
    EXPECT_EQ(Submit(r, 2).code(), absl::StatusCode::kAborted);
    const AgentSnapshot snapshot = engine(r).Snapshot(0);
    EXPECT_TRUE(snapshot.groups[0].replayable);
    EXPECT_EQ(snapshot.counters.jobs_failed + snapshot.tenants[0].jobs_failed, 0u);
  }
  EXPECT_TRUE((*report)->replayable);
}

TEST_P(RestartTest, WhatAnotherLossTookAlongCannot) {
  for (const bool waits : {true, false}) {
    Make(2, waits ? kWaits : Recovery{});
    ASSERT_TRUE(Submit(1, 1).ok());
    engine(1).OnPeerDown("n0", "silent for 60 s", /*ended=*/!waits);
    cluster_->Run();
    const auto end = trainer(1).Wait(1);
    ASSERT_TRUE(end->ok()) << end->status();
    EXPECT_FALSE((*end)->replayable);
    EXPECT_EQ(Submit(1, 2).code(), absl::StatusCode::kFailedPrecondition);
  }
}

// n2 has restarted and joined by way of n0 before n1 knew: n1 breaks the epoch, and n2 is not up there.
TEST_P(RestartTest, WhoComesUpHearsOfEpochsThatAreOver) {
  Make(3);
  cluster_->Hold(0, 2);  // it knows, and answers n2's READY
  ASSERT_TRUE(Submit(2, 1).ok());
  engine(1).OnPeerDown("n2", "node n2 has restarted", /*ended=*/true);
  cluster_->Run();
  EXPECT_FALSE(engine(2).Snapshot(0).groups[0].broken);
  engine(1).OnPeerUp(cluster_->HelloOf(2));
  cluster_->Run();
  EXPECT_TRUE(engine(2).Snapshot(0).groups[0].replayable);
  cluster_->Advance(absl::Seconds(1));  // n0 has a grant, and cannot say that it has stopped
  cluster_->Run();
  EXPECT_TRUE((*trainer(2).Wait(1))->replayable);
}

// n0 hears first from n1, which closes its zones: n1 has heard of the end of n3 from n2, and n0 hears of it last.
TEST_P(RestartTest, ASenderWhoseReceiverHearsFirstCanReplay) {
  Make(4);
  for (auto& rail : cluster_->node(0).rails) rail->frozen = true;
  exchange_->SubmitAll(1);
  cluster_->Run();
  for (size_t n : {2u, 3u}) cluster_->Hold(n, 0);
  engine(2).OnPeerDown("n3", "node n3 is stopping", /*ended=*/true);
  cluster_->Run();
  for (auto& rail : cluster_->node(0).rails) rail->frozen = false;
  cluster_->Run();
  for (uint32_t r : {0u, 1u, 2u}) {
    const auto end = *trainer(r).Wait(1);
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_TRUE(end->replayable) << "rank " << r << ": " << end->status;
  }
}

TEST_P(RestartTest, AGroupThatATrainerHasLeftIsOver) {
  Make(2);
  ASSERT_TRUE(Submit(1, 1).ok());
  engine(0).Leave(trainer(0).session, trainer(0).group->epoch, Rank(0), [](absl::Status) {});
  cluster_->Run();
  engine(1).OnPeerDown("n0", "node n0 is stopping", /*ended=*/true);
  EXPECT_FALSE((*trainer(1).Wait(1))->replayable);
  EXPECT_EQ(Submit(1, 2).code(), absl::StatusCode::kFailedPrecondition);
}

// A whole restart, after any number of steps of the jobs: nothing that one rank has finished is unfinished at another.
class PlannedTest : public ::testing::TestWithParam<std::tuple<bool, int>> {};
INSTANTIATE_TEST_SUITE_P(AfterSteps, PlannedTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(0, 1, 3, 6, 10, 15, 25, 40, 70, 120)));

TEST_P(PlannedTest, RanksAgreeOnWhatHasEnded) {
  const auto [remote, steps] = GetParam();
  for (const uint64_t seed : Seeds(3)) {
    SCOPED_TRACE(seed);
    Cluster cluster({.remote = remote, .nodes = 3, .rails = 2, .seed = seed});
    Exchange exchange(&cluster, 3, "g", {.recovery = kWaits});
    exchange.ReceiveApart(4);
    exchange.SetLengths(AllLengths(3, 50'000), seed);
    std::vector<std::vector<std::shared_ptr<absl::StatusOr<JobReport>>>> ends(3);
    const auto submit = [&](uint32_t r, uint64_t seq) {
      if (exchange.trainer(r).Submit(exchange.For(r, seq)).ok()) ends[r].push_back(exchange.trainer(r).Wait(seq));
    };
    for (uint64_t seq : {1u, 2u}) {
      for (uint32_t r : {1u, 2u, 0u}) submit(r, seq);
    }
    cluster.RunSteps(steps);
    absl::Status drained = absl::UnknownError("drains");
    cluster.node(0).engine->Drain(absl::Seconds(10), [&](absl::Status s) { drained = std::move(s); });
    for (uint64_t seq : {3u, 4u}) {
      for (uint32_t r : {0u, 1u, 2u}) submit(r, seq);
    }
    cluster.Run([&] { return drained.code() != absl::StatusCode::kUnknown; });
    ASSERT_TRUE(drained.ok()) << drained;
    for (size_t n : {1u, 2u}) cluster.node(n).engine->OnPeerDown("n0", "node n0 is stopping", /*ended=*/true);
    cluster.node(0).engine->Shutdown();
    cluster.Run();
    std::vector<uint64_t> done(3, 0);
    for (uint32_t r : {0u, 1u, 2u}) {
      for (const auto& end : ends[r]) {
        ASSERT_TRUE(end->ok()) << end->status();
        if ((*end)->state == JobState::kDone) {
          EXPECT_EQ((*end)->job.seq.value(), ++done[r]) << "rank " << r;
        } else {
          EXPECT_TRUE((*end)->replayable || r == 0) << (*end)->status;
        }
      }
    }
    EXPECT_GE(done[0], 2u);
    EXPECT_EQ(done[1], done[0]);
    EXPECT_EQ(done[2], done[0]);
  }
}

}  // namespace
}  // namespace railsd::testing
