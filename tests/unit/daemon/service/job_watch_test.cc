#include <gtest/gtest.h>

#include "daemon/service/job_feed.h"

namespace railsd {
namespace {

TEST(JobWatchTest, ASlowReaderLosesTheOldestAndIsTold) {
  int notified = 0;
  JobWatch watch(3, [&] { ++notified; });
  for (uint64_t seq = 1; seq <= 5; ++seq) {
    JobReport report;
    report.job.seq = JobSeq(seq);
    watch.Push(report);
  }
  EXPECT_EQ(notified, 5);
  const auto first = watch.Pop();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->report.job.seq, JobSeq(3));
  EXPECT_EQ(first->missed, 2u);
  EXPECT_EQ(watch.Pop()->missed, 0u);
  EXPECT_TRUE(watch.Pop());
  EXPECT_FALSE(watch.Pop());
}

}  // namespace
}  // namespace railsd
