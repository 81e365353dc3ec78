// Copies between ranks of a node: which one works next, when they begin and end.
#include "agent/jobs/copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <vector>

#include "tests/support/test_memory.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

const std::atomic<bool> go_on{false};  // CopyTask::stop

constexpr uint64_t kStep = 8 << 20;

// Copies of whole steps, whose bytes nobody touches.
class CopyQueueTest : public ::testing::Test {
 protected:
  void Push(uint64_t job, size_t tenant, TenantShare share, uint64_t steps, bool urgent = false) {
    MemoryRanges& memory = memories_.emplace_back();
    testing::Append(&memory, segment_, 0, steps * kStep);
    queue_.Push({JobTag(job), 0, &memory, &memory, &go_on, tenant, share, urgent});
  }
  // The jobs that the next steps belong to.
  std::vector<uint64_t> Take(size_t count) {
    std::vector<uint64_t> jobs;
    for (size_t i = 0; i < count; ++i) {
      taken_.push_back(queue_.Take());
      jobs.push_back(taken_.back().copy->task.job.value());
    }
    return jobs;
  }

  const std::shared_ptr<const Segment> segment_ = MakeSegment(16 * kStep);
  std::deque<MemoryRanges> memories_;
  CopyQueue queue_;
  std::vector<CopyQueue::Step> taken_;
};

TEST_F(CopyQueueTest, TenantsShareByWeight) {
  Push(1, 0, {.weight = 1}, 12);
  Push(2, 1, {.weight = 2}, 12);
  const std::vector<uint64_t> jobs = Take(12);
  EXPECT_EQ(std::count(jobs.begin(), jobs.end(), 2), 8);
  Push(3, 2, {.weight = 1}, 12);  // it has saved nothing up
  const std::vector<uint64_t> later = Take(8);
  EXPECT_EQ(std::count(later.begin(), later.end(), 3), 2);
}

TEST_F(CopyQueueTest, HigherPriorityGoesFirst) {
  Push(1, 0, {}, 4);
  EXPECT_EQ(Take(1), (std::vector<uint64_t>{1}));
  Push(2, 1, {.priority = 1}, 2);
  EXPECT_EQ(Take(5), (std::vector<uint64_t>{2, 2, 1, 1, 1}));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(CopyQueueTest, TenantsThatBeginBesideAHigherPriorityShareAsWell) {
  Push(1, 0, {}, 12);
  Take(1);
  Push(2, 1, {.priority = 1}, 8);
  Take(8);
  Push(3, 2, {}, 12);
  const std::vector<uint64_t> jobs = Take(6);
  EXPECT_GE(std::count(jobs.begin(), jobs.end(), 3), 3) << "what others had before both counts for neither";
}

TEST_F(CopyQueueTest, CopiesOfOneTenantBeginInTheirOrderAndEndWithTheirLastStep) {
  Push(1, 0, {}, 2);
  Push(2, 0, {}, 1);
  EXPECT_EQ(Take(3), (std::vector<uint64_t>{1, 1, 2}));
  EXPECT_EQ(taken_[0].offset_bytes, 0u);
  EXPECT_EQ(taken_[1].offset_bytes, kStep);
  EXPECT_FALSE(queue_.Finish(taken_[1], absl::OkStatus()).has_value());
  EXPECT_TRUE(queue_.Finish(taken_[2], absl::OkStatus()).has_value());
  const auto result = queue_.Finish(taken_[0], absl::OkStatus());
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->job, JobTag(1));
  EXPECT_EQ(queue_.depth(), 0u);
}

TEST_F(CopyQueueTest, UrgentCopiesOvertakeOthersOfTheirTenantOnly) {
  Push(1, 0, {}, 3);
  Push(2, 0, {}, 1);
  EXPECT_EQ(Take(1), (std::vector<uint64_t>{1}));
  Push(3, 0, {}, 1, /*urgent=*/true);
  Push(4, 0, {}, 1, /*urgent=*/true);
  EXPECT_EQ(Take(5), (std::vector<uint64_t>{3, 4, 1, 1, 2}));
  Push(5, 0, {}, 8, /*urgent=*/true);
  Push(6, 1, {}, 8);
  const std::vector<uint64_t> jobs = Take(8);
  EXPECT_EQ(std::count(jobs.begin(), jobs.end(), 6), 4) << "another tenant has its share";
}

// Or else a job that has failed would not end, and hold its memory, for as long as urgent ones come.
TEST_F(CopyQueueTest, OthersHaveTheirTurnBesideUrgentCopies) {
  Push(1, 0, {}, 2);
  for (uint64_t job = 2; job < 14; ++job) Push(job, 0, {}, 1, /*urgent=*/true);
  EXPECT_EQ(Take(12), (std::vector<uint64_t>{2, 3, 4, 5, 1, 6, 7, 8, 9, 1, 10, 11}));
}

TEST_F(CopyQueueTest, AFailedUrgentCopyTakesNoFurtherSteps) {
  Push(1, 0, {}, 1);
  Push(2, 0, {}, 3, /*urgent=*/true);
  EXPECT_EQ(Take(1), (std::vector<uint64_t>{2}));
  EXPECT_TRUE(queue_.Finish(taken_[0], absl::CancelledError("stopped")).has_value());
  EXPECT_EQ(Take(1), (std::vector<uint64_t>{1}));
  EXPECT_TRUE(queue_.empty());
}

TEST_F(CopyQueueTest, AFailedStepEndsItsCopyOnceTheOthersAreBack) {
  Push(1, 0, {}, 4);
  Push(2, 0, {}, 1);
  Take(2);
  EXPECT_FALSE(queue_.Finish(taken_[0], absl::CancelledError("stopped")).has_value());
  EXPECT_EQ(Take(1), (std::vector<uint64_t>{2}));
  const auto result = queue_.Finish(taken_[1], absl::OkStatus());
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(result->status.message(), "stopped");
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(queue_.depth(), 1u);
}

// Over rails that receive frames, and over rails that write into remote memory.
class LocalCopyTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Rails, LocalCopyTest, ::testing::Bool(), ModeOf);

TEST_P(LocalCopyTest, CopiesBeginWhenBothRanksHaveSubmitted) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 6, "g");  // 0, 2 and 4 on one node
  exchange.SetLengths(AllLengths(6, 100), 1);
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  ASSERT_TRUE(exchange.trainer(2).Submit(exchange.For(2, 1)).ok());
  exchange.ExpectBytesBetween({0}, 2);
  const uint8_t* into = exchange.trainer(2).receive->data();
  EXPECT_NE(into[0], into[100]) << "rank 0's bytes are here, rank 1's are not";
  const auto early = exchange.trainer(2).Wait(1);
  cluster.Run();
  EXPECT_FALSE(early->ok()) << "the job has not ended";
  for (uint32_t rank : {1u, 3u, 4u, 5u}) ASSERT_TRUE(exchange.trainer(rank).Submit(exchange.For(rank, 1)).ok());
  cluster.Run();
  ASSERT_TRUE(early->ok());
  EXPECT_EQ((*early)->state, JobState::kDone);
  EXPECT_EQ((*early)->bytes_received, 500u);
  exchange.ExpectBytes();
}

// The copies of a job that never starts are over before its ranks get their buffers back.
TEST_P(LocalCopyTest, CopiesOfAJobThatIsCancelledEarlyAreWaitedFor) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1});
  Exchange exchange(&cluster, "g", AllLengths(3, 100));
  cluster.node(0).copier.held = true;
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  const auto report = exchange.trainer(0).Wait(1);
  exchange.trainer(0).Cancel(1);
  cluster.Run();
  EXPECT_FALSE(report->ok()) << "two copies are under way";
  cluster.node(0).copier.held = false;
  cluster.Run();
  ASSERT_TRUE(report->ok());
  EXPECT_EQ((*report)->status.code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(cluster.node(0).engine->Snapshot(0).groups[0].broken);
}

TEST_P(LocalCopyTest, ARankSendsToItself) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{500, 3}, {4, 600}});
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1, 3)).ok());
  EXPECT_EQ(cluster.node(0).copier.depth(), 1u) << "it is copied before others submit";
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1, 3)).ok());
  cluster.Run();
  exchange.ExpectBytes();
  EXPECT_EQ(exchange.Report(0, 1).bytes_sent, 503u);
  EXPECT_EQ(exchange.Report(0, 1).bytes_received, 504u);
  EXPECT_EQ(cluster.node(0).engine->Snapshot(0).counters.local_copy_bytes, 500u);
}

TEST_P(LocalCopyTest, WhatARankSendsToItselfMayStayInPlace) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1});
  Exchange exchange(&cluster, "g", {{500, 3}, {4, 600}});
  Submission first = exchange.For(0, 1);
  first.sends[0].ranges = {{SegmentId(1), 10, 100}, {SegmentId(1), 110, 50}, {SegmentId(1), 300, 350}};
  first.sends[1].ranges = {{SegmentId(1), 5, 3}};
  first.receives[0].ranges = {{SegmentId(1), 10, 150}, {SegmentId(1), 300, 350}};
  ASSERT_TRUE(exchange.trainer(0).Submit(first).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  EXPECT_EQ(exchange.Report(0, 1).bytes_sent, 503u);
  EXPECT_EQ(exchange.Report(0, 1).bytes_received, 504u);
  EXPECT_EQ(cluster.node(0).engine->Snapshot(0).counters.local_copy_bytes, 600u + 3 + 4);
}

TEST_P(LocalCopyTest, UnequalLengthsOfARankToItselfFailTheJobEverywhere) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{400, 3, 0}, {4, 0, 5}, {0, 6, 3}});  // 0 and 2 on one node
  Submission last = exchange.For(2, 1);
  ASSERT_EQ(last.receives[2].peer, Rank(2));
  last.receives[2].ranges = {{SegmentId(2), 5, 2}};  // instead of 3
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  ASSERT_TRUE(exchange.trainer(2).Submit(last).ok());
  cluster.Run();
  exchange.ExpectFailed(1, "sends 3 bytes to");
  EXPECT_EQ(exchange.Report(0, 1).bytes_sent, 400u) << "what was copied before is told";
  EXPECT_EQ(exchange.Report(0, 1).bytes_received, 400u);
}

}  // namespace
}  // namespace railsd::testing
