// One job on several nodes: clocks, beginnings, text and trace.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "absl/strings/str_cat.h"
#include "client/railsctl/explain/nodes.h"
#include "client/railsctl/explain/read.h"
#include "client/railsctl/explain/render.h"
#include "common/json/json.h"

namespace rails::ctl {
namespace {

using ::testing::HasSubstr;

constexpr double kDay = 1'700'000'000;

// A job of which the ranks of node n submit at `submitted[n]`, and whose clock is `ahead[n]`. A message takes 20 us and
// 2 us more for each node's number.
std::vector<v1::ExplainJobResponse> Job(const std::vector<double>& submitted, const std::vector<double>& ahead) {
  std::vector<v1::ExplainJobResponse> jobs(submitted.size());
  for (size_t n = 0; n < jobs.size(); ++n) {
    jobs[n].set_node(absl::StrCat("n", n));
    jobs[n].set_begun_seconds(kDay + submitted[n] + ahead[n]);
    v1::JobReport* const report = jobs[n].mutable_report();
    report->set_group("moe");
    report->set_tenant("t");
    report->mutable_job()->set_seq(5);
    report->mutable_job()->mutable_epoch()->set_boot_id(7);
    report->mutable_job()->mutable_epoch()->set_counter(3);
    report->set_state(v1::JOB_STATE_DONE);
    v1::RankPart* const rank = jobs[n].add_ranks();
    rank->set_rank(static_cast<uint32_t>(n));
    rank->set_ended_seconds(0.010);
    for (size_t other = 0; other < jobs.size(); ++other) {
      if (other == n) continue;
      v1::ExchangePart* const exchange = jobs[n].add_exchanges();
      exchange->set_node(absl::StrCat("n", other));
      exchange->set_ready_sent_seconds(1e-9);
      const double after = submitted[other] + 20e-6 + 2e-6 * static_cast<double>(other) - submitted[n];
      exchange->set_ready_received_seconds(std::max(after, 1e-9));
      exchange->set_ready_early_seconds(std::max(-after, 0.0));
    }
  }
  return jobs;
}

TEST(ExplainNodesTest, ClocksAreFoundWithinTheirError) {
  const std::vector<double> submitted = {0, 10e-6, 5e-6}, ahead = {0, 0.250, -3.5};
  const auto jobs = Job(submitted, ahead);
  const std::vector<NodeClock> clocks = AlignClocks(jobs);
  const std::vector<double> begun = Beginnings(jobs, clocks);
  for (size_t n = 0; n < 3; ++n) {
    EXPECT_TRUE(clocks[n].known);
    EXPECT_LE(clocks[n].within_seconds, 25e-6);
    EXPECT_NEAR(clocks[n].ahead_seconds, ahead[n], clocks[n].within_seconds + 1e-6);
    EXPECT_NEAR(begun[n], submitted[n], 50e-6);
  }
  EXPECT_EQ(*std::min_element(begun.begin(), begun.end()), 0);
}

TEST(ExplainNodesTest, NodesThatExchangeNothingAreComparedOverOthers) {
  auto jobs = Job({0, 0, 0}, {0, 0.1, 0.2});
  jobs[0].mutable_exchanges()->RemoveLast();  // n2
  jobs[2].mutable_exchanges()->DeleteSubrange(0, 1);
  std::vector<NodeClock> clocks = AlignClocks(jobs);
  EXPECT_NEAR(clocks[2].ahead_seconds, 0.2, 50e-6);
  EXPECT_GT(clocks[2].within_seconds, clocks[1].within_seconds);
  auto stepped = Job({0, 0}, {0, 0});
  stepped[1].mutable_exchanges(0)->set_ready_received_seconds(1e-9);
  stepped[1].mutable_exchanges(0)->set_ready_early_seconds(2);
  EXPECT_FALSE(AlignClocks(stepped)[1].known);
  jobs[2].clear_exchanges();
  clocks = AlignClocks(jobs);
  EXPECT_FALSE(clocks[2].known);
  EXPECT_EQ(clocks[2].ahead_seconds, 0);
  EXPECT_THAT(RenderNodes(jobs, clocks, false), HasSubstr("unknown"));
}

TEST(ExplainNodesTest, TheTextNamesWhoWasLast) {
  const auto jobs = Job({0, 0.004, 0}, {0, 1, 2});
  const std::string text = RenderNodes(jobs, AlignClocks(jobs), false);
  EXPECT_THAT(text, HasSubstr("job 5 of moe (tenant t, tag 0) on 3 nodes: 14.0 ms; clocks are aligned within"));
  EXPECT_THAT(text, HasSubstr("n1's ranks had submitted last, 4.0"));
  EXPECT_THAT(text, HasSubstr("n1 ended last."));
  auto running = Job({0, 0.004, 0}, {0, 1, 2});
  running[2].mutable_report()->set_state(v1::JOB_STATE_RUNNING);
  EXPECT_THAT(RenderNodes(running, AlignClocks(running), false), HasSubstr("n2 has not ended. It says:"));
  running.pop_back();
  EXPECT_THAT(RenderNodes(running, AlignClocks(running), false), HasSubstr("Not asked, and part of it: n2."));
}

TEST(ExplainNodesTest, OneTraceHasAProcessForEachNode) {
  const auto jobs = Job({0, 0.004}, {0, 1});
  const auto trace = nlohmann::json::parse(TraceJson(jobs, Beginnings(jobs, AlignClocks(jobs))));
  double begun = 0;
  std::vector<std::string> names;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") names.push_back(event["args"]["name"]);
    if (event["name"] == "submitted to ended" && event["pid"] == 2) begun = event["ts"];
  }
  EXPECT_THAT(names, ::testing::ElementsAre("n0: job 5 of moe", "n1: job 5 of moe"));
  EXPECT_NEAR(begun, 4000, 50);
  EXPECT_EQ(trace["otherData"]["nodes"][1]["node"], "n1");
}

TEST(ExplainNodesTest, OtherJobsAreRefused) {
  auto jobs = Job({0, 0}, {0, 0});
  EXPECT_TRUE(CheckOneJob(jobs).ok());
  jobs[1].mutable_report()->mutable_job()->set_seq(6);
  EXPECT_EQ(CheckOneJob(jobs).message(),
            "n1 is about job 6 of moe in epoch 0000000000000007.3, n0 about job 5 of moe in epoch 0000000000000007.3; "
            "name the job and --group");
  jobs[1] = jobs[0];
  EXPECT_EQ(CheckOneJob(jobs).message(), "node n0 is there twice");
}

TEST(ReadExplanationTest, ReadsWhatWasWritten) {
  v1::ExplainJobResponse job = Job({0, 0.001}, {0, 0})[0];
  job.mutable_report()->set_sending_seconds(0.003);
  job.mutable_report()->set_state(v1::JOB_STATE_FAILED);
  job.mutable_report()->set_code(14);
  v1::ChunkRecord* const chunk = job.add_chunks();
  chunk->set_length_bytes(uint64_t{1} << 60);
  chunk->set_posted_seconds(0.5);
  job.add_rails()->set_rail("rail0\x1b[31m");
  const auto json = MessageJson(job);
  const absl::StatusOr<v1::ExplainJobResponse> read = ReadExplanation(json.dump());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rails(0).rail(), "rail0?[31m");
  job.mutable_rails(0)->set_rail(read->rails(0).rail());
  EXPECT_EQ(MessageJson(*read), MessageJson(job));
}

TEST(ReadExplanationTest, OtherTextsAreRefused) {
  for (const char* text : {"", "[]", "{}", "{\"report\": 5}", "{\"report\": {}, \"node\": 7, \"ranks\": {}}",
                           "{\"report\": {}, \"node\": \"n0\", \"chunks\": [{\"rail\": -1}]}"}) {
    EXPECT_FALSE(ReadExplanation(text).ok()) << text;
  }
  for (const double time : {std::nan(""), HUGE_VAL, -1e300}) {
    v1::ExplainJobResponse job = Job({0, 0.001}, {0, 0})[0];
    EXPECT_TRUE(ReadExplanation(MessageJson(job).dump()).ok());
    job.set_begun_seconds(time);
    std::string json = MessageJson(job).dump();
    const char* const text = std::isnan(time) ? "\"NaN\"" : std::isinf(time) ? "\"Infinity\"" : "-1e300";
    json = std::regex_replace(json, std::regex(R"("begun_seconds":[^,]*)"), absl::StrCat("\"begun_seconds\":", text));
    EXPECT_FALSE(ReadExplanation(json).ok()) << json;
  }
  v1::ExplainJobResponse job = Job({0, 0.001}, {0, 0})[0];
  job.add_rails();
  job.add_chunks()->set_exchange(4'000'000'000);
  EXPECT_FALSE(ReadExplanation(MessageJson(job).dump()).ok());
  job.mutable_chunks(0)->set_exchange(0);
  job.mutable_chunks(0)->set_rail(1);
  EXPECT_FALSE(ReadExplanation(MessageJson(job).dump()).ok());
  const std::string deep(2'000'000, '[');
  EXPECT_FALSE(ReadExplanation(R"({"report": {}, "node": "n0", "more": )" + deep).ok());
  EXPECT_FALSE(
      ReadExplanation(R"({"report": {}, "node": "n0", "more": )" + deep + std::string(deep.size(), ']') + "}").ok());
}

}  // namespace
}  // namespace rails::ctl
