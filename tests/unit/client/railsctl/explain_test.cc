// Sentences of `railsctl explain` on jobs with different courses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/railsctl/explain/causes.h"
#include "client/railsctl/explain/render.h"
#include "common/json/json.h"

namespace rails::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Two rails of 100 MB/s, one peer, ten chunks of 100 kB on each rail: 10 ms.
v1::ExplainJobResponse EvenJob() {
  v1::ExplainJobResponse job;
  job.set_node("n0");
  v1::JobReport* report = job.mutable_report();
  report->set_tenant("research");
  report->set_group("moe");
  report->mutable_job()->set_seq(12);
  report->set_tag(7);
  report->set_state(v1::JOB_STATE_DONE);
  report->set_elapsed_seconds(0.012);
  report->set_waiting_for_peers_seconds(0.001);
  report->set_sending_seconds(0.010);
  report->set_receiving_seconds(0.010);
  report->set_node_bound_seconds(0.010);
  report->set_ratio_to_bound(1.1);
  report->mutable_efficiency()->set_total(0.5);
  report->mutable_efficiency()->set_data(1);
  report->mutable_efficiency()->set_moving(0.8);
  report->mutable_efficiency()->set_utilisation(0.625);
  v1::RankPart* rank = job.add_ranks();
  rank->set_rank(3);
  rank->set_ended_seconds(0.012);
  v1::ExchangePart* peer = job.add_exchanges();
  peer->set_node("n1");
  peer->set_out_bytes(2'000'000);
  peer->set_ready_sent_seconds(0.0001);
  peer->set_ready_received_seconds(0.0002);
  peer->set_grant_sent_seconds(0.0003);
  peer->set_grant_received_seconds(0.0004);
  peer->set_planned_seconds(0.0005);
  peer->set_last_acknowledged_seconds(0.011);
  for (uint32_t r = 0; r < 2; ++r) {
    v1::RailPart* rail = job.add_rails();
    rail->set_rail(r == 0 ? "rail0" : "rail1");
    rail->set_speed_bytes_per_second(100'000'000);
    rail->set_planned_bytes(1'000'000);
    rail->set_tx_bytes(1'000'000);
    rail->set_chunks(10);
    rail->set_first_posted_seconds(0.001);
    rail->set_last_acknowledged_seconds(0.011);
    rail->set_busy_seconds(0.010);
    for (int c = 0; c < 10; ++c) {
      v1::ChunkRecord* chunk = job.add_chunks();
      chunk->set_rail(r);
      chunk->set_source_rank(3);
      chunk->set_length_bytes(100'000);
      chunk->set_posted_seconds(0.001 + 0.001 * c);
      chunk->set_ended_seconds(0.002 + 0.001 * c);
    }
  }
  return job;
}

TEST(CausesTest, AnEvenJobHasNothingToBlame) {
  EXPECT_THAT(Causes(EvenJob()), ElementsAre("Sending ended on all rails within 0 s."));
}

TEST(CausesTest, NamesTheRankAndThePeerThatCameLate) {
  v1::ExplainJobResponse job = EvenJob();
  job.add_ranks()->set_rank(4);
  job.mutable_ranks(1)->set_submitted_seconds(0.005);
  job.mutable_exchanges(0)->set_ready_received_seconds(0.006);
  job.mutable_exchanges(0)->set_grant_received_seconds(0.009);
  const std::vector<std::string> causes = Causes(job);
  ASSERT_EQ(causes.size(), 4u);
  EXPECT_THAT(causes[0], HasSubstr("Rank 4 submitted last, 5.00 ms after the first"));
  EXPECT_THAT(causes[1], HasSubstr("It waited for READY of n1, which came 5.90 ms after this node's"));
  EXPECT_EQ(causes[2], "It waited 3.00 ms for n1's permission to write (grant).");
}

TEST(CausesTest, NamesTheRailThatEndedLastAndWhy) {
  v1::ExplainJobResponse job = EvenJob();
  v1::RailPart* rail = job.mutable_rails(1);
  rail->set_last_acknowledged_seconds(0.021);
  rail->set_busy_seconds(0.020);
  EXPECT_THAT(Causes(job)[0],
              HasSubstr("rail1 ended last, 10.0 ms after rail0: it delivered 0.50 of its speed while it was busy"));
  rail->set_busy_seconds(0.010);
  rail->set_planned_bytes(1'500'000);
  EXPECT_THAT(Causes(job)[0], HasSubstr("the plan gave it 1.20 of the mean"));
  rail->set_planned_bytes(1'000'000);
  rail->set_tx_bytes(1'500'000);
  job.mutable_rails(0)->set_tx_bytes(1'400'000);
  EXPECT_THAT(Causes(job)[0], HasSubstr("it carried 1.03 of the mean, part of it moved from"));
  rail->set_returned_chunks(2);
  const std::vector<std::string> causes = Causes(job);
  EXPECT_EQ(causes[0], "rail1 gave back 2 chunks; other rails took over.");
  EXPECT_THAT(causes[1], HasSubstr("it failed with 2 chunks in flight"));
}

// Four rails, one of them drained; rail0 took longer than the others, and the plan was even.
TEST(CausesTest, NamesRailsThatAreFasterThanTheirSpeeds) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_report()->set_ratio_to_bound(0.6);
  job.mutable_rails(0)->set_busy_seconds(0.005);
  EXPECT_THAT(Causes(job), ::testing::Contains(AllOf(HasSubstr("0.60 of its bound"), HasSubstr("speed: rail0 2.00)"))));
  job.mutable_report()->set_ratio_to_bound(0.96);
  EXPECT_THAT(Causes(job), Not(::testing::Contains(HasSubstr("bound"))));
}

TEST(CausesTest, DrainedRailsDoNotCount) {
  v1::ExplainJobResponse job = EvenJob();
  *job.add_rails() = job.rails(1);
  v1::RailPart* drained = job.add_rails();
  drained->set_rail("rail3");
  drained->set_speed_bytes_per_second(100'000'000);
  job.mutable_rails(0)->set_last_acknowledged_seconds(0.015);
  EXPECT_THAT(Causes(job)[0], HasSubstr("the plan gave it 1.33 of the mean")) << "idle, though nobody wanted that";
  drained->set_drained(true);
  EXPECT_THAT(Causes(job)[0], HasSubstr("rail0 ended last"));
  EXPECT_THAT(Causes(job)[0], Not(HasSubstr("of the mean")));
  EXPECT_THAT(RenderExplanation(job, false), HasSubstr("rail3  DRAINED\n"));
  EXPECT_EQ(MessageJson(job)["rails"][3]["drained"], true);
}

TEST(CausesTest, FailedJobsSayWhyFirst) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_report()->set_state(v1::JOB_STATE_FAILED);
  job.mutable_report()->set_code(14);
  job.mutable_report()->set_message("node n1 is lost");
  EXPECT_EQ(Causes(job)[0], "It failed with UNAVAILABLE: node n1 is lost.");
  job.mutable_report()->set_replayable(true);
  EXPECT_EQ(Causes(job)[0], "Its ranks submit it again in the next epoch: node n1 is lost.");
  EXPECT_THAT(RenderExplanation(job, false), HasSubstr("on n0: replayable in 12.0 ms"));
}

TEST(CausesTest, AWaitingJobNamesWhomItWaitsFor) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_report()->set_state(v1::JOB_STATE_MATCHING);
  job.mutable_exchanges(0)->set_grant_received_seconds(0);
  EXPECT_THAT(Causes(job), ::testing::Contains("n1 has not given its permission to write (grant)."));
  job.mutable_exchanges(0)->set_ready_received_seconds(0);
  EXPECT_THAT(Causes(job), ::testing::Contains("READY of n1 has not come: its ranks have not submitted."));
}

// The node is sent nothing, so no permission is to come.
TEST(CausesTest, AnIncomingExchangeNeedsNoGrantOfItsSender) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_exchanges(0)->set_out_bytes(0);
  job.mutable_exchanges(0)->set_grant_received_seconds(0);
  EXPECT_THAT(Causes(job), ElementsAre("Sending ended on all rails within 0 s."));
}

TEST(CausesTest, WhatTheDaemonSaysItWaitsForIsNotGuessed) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_report()->set_state(v1::JOB_STATE_MATCHING);
  job.mutable_exchanges(0)->set_grant_received_seconds(0);
  job.mutable_exchanges(0)->set_ready_received_seconds(0);
  job.set_waits_for("for rank 3 on n1 (pid 42) to submit");
  EXPECT_EQ(Causes(job)[0], "It waits for rank 3 on n1 (pid 42) to submit.");
  EXPECT_THAT(Causes(job), ::testing::Not(::testing::Contains(HasSubstr("READY"))));
}

// The report is that of one rank, which may have submitted last.
TEST(RenderExplanation, TimesAreThoseOfAllRanksHere) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_ranks(0)->set_ended_seconds(0.112);
  job.add_ranks()->set_submitted_seconds(0.1);
  const std::string text = RenderExplanation(job, false);
  EXPECT_THAT(text, HasSubstr("done in 112 ms"));
  EXPECT_THAT(text, ::testing::ContainsRegex("waiting for ranks of this node +100 ms +89 %"));
}

TEST(RenderExplanation, ShowsTheTimelineToScale) {
  const std::string text = RenderExplanation(EvenJob(), false);
  EXPECT_THAT(text, HasSubstr("job 12 of moe (tenant research, tag 7) on n0: done in 12.0 ms; 1.100 x the bound of "
                              "10.0 ms since the last rank here submitted\n"
                              "switching efficiency 0.500 = data 1.000 x moving 0.800 x utilisation 0.625\n"));
  std::string bar = "  rail0 |·····";
  for (int i = 0; i < 50; ++i) bar += "█";
  EXPECT_THAT(text, HasSubstr(bar + "·····|\n"));
  EXPECT_THAT(text, HasSubstr("READY  ITS READY   GRANT  ITS GRANT"));
  EXPECT_THAT(text, HasSubstr("\nwhy\n  Sending ended on all rails within 0 s.\n"));
}

TEST(RenderExplanation, ChunksThatCameBackStandOut) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_chunks(4)->set_returned(true);
  job.set_chunks_left_out(9);
  const std::string text = RenderExplanation(job, false);
  EXPECT_THAT(text, HasSubstr("!"));
  EXPECT_THAT(text, HasSubstr("the first 20 chunks only; 9 more"));
  EXPECT_THAT(RenderExplanation({}, false), Not(HasSubstr("why")));  // nothing known, nothing said
}

// Nothing is granted for them, and nobody waits for a grant.
TEST(RenderExplanation, EagerExchangesAreNamed) {
  v1::ExplainJobResponse job;
  job.mutable_report()->mutable_job()->set_seq(3);
  v1::ExchangePart* const exchange = job.add_exchanges();
  exchange->set_node("n1");
  exchange->set_out_bytes(100);
  exchange->set_eager_out(true);
  exchange->set_ready_sent_seconds(0.001);
  exchange->set_ready_received_seconds(0.002);
  EXPECT_THAT(RenderExplanation(job, false), AllOf(HasSubstr(" eager out\n"), Not(HasSubstr("permission"))));
  EXPECT_THAT(RenderExplanation(job, false), HasSubstr("n1 has not acknowledged READY and the bytes in it."));
  EXPECT_THAT(TraceJson({&job, 1}, {0}), Not(HasSubstr("until its grant")));
  exchange->set_last_acknowledged_seconds(0.003);
  exchange->set_eager_in(true);
  exchange->set_last_received_seconds(0.002);
  EXPECT_THAT(RenderExplanation(job, false), AllOf(HasSubstr(" eager\n"), Not(HasSubstr("acknowledged READY"))));
  EXPECT_THAT(TraceJson({&job, 1}, {0}), AllOf(HasSubstr("eager, with our READY"), HasSubstr("eager bytes from it")));
}

// An event at the job's beginning comes as 1 ns, because 0 says that there was none.
TEST(RenderExplanation, AnEventAtTheBeginningIsAtZero) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_exchanges(0)->set_ready_sent_seconds(1e-9);
  job.mutable_exchanges(0)->set_grant_sent_seconds(0);
  EXPECT_THAT(RenderExplanation(job, false), HasSubstr("  0 s     200 us      -     400 us"));
}

TEST(TraceTest, IsATraceWithOneSpanAChunk) {
  v1::ExplainJobResponse job = EvenJob();
  job.mutable_exchanges(0)->set_node("n\"1\xff");
  // Under way together with the one before: a row of its own.
  job.mutable_chunks(1)->set_posted_seconds(0.0015);
  const auto trace = nlohmann::json::parse(TraceJson({&job, 1}, {0}));
  std::vector<std::string> rows;
  size_t chunks = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") rows.push_back(event["args"]["name"]);
    if (event["ph"] == "X" && event["args"].contains("source_rank")) {
      ++chunks;
      EXPECT_GE(event["dur"].get<double>(), 0);
    }
  }
  EXPECT_EQ(chunks, 20u);
  EXPECT_THAT(rows, ::testing::IsSupersetOf({"job 12", "receiving", "rank 3", "rail0", "rail0 +1", "rail1"}));
  EXPECT_EQ(trace["otherData"]["seq"], 12);
}

TEST(ExplanationJsonTest, HasEverything) {
  const auto json = MessageJson(EvenJob());
  EXPECT_EQ(json["report"]["efficiency"]["moving"], 0.8);
  EXPECT_EQ(json["chunks"].size(), 20u);
  EXPECT_EQ(json["rails"][1]["rail"], "rail1");
  EXPECT_EQ(json["exchanges"][0]["node"], "n1");
}

}  // namespace
}  // namespace rails::ctl
