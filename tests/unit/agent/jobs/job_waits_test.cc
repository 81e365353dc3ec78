// Tests what a rank hears of a job that waits: for ranks, until its deadline, and when the caller's time is over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

// Over rails that receive frames, and over rails that write into remote memory.
class JobWaitsTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Rails, JobWaitsTest, ::testing::Bool(), ModeOf);

TEST_P(JobWaitsTest, DeadlineNamesWhatWasMissing) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 100}, {200, 0}});
  Submission submission = exchange.For(0, 1);
  submission.timeout = absl::Seconds(5);
  ASSERT_TRUE(exchange.trainer(0).Submit(std::move(submission)).ok());
  auto report = exchange.trainer(0).Wait(1);
  cluster.Run();
  EXPECT_FALSE(report->ok());
  cluster.Advance(absl::Seconds(6));
  cluster.Run();
  ASSERT_TRUE(report->ok());
  EXPECT_EQ((*report)->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string((*report)->status.message()), ::testing::HasSubstr("for rank 1 on n1"));
}

// At every rank, with its process, though only its own daemon knows; and the rank that does come is not named.
TEST_P(JobWaitsTest, TheRankThatDoesNotSubmitIsNamedEverywhere) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1});
  Exchange exchange(&cluster, "g", AllLengths(6, 100));
  std::vector<std::shared_ptr<absl::StatusOr<JobReport>>> reports;
  const auto submit = [&](uint32_t rank) {
    Submission submission = exchange.For(rank, 1);
    submission.timeout = absl::Seconds(5);
    ASSERT_TRUE(exchange.trainer(rank).Submit(std::move(submission)).ok());
    reports.push_back(exchange.trainer(rank).Wait(1));
  };
  for (uint32_t rank : {0u, 3u, 5u}) submit(rank);
  cluster.Run();
  cluster.Advance(absl::Seconds(2));
  cluster.Run();  // now they tell: 1, 2 and 4 are missing
  for (uint32_t rank : {1u, 2u}) submit(rank);
  cluster.Run();
  const auto explained = cluster.node(0).engine->Explain({"", "g", JobSeq(1)});
  ASSERT_TRUE(explained.ok()) << explained.status();
  EXPECT_EQ(explained->waits_for, "for rank 4 on n1 (pid 1) to submit");
  cluster.Advance(absl::Seconds(4));
  cluster.Run();
  for (const auto& report : reports) {
    ASSERT_TRUE(report->ok());
    EXPECT_EQ((*report)->status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string((*report)->status.message()),
                ::testing::HasSubstr("waited for rank 4 on n1 (pid 1) to submit"));
  }
}

// Before anybody has told.
TEST_P(JobWaitsTest, ARankReadsWhomItsOwnNodeWaitedFor) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", AllLengths(4, 100));
  for (uint32_t rank : {0u, 1u, 2u}) {
    Submission submission = exchange.For(rank, 1);
    if (rank != 1) submission.timeout = absl::Milliseconds(100);
    ASSERT_TRUE(exchange.trainer(rank).Submit(std::move(submission)).ok());
  }
  const auto report = exchange.trainer(1).Wait(1);
  cluster.RunFor(absl::Milliseconds(200));
  ASSERT_TRUE(report->ok());
  EXPECT_THAT(std::string((*report)->status.message()),
              ::testing::AllOf(::testing::HasSubstr("waited for the ranks of n1 (1, 3) to submit"),
                               ::testing::HasSubstr("n1 waited for rank 3 on n1 (pid 1) to submit")));
}

// Waits of a node for another one's READYs, in seconds.
double Waited(Cluster& cluster, size_t node, size_t for_node) {
  const std::string name = cluster.node(for_node).name;
  for (const PeerView& peer : cluster.node(node).engine->Snapshot(0).peers) {
    if (peer.node == name) return absl::ToDoubleSeconds(peer.ready_wait);
  }
  return -1;
}

TEST_P(JobWaitsTest, WaitsAreCountedByPeerWhileTheyLast) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1});
  Exchange exchange(&cluster, "g", AllLengths(3, 100));
  const auto submit = [&](uint32_t rank) {
    ASSERT_TRUE(exchange.trainer(rank).Submit(exchange.For(rank, 1)).ok());
    cluster.Run();
  };
  submit(0);
  cluster.RunFor(absl::Seconds(2));
  EXPECT_EQ(Waited(cluster, 0, 1), 2);
  EXPECT_EQ(Waited(cluster, 0, 2), 2);
  submit(1);
  cluster.RunFor(absl::Seconds(1));
  submit(2);
  cluster.RunFor(absl::Seconds(1));
  EXPECT_EQ(Waited(cluster, 0, 1), 2);
  EXPECT_EQ(Waited(cluster, 0, 2), 3);
  EXPECT_EQ(Waited(cluster, 1, 0), 0);
  EXPECT_EQ(Waited(cluster, 1, 2), 1);
  EXPECT_EQ(Waited(cluster, 2, 0), 0);
}

TEST_P(JobWaitsTest, AWaitThatEndsWithTheJobStaysCounted) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", AllLengths(2, 100));
  Submission submission = exchange.For(0, 1);
  submission.timeout = absl::Seconds(5);
  ASSERT_TRUE(exchange.trainer(0).Submit(std::move(submission)).ok());
  cluster.Run();
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Waited(cluster, 0, 1), 5);
  cluster.RunFor(absl::Seconds(5));
  EXPECT_EQ(Waited(cluster, 0, 1), 5) << "the job has failed";
}

TEST_P(JobWaitsTest, WaitAnswersWithTheStateWhenItsTimePasses) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 100}, {200, 0}});
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  absl::StatusOr<JobReport> report = absl::UnknownError("");
  const JobKey key{exchange.trainer(0).group->epoch, JobSeq(1)};
  cluster.node(0).engine->Wait(exchange.trainer(0).session, key, Rank(0), absl::Seconds(1),
                               [&](absl::StatusOr<JobReport> r) { report = std::move(r); });
  cluster.RunFor(absl::Seconds(2));
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->state, JobState::kMatching);
  EXPECT_EQ((*exchange.trainer(1).Wait(1)).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace railsd::testing
