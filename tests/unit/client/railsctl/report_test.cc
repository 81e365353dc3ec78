#include "client/railsctl/replay/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/client/railsctl/text_message.h"

namespace rails::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ReplayReport Sample() {
  ReplayReport report;
  report.workload = "zipf";
  report.seed = 42;
  report.scale_factor = 0.25;
  report.bytes_per_rank = 16 << 20;
  report.nodes = 2;
  report.ranks_per_node = 1;
  report.warmup = 1;
  report.steps_available = 5;
  StepResult step{"zipf", 0, 3, {}, {1.01, 1.02}};
  step.phases.push_back({"dispatch", {8 << 20, 1024, 7}, 0.25, 0.2});
  step.phases.push_back({"combine", {8 << 20, 1024, 7}, 0.15, 0.1});
  report.steps.push_back(step);
  report.rails = {{"n0", {{"rail0", 25'000'000, 3 << 20, 1 << 20}, {"rail1", 25'000'000, 1 << 20, 1 << 20}}},
                  {"n1", {{"rail0", 25'000'000, 1 << 20, 2 << 20}, {"rail1", 25'000'000, 1 << 20, 2 << 20}}}};
  return report;
}

TEST(ReplayReport, JsonGolden) {
  const nlohmann::ordered_json json = ReplayJson(Sample());
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(json["steps"], 1);
  EXPECT_EQ(json["bytes"], 16 << 20);
  EXPECT_DOUBLE_EQ(json["seconds"], 0.4);
  EXPECT_DOUBLE_EQ(json["ratio_to_bound"], 0.4 / (0.2 + 0.1));
  EXPECT_EQ(json["balance"].dump(), R"({"tx_max_over_mean":1.5,"rx_max_over_mean":1.0})");
  EXPECT_EQ(json["rails"][0].dump(),
            R"({"node":"n0","rail":0,"name":"rail0","speed_bytes_per_second":25000000,"tx_bytes":3145728,)"
            R"("rx_bytes":1048576,"drained":false,"tx_max_over_mean":1.5,"rx_max_over_mean":1.0})");
  EXPECT_EQ(json["per_step"][0]["iteration"], 3);
  EXPECT_DOUBLE_EQ(json["per_step"][0]["phases"]["dispatch"]["ratio_to_bound"], 1.25);
  std::string keys;
  for (const auto& [key, value] : json.items()) keys += key + " ";
  EXPECT_EQ(
      keys,
      "verified checked workload seed scale_factor bytes_per_rank nodes ranks ranks_per_node warmup_steps steps "
      "bytes local_bytes self_bytes seconds bound_seconds ratio_to_bound wrong_bytes balance rails eager rails_from "
      "per_step ");
}

TEST(ReplayReport, TextGolden) {
  EXPECT_EQ(RenderReplay(Sample(), false),
            "zipf, 1 of 5 steps, seed 42; 2 ranks on 2 nodes; volumes times 0.25 for 16.0 MiB a rank\n"
            "\n"
            "STEP  WHAT                         BYTES     LOCAL    TIME   BOUND  RATIO       RATE  TX MAX/MEAN  "
            "RX MAX/MEAN\n"
            "   0  zipf layer 0 iteration 3  16.0 MiB  2.00 KiB  400 ms  300 ms  1.333  41.9 MB/s        1.010  "
            "      1.020\n"
            "      all dispatch              8.00 MiB  1.00 KiB  250 ms  200 ms  1.250  33.6 MB/s\n"
            "      all combine               8.00 MiB  1.00 KiB  150 ms  100 ms  1.500  55.9 MB/s\n"
            "      all                       16.0 MiB  2.00 KiB  400 ms  300 ms  1.333  41.9 MB/s        1.500  "
            "      1.000\n"
            "\n"
            "NODE  RAIL       SENT                            RECEIVED                            MAX/MEAN\n"
            "n0    rail0  3.00 MiB  ████████████████████████  1.00 MiB  ████████                  tx 1.500  rx 1.000\n"
            "      rail1  1.00 MiB  ████████                  1.00 MiB  ████████\n"
            "n1    rail0  1.00 MiB  ████████                  2.00 MiB  ████████████████          tx 1.000  rx 1.000\n"
            "      rail1  1.00 MiB  ████████                  2.00 MiB  ████████████████\n"
            "\n"
            "every byte was right\n");
}

TEST(ReplayReport, AnUnknownBoundIsNullAndUncheckedIsNotVerified) {
  ReplayReport report = Sample();
  report.steps[0].phases[0].bound_seconds = report.steps[0].phases[1].bound_seconds = 0;
  report.checked = false;
  EXPECT_TRUE(ReplayJson(report)["ratio_to_bound"].is_null());
  EXPECT_EQ(ReplayJson(report)["verified"], false);
  EXPECT_THAT(RenderReplay(report, false), HasSubstr("bytes were not checked"));
}

TEST(ReplayReport, SaysThatRailsAreFasterThanTheirSpeeds) {
  ReplayReport report = Sample();
  EXPECT_THAT(RenderReplay(report, false), Not(HasSubstr("configured speeds")));
  report.steps[0].phases[0].bound_seconds = 0.4;
  EXPECT_THAT(RenderReplay(report, false), HasSubstr("faster than their configured speeds"));
}

TEST(ReplayReport, WrongBytesSayWhere) {
  ReplayReport report = Sample();
  report.wrong_bytes = 2;
  report.first_wrong = {"combine", 0, false, 1,
                        FromText<WrongByte>("source_rank: 3 flow_offset: 17 segment_offset: 81 expected: 0xAB got: 1")};
  EXPECT_EQ(DescribeWrongBytes(report),
            "2 wrong bytes; the first: step 0, combine, received by rank 1 from rank 3 at byte 17 of the flow (byte 81 "
            "of the segment): expected 0xab, got 0x01");
  EXPECT_EQ(ReplayJson(report)["verified"], false);
  EXPECT_EQ(ReplayJson(report)["first_wrong_byte"]["source_rank"], 3);
  report.first_wrong->byte.set_guard(true);
  EXPECT_THAT(DescribeWrongBytes(report), HasSubstr("outside of every range"));
  EXPECT_TRUE(ReplayJson(report)["first_wrong_byte"]["source_rank"].is_null());
}

TEST(Accounting, DifferenceSeesRestarts) {
  const std::vector<NodeRails> before = {{"n0", {{"rail0", 1, 10, 20}}}};
  std::vector<NodeRails> after = {{"n0", {{"rail0", 1, 15, 20}}}};
  EXPECT_EQ((*Difference(before, after))[0].rails[0].tx_bytes, 5u);
  EXPECT_EQ((*Difference(before, after))[0].rails[0].rx_bytes, 0u);
  after[0].rails[0].rx_bytes = 3;
  EXPECT_EQ(Difference(before, after).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Difference({}, after).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(MaxOverMean({}), 1);
  EXPECT_EQ(MaxOverMean({0, 0}), 1);
  EXPECT_EQ(MaxOverMean({3, 1}), 1.5);
}

TEST(Accounting, DrainedRailsDoNotCount) {
  const NodeRails three = {
      "n0", {{"rail0", 100, 30, 30}, {"rail1", 100, 30, 30}, {"rail2", 100, 30, 30}, {"rail3", 100, 0, 0}}};
  EXPECT_DOUBLE_EQ(three.TxMaxOverMean(), 4.0 / 3);
  NodeRails drained = three;
  drained.rails[3].drained = true;
  EXPECT_DOUBLE_EQ(drained.TxMaxOverMean(), 1);
  EXPECT_DOUBLE_EQ(drained.RxMaxOverMean(), 1);
  EXPECT_DOUBLE_EQ(drained.SpeedSum(), 300);
  const std::vector<NodeRails> none = {{"n0", {{"rail0"}, {"rail1"}, {"rail2"}, {"rail3"}}}};
  EXPECT_DOUBLE_EQ(WorstBalance(*Difference(none, {drained})).tx_max_over_mean, 1);
  drained.rails[3].tx_bytes = 30;
  EXPECT_DOUBLE_EQ(drained.RxMaxOverMean(), 4.0 / 3) << "drained only now, or not any more: it was used";
}

TEST(Exchange, BoundIsTheBusiestSideOfTheBusiestNode) {
  workload::TrafficMatrix ranks(4);  // two ranks a node
  ranks.at(0, 2) = 100;
  ranks.at(1, 3) = 50;
  ranks.at(0, 1) = 1'000'000;  // stays
  ranks.at(2, 2) = 1'000'000;  // stays
  ranks.at(3, 0) = 30;
  EXPECT_DOUBLE_EQ(BoundSeconds(ranks, 2, {10, 10}), 15);
  EXPECT_DOUBLE_EQ(BoundSeconds(ranks, 2, {10, 5}), 30);
  EXPECT_DOUBLE_EQ(BoundSeconds(ranks, 2, {10, 0}), 0);
  const ByteCounts counts = CountBytes(ranks, 2);
  EXPECT_EQ(counts.network, 180u);
  EXPECT_EQ(counts.local, 1'000'000u);
  EXPECT_EQ(counts.self, 1'000'000u);
}

TEST(Exchange, SizesMustFit) {
  std::vector<workload::Step> steps(1);
  steps[0].dispatch = workload::TrafficMatrix(3);
  ExchangeOptions options;
  options.nodes = 2;
  options.bytes_per_rank = 0;
  EXPECT_THAT(std::string(PlanExchange(steps, options).status().message()), HasSubstr("between 3 ends"));
  EXPECT_FALSE(PlanExchange({}, options).ok());
  steps.emplace_back().dispatch = workload::TrafficMatrix(2);
  EXPECT_FALSE(PlanExchange(steps, options).ok());
}

}  // namespace
}  // namespace rails::ctl
