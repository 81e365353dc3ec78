// The record of a job's course has all that happened, within its bounds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<JobExplanation> Ask(Cluster& cluster, size_t node, const std::string& group, uint64_t seq) {
  return cluster.node(node).engine->Explain({"", group, JobSeq(seq)});
}

class ExplainTest : public ::testing::TestWithParam<bool> {};  // rails write into remote memory

INSTANTIATE_TEST_SUITE_P(Rails, ExplainTest, ::testing::Bool(), ModeOf);

TEST_P(ExplainTest, EveryChunkIsThereOnce) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", AllLengths(6, 300'000));
  exchange.SubmitAll(1);
  cluster.Run();
  exchange.ExpectDone(1);
  const absl::StatusOr<JobExplanation> job = Ask(cluster, 0, "g", 1);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->report.state, JobState::kDone);
  // Two local ranks, each to and from four ranks elsewhere.
  uint64_t sent = 0;
  for (const JobTimeline::Chunk& chunk : job->timeline.chunks()) {
    sent += chunk.length_bytes;
    EXPECT_LE(chunk.posted, chunk.ended);
    EXPECT_FALSE(chunk.returned);
  }
  EXPECT_EQ(sent, 8u * 300'000);
  EXPECT_EQ(job->timeline.left_out(), 0u);
  uint64_t chunks = 0;
  for (const JobTimeline::Rail& rail : job->timeline.rails()) {
    chunks += rail.chunks;
    EXPECT_EQ(rail.under_way, 0u);
    EXPECT_EQ(rail.returned_chunks, 0u);
    EXPECT_GT(rail.last_received, absl::InfinitePast());
  }
  EXPECT_EQ(chunks, job->timeline.chunks().size());
  ASSERT_EQ(job->exchanges.size(), 2u);
  for (const JobExplanation::Exchange& peer : job->exchanges) {
    EXPECT_EQ(peer.out_bytes, 4u * 300'000);
    EXPECT_EQ(peer.in_bytes, 4u * 300'000);
    for (const absl::Time at :
         {peer.times.ready_sent, peer.times.ready_received, peer.times.grant_sent, peer.times.grant_received,
          peer.times.planned, peer.times.last_acknowledged, peer.times.last_received}) {
      EXPECT_GT(at, absl::InfinitePast());
    }
  }
  ASSERT_EQ(job->ranks.size(), 2u);
  for (const JobExplanation::RankTimes& rank : job->ranks) EXPECT_LT(rank.ended, absl::InfiniteFuture());
}

TEST_P(ExplainTest, AJobThatWaitsSaysForWhom) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 5000}, {5000, 0}});
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  cluster.RunFor(absl::Seconds(3));
  const absl::StatusOr<JobExplanation> job = Ask(cluster, 0, "", 0);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->report.state, JobState::kMatching);
  EXPECT_EQ(job->report.elapsed, absl::Seconds(3));
  ASSERT_EQ(job->exchanges.size(), 1u);
  EXPECT_GT(job->exchanges[0].times.ready_sent, absl::InfinitePast());
  EXPECT_EQ(job->exchanges[0].times.ready_received, absl::InfinitePast());
  EXPECT_TRUE(job->timeline.chunks().empty());
}

TEST_P(ExplainTest, ARunningJobShowsWhatHasCome) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 16 << 10}});
  Exchange exchange(&cluster, "g", {{0, 1 << 20}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.Advance(absl::Seconds(1));
  const auto some_is_acknowledged = [&] { return Ask(cluster, 0, "", 0)->report.bytes_sent > 0; };
  cluster.Run(some_is_acknowledged);
  const absl::StatusOr<JobExplanation> receiver = Ask(cluster, 1, "", 0), sender = Ask(cluster, 0, "", 0);
  ASSERT_TRUE(receiver.ok() && sender.ok());
  ASSERT_EQ(receiver->report.state, JobState::kRunning);
  // Rails that write into remote memory tell it afterwards.
  EXPECT_EQ(receiver->report.rail_rx_bytes[0] > 0, !GetParam());
  ASSERT_LT(sender->report.bytes_sent, sender->report.bytes_to_send);
  EXPECT_EQ(sender->report.efficiency.data, 1) << "nothing was sent again";
}

TEST_P(ExplainTest, OnlyTheLatestAreKept) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2, .explained_jobs = 2});
  Exchange a(&cluster, 2, "a"), b(&cluster, 2, "b");
  for (uint64_t seq = 1; seq <= 3; ++seq) {
    cluster.Advance(absl::Seconds(1));
    a.SetLengths({{0, 1000 * seq}, {0, 0}}, seq);
    a.SubmitAll(seq);
    cluster.Run();
    a.ExpectDone(seq);
  }
  EXPECT_THAT(Ask(cluster, 0, "a", 1).status().ToString(),
              AllOf(HasSubstr("NOT_FOUND"), HasSubstr("no job 1 of group 'a' runs on n0"), HasSubstr("last 2")));
  for (uint64_t seq : {2u, 3u}) {
    const absl::StatusOr<JobExplanation> job = Ask(cluster, 0, "a", seq);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->exchanges[0].out_bytes, 1000 * seq);
    EXPECT_EQ(job->timeline.chunks().size(), 1u);  // the storage was used before
  }
  EXPECT_EQ(Ask(cluster, 0, "", 0)->report.job.seq, JobSeq(3));
  EXPECT_TRUE(absl::IsNotFound(Ask(cluster, 0, "b", 0).status()));
  // A second group has a job of that number.
  b.SetLengths({{0, 10}, {0, 0}}, 1);
  for (uint64_t seq : {1u, 2u, 3u}) ASSERT_TRUE(b.trainer(0).Submit(b.For(0, seq)).ok());
  EXPECT_THAT(Ask(cluster, 0, "", 3).status().ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT"), HasSubstr("'a'"), HasSubstr("'b'")));
  EXPECT_EQ(Ask(cluster, 0, "b", 3)->report.group, "b");
}

// Tenants do not know of each other, and may choose the same names.
TEST_P(ExplainTest, GroupsOfOneNameAreToldApartByTenant) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange first(&cluster, 2, "g"), second(&cluster, 2, "g", {.tenant = "u"});
  for (Exchange* exchange : {&first, &second}) {
    exchange->SetLengths({{0, exchange == &first ? 1000u : 2000u}, {0, 0}}, 1);
    exchange->SubmitAll(1);
    cluster.Run();
    exchange->ExpectDone(1);
  }
  EXPECT_THAT(Ask(cluster, 0, "g", 1).status().ToString(),
              AllOf(HasSubstr("INVALID_ARGUMENT: tenant: "), HasSubstr("'t'"), HasSubstr("'u'")));
  const Engine& engine = *cluster.node(0).engine;
  EXPECT_EQ(engine.Explain({"t", "g", JobSeq(1)})->exchanges[0].out_bytes, 1000u);
  const absl::StatusOr<JobExplanation> of_u = engine.Explain({"u", "", JobSeq(0)});
  ASSERT_TRUE(of_u.ok()) << of_u.status();
  EXPECT_EQ(of_u->exchanges[0].out_bytes, 2000u);
  EXPECT_EQ(of_u->report.tenant, "u");
  EXPECT_THAT(engine.Explain({"nobody", "g", JobSeq(1)}).status().ToString(),
              HasSubstr("NOT_FOUND: no job 1 of group 'g' of tenant nobody runs on n0"));
}

TEST(ExplainOnceTest, ChunksThatCameBackAreMarked) {
  Cluster cluster({.nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", {{0, 2'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  cluster.Advance(absl::Milliseconds(1));
  cluster.Run();
  exchange.ExpectDone(1);
  const absl::StatusOr<JobExplanation> job = Ask(cluster, 0, "g", 1);
  ASSERT_TRUE(job.ok()) << job.status();
  uint64_t returned = 0, acknowledged = 0;
  for (const JobTimeline::Chunk& chunk : job->timeline.chunks()) {
    returned += chunk.returned;
    acknowledged += chunk.returned ? 0 : chunk.length_bytes;
    EXPECT_TRUE(!chunk.returned || chunk.rail == RailIndex(0));
  }
  EXPECT_GT(returned, 0u);
  EXPECT_EQ(returned, job->timeline.rails()[0].returned_chunks);
  EXPECT_LE(acknowledged, 2'000'000u);
  // Bytes that were posted again were carried again.
  EXPECT_LT(job->report.efficiency.data, 1);
  EXPECT_GT(job->report.efficiency.data, 0);
}

TEST(ExplainOnceTest, NothingIsKeptWhenToldSo) {
  Cluster cluster({.nodes = 2, .rails = 1, .explained_jobs = 0});
  Exchange exchange(&cluster, "g", {{0, 5000}, {5000, 0}});
  exchange.SubmitAll(1);
  cluster.Run();
  exchange.ExpectDone(1);
  EXPECT_THAT(Ask(cluster, 0, "g", 1).status().ToString(),
              AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("explained_jobs: 0")));
}

TEST(JobRecorderTest, KeepsNoMoreChunksThanItsBound) {
  JobRecorder recorder;
  recorder.Reset(1);
  const absl::Time now = absl::UnixEpoch();
  for (uint32_t i = 0; i < JobTimeline::kMaxChunks + 3; ++i) recorder.rails()[0].OnPosted(now);
  for (uint32_t i = 0; i < JobTimeline::kMaxChunks + 3; ++i) {
    recorder.rails()[0].OnEnded({PeerIndex(0), false, 0, 1, now, now + absl::Seconds(1)});
  }
  const JobTimeline timeline = recorder.Timeline(now + absl::Seconds(9), [](PeerIndex, uint64_t) { return Rank(0); });
  EXPECT_EQ(timeline.chunks().size(), JobTimeline::kMaxChunks);
  EXPECT_EQ(timeline.left_out(), 3u);
  EXPECT_EQ(timeline.rails()[0].chunks, JobTimeline::kMaxChunks + 3);
  EXPECT_EQ(timeline.rails()[0].under_way, 0u);
  EXPECT_EQ(timeline.rails()[0].busy, absl::Seconds(1));
}

// useful / (2 x speed x time) = data x moving x utilisation.
TEST(EfficiencyTest, IsTheProductOfItsParts) {
  Cluster cluster({.nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 2'000'000}, {1'000'000, 0}});
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  cluster.Run();
  cluster.Advance(absl::Milliseconds(10));
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.Advance(absl::Milliseconds(30));
  cluster.Run();
  const Efficiency efficiency = (*exchange.trainer(0).Wait(1))->efficiency;
  // 3 MB of 200 MB/s both ways for 40 ms, of which 10 ms waited for the peer.
  EXPECT_DOUBLE_EQ(efficiency.total, 3e6 / (2 * 200e6 * 40e-3));
  EXPECT_DOUBLE_EQ(efficiency.data, 1);
  EXPECT_DOUBLE_EQ(efficiency.moving, 0.75);
  EXPECT_DOUBLE_EQ(efficiency.total, efficiency.data * efficiency.moving * efficiency.utilisation);
}

}  // namespace
}  // namespace railsd::testing
