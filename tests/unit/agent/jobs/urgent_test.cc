// Urgent jobs: they end before other jobs of their tenant that began earlier.
#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

// Two nodes with two ranks each. Rank r sends `bytes` to each rank of the other node, and `local_bytes` to the other
// rank of its own.
Lengths Between(uint64_t bytes, uint64_t local_bytes = 0) {
  Lengths lengths = AllLengths(4, bytes);
  lengths[0][2] = lengths[2][0] = lengths[1][3] = lengths[3][1] = local_bytes;
  return lengths;
}

class UrgentTest : public ::testing::TestWithParam<bool> {
 protected:
  UrgentTest() {
    for (Exchange* exchange : {&first_, &second_, &third_}) exchange->SetLengths(Between(600'000, 100), 1);
  }
  // `urgent`: by rank.
  static void Submit(Exchange& exchange, const std::vector<bool>& urgent, uint64_t seq = 1) {
    for (uint32_t rank = 0; rank < 4; ++rank) {
      Submission submission = exchange.For(rank, seq);
      submission.urgent = urgent[rank];
      ASSERT_TRUE(exchange.trainer(rank).Submit(submission).ok());
    }
  }
  // The place of each job in the order in which the jobs have ended at rank 0.
  std::vector<size_t> Places(const std::vector<Exchange*>& exchanges) {
    std::vector<std::shared_ptr<absl::StatusOr<JobReport>>> reports;
    reports.reserve(exchanges.size());
    for (Exchange* exchange : exchanges) reports.push_back(exchange->trainer(0).Wait(1));
    std::vector<size_t> places(reports.size());
    size_t ended = 0;
    const auto look = [&] {
      for (size_t i = 0; i < reports.size(); ++i) {
        if (places[i] == 0 && reports[i]->ok()) places[i] = ++ended;
      }
      return ended == reports.size();
    };
    cluster_.Run(look);
    look();
    return places;
  }

  Cluster cluster_{{.remote = GetParam(), .rail_bytes_per_s = 10'000'000, .plan = {.chunk_bytes = 16 << 10}}};
  const ExchangeOptions options_ = {.buffer_bytes = 2 << 20};
  Exchange first_{&cluster_, 4, "first", options_}, second_{&cluster_, 4, "second", options_};
  Exchange third_{&cluster_, 4, "third", {.buffer_bytes = 2 << 20, .tenant = "other"}};
};

INSTANTIATE_TEST_SUITE_P(Rails, UrgentTest, ::testing::Bool(), ModeOf);

TEST_P(UrgentTest, JobsEndInTheirOrderWithoutUrgency) {
  Submit(first_, {false, false, false, false});
  Submit(second_, {false, false, false, false});
  EXPECT_EQ(Places({&first_, &second_}), (std::vector<size_t>{1, 2}));
}

TEST_P(UrgentTest, AnUrgentJobEndsBeforeAnEarlierOne) {
  Submit(first_, {false, false, false, false});
  cluster_.Run([&] { return cluster_.ReceivedBytes() > 0 || cluster_.HasReceived(1, 0); });
  Submit(second_, {true, true, true, true});
  EXPECT_EQ(Places({&first_, &second_}), (std::vector<size_t>{2, 1}));
  cluster_.Run();
  for (Exchange* exchange : {&first_, &second_}) {
    for (uint32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(exchange->Report(rank, 1).state, JobState::kDone);
    exchange->ExpectBytes();
  }
  cluster_.ExpectNothingOpen();
}

TEST_P(UrgentTest, OneRankOfEachNodeIsEnough) {
  Submit(first_, {false, false, false, false});
  Submit(second_, {false, false, true, true});  // ranks 2 and 3: one of each node
  EXPECT_EQ(Places({&first_, &second_}), (std::vector<size_t>{2, 1}));
}

TEST_P(UrgentTest, JobsOfAnotherTenantKeepTheirShare) {
  Submit(third_, {false, false, false, false});
  Submit(first_, {true, true, true, true});
  Submit(second_, {true, true, true, true});
  const std::vector<size_t> places = Places({&third_, &first_, &second_});
  EXPECT_LT(places[0], places[2]) << "half of the rails carry one of its tenant's two";
}

TEST_P(UrgentTest, UrgencyIsNoPartOfTheContent) {
  Submission submission = first_.For(0, 1);
  ASSERT_TRUE(first_.trainer(0).Submit(submission).ok());
  submission.urgent = true;
  EXPECT_TRUE(first_.trainer(0).Submit(submission).ok()) << "the same job";
}

}  // namespace
}  // namespace railsd::testing
