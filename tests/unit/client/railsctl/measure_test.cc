#include "client/railsctl/bench/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace rails::ctl {
namespace {

TEST(Samples, QuantilesAreNearestRank) {
  Samples samples;
  EXPECT_EQ(samples.Median(), 0);
  for (int i = 100; i > 0; --i) samples.Add(i);
  EXPECT_EQ(samples.Min(), 1);
  EXPECT_EQ(samples.Median(), 50);
  EXPECT_EQ(samples.Quantile(0.9), 90);
  EXPECT_EQ(samples.Quantile(0.99), 99);
  EXPECT_EQ(samples.Max(), 100);
}

TEST(UniformMatrix, EverybodySendsAndReceivesTheSame) {
  for (uint64_t bytes : {0, 1, 7, 4096, 4097}) {
    const workload::TrafficMatrix matrix = UniformMatrix(5, bytes);
    for (size_t rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(matrix.RowSum(rank), bytes);
      EXPECT_EQ(matrix.ColumnSum(rank), bytes);
    }
  }
}

TEST(FromRankZero, CrossesNodesWhenThereAreSome) {
  const workload::TrafficMatrix matrix = FromRankZero(6, 2, 1001);
  EXPECT_EQ(matrix.Total(), 1001u);
  EXPECT_EQ(matrix.RowSum(0), 1001u);
  EXPECT_EQ(CountBytes(matrix, 2).network, 1001u);
  EXPECT_EQ(CountBytes(FromRankZero(3, 3, 1001), 3).local, 1001u);
}

TEST(BenchReport, JsonSaysWhatIsUnknown) {
  BenchReport report;
  report.nodes = 2;
  report.ranks_per_node = 1;
  Measurement measurement;
  measurement.phase.Add(0.5);
  measurement.bytes.network = 1000;
  measurement.ranges = 3;
  report.throughput = measurement;
  report.submit = measurement;
  const nlohmann::ordered_json json = BenchJson(report);
  EXPECT_EQ(json["throughput"]["bytes_per_second"], 2000);
  EXPECT_TRUE(json["throughput"]["ratio_to_bound"].is_null());
  EXPECT_TRUE(json["submit"]["submit_to_first_chunk_seconds"].is_null());
  EXPECT_FALSE(json.contains("small_jobs"));
  EXPECT_EQ(json["verified"], true);
  report.submit->wrong_bytes = 1;
  EXPECT_EQ(BenchJson(report)["verified"], false);
}

TEST(BenchReport, ExplainsSmallJobsWhenAsked) {
  BenchReport report;
  report.small_jobs.emplace();
  report.small_jobs->phase.Add(0.5);
  report.small_jobs->hops.peers.Add(0.25);
  EXPECT_EQ(BenchJson(report)["small_jobs"]["hops_seconds"]["waiting_for_peers"]["p50"], 0.25);
  EXPECT_THAT(RenderBench(report, /*explain=*/true, /*color=*/false), testing::HasSubstr("until every node is ready"));
  EXPECT_THAT(RenderBench(report, /*explain=*/false, /*color=*/false),
              testing::Not(testing::HasSubstr("until every node is ready")));
}

}  // namespace
}  // namespace rails::ctl
