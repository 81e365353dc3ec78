#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "daemon/services/job_feed.h"

namespace railsd {
namespace {

TEST(JobWatchTest, ASlowReaderLosesTheOldestAndIsTold) {
  int notified = 0;
  JobWatch watch(3, [&] { ++notified; });
  for (uint64_t seq = 1; seq <= 5; ++seq) {
    auto report = std::make_shared<JobReport>();
    report->job.seq = JobSeq(seq);
    watch.Push(std::move(report));
  }
  EXPECT_EQ(notified, 5);
  const auto first = watch.Pop();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->report->job.seq, JobSeq(3));
  EXPECT_EQ(first->missed, 2u);
  EXPECT_EQ(watch.Pop()->missed, 0u);
  EXPECT_TRUE(watch.Pop());
  EXPECT_FALSE(watch.Pop());
}

TEST(JobFeedTest, ASessionHasItsNumberOfWatchesAndOneCopyOfEachReport) {
  JobFeed feed(nullptr, 2);
  std::vector<std::shared_ptr<JobWatch>> watches;
  for (int i = 0; i < 3; ++i) watches.push_back(std::make_shared<JobWatch>(8, [] {}));
  EXPECT_TRUE(feed.AddWatch(SessionId(1), watches[0]));
  EXPECT_TRUE(feed.AddWatch(SessionId(1), watches[1]));
  EXPECT_FALSE(feed.AddWatch(SessionId(1), watches[2]));
  EXPECT_TRUE(feed.AddWatch(SessionId(2), watches[2])) << "another session";
  feed.OnJobFinished(SessionId(1), JobReport());
  EXPECT_EQ(feed.Depths().reports, 2u);
  EXPECT_EQ(watches[0]->Pop()->report, watches[1]->Pop()->report);
  watches[0].reset();
  EXPECT_TRUE(feed.AddWatch(SessionId(1), watches[2])) << "one has ended";
}

}  // namespace
}  // namespace railsd
