// Votes: the report of each rank has the highest number that a rank gave with the job.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

// Two nodes with two ranks each. Every rank in turn has the highest vote, which may be the last of the 64 bits.
TEST(VoteTest, EveryReportHasTheHighestOfAllRanks) {
  for (const bool remote : {false, true}) {
    for (const uint64_t bytes : {0u, 100u, 5000u}) {  // nothing at all, eager, over rails
      Cluster cluster({.remote = remote, .eager_bytes = 1000});
      Exchange exchange(&cluster, "g", AllLengths(4, bytes));
      for (uint64_t seq = 1; seq <= 10; ++seq) {
        SCOPED_TRACE(absl::StrCat(remote, " ", bytes, " ", seq));
        std::vector<uint64_t> votes = {seq, 2 * seq, 0, 1};
        votes[seq % 4] = ~uint64_t{0} - seq;
        if (seq == 9) votes = {0, 0, 0, 0};  // the default
        for (uint32_t rank = 0; rank < 4; ++rank) {
          Submission submission = exchange.For(rank, seq);
          submission.vote = votes[rank];
          submission.capacities = seq % 2 == 0;
          ASSERT_TRUE(exchange.trainer(rank).Submit(submission).ok());
        }
        cluster.Run();
        for (uint32_t rank = 0; rank < 4; ++rank) {
          const JobReport report = exchange.Report(rank, seq);
          ASSERT_EQ(report.state, JobState::kDone) << report.status;
          EXPECT_EQ(report.highest_vote, *std::max_element(votes.begin(), votes.end()));
        }
      }
    }
  }
}

TEST(VoteTest, PreparedJobsHaveItAndItIsPartOfTheContent) {
  Cluster cluster({});
  Exchange exchange(&cluster, "g", AllLengths(4, 100));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    Submission submission = exchange.For(rank, 1);
    submission.session = exchange.trainer(rank).session;
    if (rank < 2) {  // one of each node
      submission.prepared = PreparedId(1);
      Engine& engine = *cluster.node(exchange.trainer(rank).node).engine;
      absl::Status kept = absl::UnknownError("no answer");
      engine.KeepPrepared(engine.CheckLayout(submission), [&](absl::Status s) { kept = std::move(s); });
      ASSERT_TRUE(kept.ok()) << kept;
      submission.sends = submission.receives = {};
    }
    submission.vote = 10 - rank;
    ASSERT_TRUE(exchange.trainer(rank).Submit(submission).ok());
    EXPECT_TRUE(exchange.trainer(rank).Submit(submission).ok()) << "the same job";
    submission.vote = 11;
    EXPECT_EQ(exchange.trainer(rank).Submit(submission).code(), absl::StatusCode::kAlreadyExists);
  }
  cluster.Run();
  for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(exchange.Report(rank, 1).highest_vote, 10u);
}

TEST(VoteTest, AFailedJobHasTheHighestThatIsKnown) {
  Cluster cluster({});
  Exchange exchange(&cluster, "g", AllLengths(4, 100));
  for (const uint32_t rank : {0u, 1u, 3u}) {  // rank 2 of node 0 does not submit
    Submission submission = exchange.For(rank, 1);
    submission.vote = 5 + rank;
    submission.timeout = absl::Seconds(1);
    ASSERT_TRUE(exchange.trainer(rank).Submit(submission).ok());
  }
  cluster.Advance(absl::Seconds(2));
  cluster.Run();
  EXPECT_EQ(exchange.Report(0, 1).state, JobState::kFailed);
  EXPECT_EQ(exchange.Report(0, 1).highest_vote, 5u) << "node 1's READY waits to be compared";
  EXPECT_EQ(exchange.Report(1, 1).highest_vote, 8u);
}

TEST(VoteTest, TheVoteOfALostRankCountsWhereItsReadyWasRead) {
  Cluster cluster({.nodes = 3});
  Exchange exchange(&cluster, "g", AllLengths(3, 0), {.recovery = {RecoveryPolicy::kDegrade, absl::ZeroDuration()}});
  const auto submit = [&](uint32_t rank, uint64_t vote) {
    Submission submission = exchange.For(rank, 1);
    submission.vote = vote;
    ASSERT_TRUE(exchange.trainer(rank).Submit(submission).ok());
    cluster.Run();
  };
  submit(0, 1);
  submit(2, 9);
  for (size_t n : {0u, 1u}) cluster.node(n).engine->OnPeerDown("n2", "silent");
  submit(1, 2);
  EXPECT_EQ(exchange.Report(0, 1).state, JobState::kDone);
  EXPECT_EQ(exchange.Report(0, 1).highest_vote, 9u);
  EXPECT_EQ(exchange.Report(1, 1).highest_vote, 2u);
}

}  // namespace
}  // namespace railsd::testing
