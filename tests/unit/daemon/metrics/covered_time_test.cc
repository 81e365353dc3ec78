#include "daemon/metrics/covered_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "daemon/metrics/job_statistics.h"
#include "tests/support/seeds.h"

namespace railsd {
namespace {

absl::Time At(int64_t seconds) { return absl::FromUnixSeconds(seconds); }

TEST(CoveredTimeTest, TimeThatSeveralCoverCountsOnce) {
  CoveredTime time;
  EXPECT_EQ(time.Add(At(10), At(20)), absl::Seconds(10));
  EXPECT_EQ(time.Add(At(15), At(25)), absl::Seconds(5)) << "overlaps";
  EXPECT_EQ(time.Add(At(12), At(25)), absl::ZeroDuration()) << "inside";
  EXPECT_EQ(time.Add(At(30), At(40)), absl::Seconds(10)) << "apart";
  EXPECT_EQ(time.Add(At(5), At(41)), absl::Seconds(11)) << "around all, with a gap of 5 s";
  EXPECT_EQ(time.Add(At(41), At(41)), absl::ZeroDuration());
}

// A long job around more gaps than are kept.
TEST(CoveredTimeTest, NeverCountsTimeTwice) {
  CoveredTime time;
  absl::Duration sum;
  for (int64_t i = 0; i < 1000; ++i) sum += time.Add(At(10 * i), At(10 * i + 4));
  EXPECT_EQ(sum, absl::Seconds(4000));
  sum += time.Add(At(0), At(10'000));
  EXPECT_LE(sum, absl::Seconds(10'000));
  EXPECT_GE(sum, absl::Seconds(5500)) << "the latest gaps are known";
  EXPECT_EQ(time.Add(At(0), At(10'000)), absl::ZeroDuration());
}

TEST(CoveredTimeTest, IsTheUnionOfRandomIntervals) {
  std::mt19937_64 random = testing::SeededRandom();
  CoveredTime time;
  std::vector<bool> seconds(4000);
  absl::Duration sum;
  for (int64_t end = 100; end < 4000; end += static_cast<int64_t>(random() % 4)) {
    const int64_t begin = end - static_cast<int64_t>(random() % (random() % 10 == 0 ? 100 : 5));
    sum += time.Add(At(begin), At(end));
    std::fill(seconds.begin() + begin, seconds.begin() + end, true);
  }
  EXPECT_EQ(sum, absl::Seconds(std::count(seconds.begin(), seconds.end(), true)));
}

// Two jobs of four ranks that overlap by half.
TEST(JobStatisticsTest, AJobCountsOnceForAllRanksAndTimeOnceForAllJobs) {
  JobStatistics statistics;
  JobReport report;
  report.parts = 4;
  report.elapsed = absl::Seconds(10);
  report.waiting_for_ranks = absl::Seconds(2);
  report.pinned_bound = absl::Seconds(12);
  report.node_bound = absl::Seconds(4);
  for (const int64_t end : {100, 104}) {
    report.ended = At(end);
    for (uint32_t rank = 0; rank < report.parts; ++rank) statistics.OnJobFinished(SessionId(1), report);
  }
  EXPECT_DOUBLE_EQ(statistics.histograms().actual_seconds.Value(), 12);
  EXPECT_DOUBLE_EQ(statistics.histograms().pinned_seconds.Value(), 24);
  EXPECT_DOUBLE_EQ(statistics.histograms().bound_seconds.Value(), 8);
}

}  // namespace
}  // namespace railsd
