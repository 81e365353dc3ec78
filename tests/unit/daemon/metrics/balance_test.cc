#include "daemon/metrics/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "daemon/metrics/job_statistics.h"
#include "daemon/metrics/port_counters.h"
#include "tests/support/temporary_folder.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

// Two rails; the second has half the speed.
std::vector<RailView> Rails(uint64_t fast, uint64_t slow) {
  std::vector<RailView> rails(2);
  rails[0].speed_bytes_per_s = 100;
  rails[1].speed_bytes_per_s = 50;
  rails[0].counts.tx_payload_bytes = rails[0].planned_bytes = fast;
  rails[1].counts.tx_payload_bytes = rails[1].planned_bytes = slow;
  return rails;
}

TEST(BalanceTest, EvenIsOne) {
  const auto balance = BalanceOf({10, 10, 10, 10}, {1, 1, 1, 1});
  ASSERT_TRUE(balance.has_value());
  EXPECT_DOUBLE_EQ(balance->max_over_mean, 1);
  EXPECT_DOUBLE_EQ(balance->jain, 1);
}

TEST(BalanceTest, OneRailCarriesAll) {
  const auto balance = BalanceOf({10, 0, 0, 0}, {1, 1, 1, 1});
  ASSERT_TRUE(balance.has_value());
  EXPECT_DOUBLE_EQ(balance->max_over_mean, 4);
  EXPECT_DOUBLE_EQ(balance->jain, 0.25);
}

TEST(BalanceTest, HalfTheSpeedIsEvenWithHalfTheBytes) {
  EXPECT_DOUBLE_EQ(BalanceOf({100, 50}, {2, 1})->max_over_mean, 1);
  EXPECT_DOUBLE_EQ(BalanceOf({100, 100}, {2, 1})->max_over_mean, 4.0 / 3);
}

TEST(BalanceTest, NothingCarriedIsNothing) {
  EXPECT_FALSE(BalanceOf({0, 0}, {1, 1}).has_value());
  EXPECT_FALSE(BalanceOf({}, {}).has_value());
  EXPECT_FALSE(BalanceOf({5}, {0}).has_value()) << "a drained rail does not count";
}

TEST(BalanceMeterTest, WindowsEndNow) {
  BalanceMeter meter;
  EXPECT_TRUE(meter.Read().empty());
  // Even for 5 minutes, then 20 seconds over the fast rail only.
  uint64_t fast = 0, slow = 0;
  absl::Time now = kStart;
  for (int i = 0; i <= 150; ++i, now += absl::Seconds(2)) meter.Add(Rails(fast += 20, slow += 10), now);
  for (int i = 0; i < 10; ++i, now += absl::Seconds(2)) meter.Add(Rails(fast += 20, slow), now);
  const std::vector<BalanceMeter::Window> windows = meter.Read();
  ASSERT_EQ(windows.size(), 3u);
  EXPECT_DOUBLE_EQ(windows[0].sent->max_over_mean, 2);    // 10 s
  EXPECT_DOUBLE_EQ(windows[1].sent->max_over_mean, 1.2);  // 1 min: 30 samples of 20, 20 of 10
  EXPECT_LT(windows[2].sent->max_over_mean, 1.05);        // 5 min
  EXPECT_EQ(windows[0].planned->jain, windows[0].sent->jain);
  EXPECT_FALSE(windows[0].planned_received.has_value());
  EXPECT_FALSE(windows[0].received.has_value());
}

TEST(BalanceMeterTest, SamplesThatComeTooSoonAreLeftOut) {
  BalanceMeter meter;
  meter.Add(Rails(0, 0), kStart);
  meter.Add(Rails(10, 0), kStart + absl::Milliseconds(10));
  EXPECT_TRUE(meter.Read().empty());
  meter.Add(Rails(10, 5), kStart + BalanceMeter::kPace);
  EXPECT_DOUBLE_EQ(meter.Read()[0].sent->max_over_mean, 1);
}

TEST(BalanceMeterTest, CountersThatGoBackCountAsStill) {
  BalanceMeter meter;
  meter.Add(Rails(100, 100), kStart);
  meter.Add(Rails(50, 110), kStart + absl::Seconds(2));
  EXPECT_DOUBLE_EQ(meter.Read()[0].sent->max_over_mean, 2);
}

TEST(JobStatisticsTest, DrainedRailsDoNotCount) {
  JobStatistics jobs({1, 1, 1, 1});
  JobReport report;
  report.state = JobState::kDone;
  report.rail_tx_bytes = report.rail_rx_bytes = report.rail_planned_bytes = {5, 5, 5, 0};
  report.drained_rails = 8;
  jobs.OnJobFinished(SessionId(1), report);
  const JobStatistics::Histograms& view = jobs.histograms();
  for (const auto* balance : {&view.sent, &view.received, &view.planned}) {
    EXPECT_DOUBLE_EQ(balance->max_over_mean.Collect().histogram.sample_sum, 1);
    EXPECT_DOUBLE_EQ(balance->jain.Collect().histogram.sample_sum, 1);
  }
}

TEST(JobStatisticsTest, BalanceOfJobs) {
  JobStatistics jobs({1, 1});
  JobReport report;
  report.elapsed = absl::Seconds(3);
  report.waiting_for_ranks = report.waiting_for_peers = absl::Seconds(1);
  report.sending = absl::Milliseconds(750);
  report.receiving = absl::Seconds(1);
  report.efficiency = {0.4, 1, 0.5, 0.8};
  report.rail_tx_bytes = {10, 10};
  report.rail_planned_bytes = {20, 0};
  jobs.OnJobFinished(SessionId(1), report);
  const JobStatistics::Histograms& view = jobs.histograms();
  EXPECT_DOUBLE_EQ(view.sent.max_over_mean.Collect().histogram.sample_sum, 1);
  EXPECT_DOUBLE_EQ(view.planned.max_over_mean.Collect().histogram.sample_sum, 2);
  EXPECT_DOUBLE_EQ(view.planned.jain.Collect().histogram.sample_sum, 0.5);
  EXPECT_DOUBLE_EQ(view.received.max_over_mean.Collect().histogram.sample_sum, 0)
      << "nothing received, nothing observed";
  EXPECT_DOUBLE_EQ(view.sending.Collect().histogram.sample_sum, 0.75);
  EXPECT_DOUBLE_EQ(view.receiving.Collect().histogram.sample_sum, 1);
  EXPECT_DOUBLE_EQ(view.efficiency_moving.Collect().histogram.sample_sum, 0.5);
  EXPECT_EQ(view.efficiency.Collect().histogram.bucket[4].cumulative_count, 1u) << "0.4 is a bound";
}

TEST(PortCountersTest, ReadsWhatThereIs) {
  const testing::TemporaryFolder folder;
  const std::string port = "class/infiniband/mlx5_0/ports/1/";
  folder.Write(port + "counters/port_xmit_wait", "7\n");
  folder.Write(port + "counters/symbol_error", "no number\n");
  folder.Write(port + "counters/made_up_by_a_driver", "1\n");
  folder.Write(port + "hw_counters/out_of_sequence", "18446744073709551615\n");
  EXPECT_THAT(ReadRdmaPortCounters("mlx5_0", 1, folder.path()),
              ElementsAre(Pair("port_xmit_wait", 7), Pair("out_of_sequence", UINT64_MAX)));
  EXPECT_TRUE(ReadRdmaPortCounters("mlx5_0", 2, folder.path()).empty());
}

TEST(PortCountersTest, OfAnInterface) {
  const testing::TemporaryFolder folder;
  const std::string statistics = "class/net/eth0/statistics/";
  folder.Write(statistics + "tx_bytes", "10\n");
  folder.Write(statistics + "rx_errors", "1\n");
  folder.Write(statistics + "tx_dropped", "2\n");
  folder.Write(statistics + "collisions", "3\n");
  const InterfaceCounters counters = ReadInterfaceCounters("eth0", folder.path());
  EXPECT_EQ(counters.tx_bytes, 10u);
  EXPECT_EQ(counters.rx_bytes, std::nullopt);
  EXPECT_THAT(counters.events, ElementsAre(Pair("rx_errors", 1), Pair("tx_dropped", 2)));
  for (const char* none : {"", "eth1", "../net/eth0", "."}) {
    EXPECT_TRUE(ReadInterfaceCounters(none, folder.path()).events.empty()) << none;
  }
}

}  // namespace
}  // namespace railsd
