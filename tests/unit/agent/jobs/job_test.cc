// Jobs from submission to the last byte, over several engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Over rails that receive frames, and over rails that write into remote memory.
class JobTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Rails, JobTest, ::testing::Bool(), ModeOf);

TEST_P(JobTest, EveryByteArrivesForRandomMatrices) {
  for (uint64_t round = 0; round < 12; ++round) {
    const uint64_t seed = Seed() * 1000 + round;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const size_t nodes = 1 + random() % 4;
    const uint32_t world = static_cast<uint32_t>(nodes * (1 + random() % 3));
    Cluster cluster({.remote = GetParam(),
                     .nodes = nodes,
                     .rails = 1 + random() % 4,
                     .seed = seed,
                     .plan = {.min_chunk_bytes = 1024}});
    Exchange exchange(&cluster, world, "g");
    for (uint64_t seq = 1; seq <= 3; ++seq) {
      exchange.SetLengths(Exchange::RandomLengths(world, 90000, random), seed + seq);
      exchange.RunJob(seq, 1 + random() % 20);
    }
  }
}

TEST_P(JobTest, ReportsBytesBoundAndRails) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 2'000'000}, {1'000'000, 0}});
  exchange.SubmitAll(1);
  cluster.Run();
  JobReport report = exchange.Report(0, 1);
  // max(2 MB out, 1 MB in) over two rails of 100 MB/s.
  EXPECT_EQ(report.node_bound, absl::Milliseconds(10));
  ASSERT_EQ(report.rail_tx_bytes.size(), 2u);
  EXPECT_EQ(report.rail_tx_bytes[0] + report.rail_tx_bytes[1], 2'000'000u);
  EXPECT_EQ(report.rail_tx_bytes[0], 1'000'000u);
  // Bytes received over rails that bind zones are told by the sender, 10 ms later where no READY follows.
  if (GetParam()) {
    cluster.Advance(absl::Seconds(1));
    cluster.Run();
    report = exchange.Report(0, 1);
  }
  EXPECT_EQ(report.rail_rx_bytes[0] + report.rail_rx_bytes[1], 1'000'000u);
}

// The bound of a byte rounds to zero, and the ratio to it would be infinite.
TEST_P(JobTest, AJobOfAByteOnFastRailsHasNoRatioToItsBound) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2, .rail_bytes_per_s = 50'000'000'000});
  Lengths lengths = AllLengths(2, 0);
  lengths[0][1] = 1;
  Exchange exchange(&cluster, "g", lengths);
  exchange.SubmitAll(1);
  cluster.Run([&] {
    cluster.Advance(absl::Microseconds(1));
    return false;
  });
  const JobReport report = exchange.Report(0, 1);
  EXPECT_TRUE(report.status.ok());
  EXPECT_EQ(report.node_bound, absl::ZeroDuration());
  EXPECT_EQ(report.ratio_to_bound, 0);
}

// Ranks 0 and 2 are on node 0, ranks 1 and 3 on node 1; the first of each has rail 0 for its own. 100 MB/s a rail.
TEST_P(JobTest, ReportsTheLeastTimeOverPinnedRails) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Lengths lengths = AllLengths(4, 0);
  lengths[0][1] = 300'000;
  lengths[0][3] = 100'000;
  lengths[0][2] = 900'000;  // stays on the node
  lengths[2][1] = 200'000;
  Exchange exchange(&cluster, "g", lengths);
  exchange.SubmitAll(1);
  cluster.Run();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(exchange.Report(rank, 1).pinned_bound, absl::Milliseconds(4)) << "rail 0 carries 400 kB";
    EXPECT_EQ(exchange.Report(rank, 1).node_bound, absl::Milliseconds(3));
    EXPECT_EQ(exchange.Report(rank, 1).parts, 2u);
    EXPECT_LT(exchange.Report(rank, 1).ended, absl::InfiniteFuture());
  }
  lengths[3][0] = 500'000;  // over rail 1, the other way
  exchange.SetLengths(lengths, 2);
  exchange.SubmitAll(2);
  cluster.Run();
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(exchange.Report(rank, 2).pinned_bound, absl::Milliseconds(5)) << rank;
  }
}

// Peers tell with each job what their plans have put onto the rails before.
TEST_P(JobTest, WhatPeersHavePlannedIsKnown) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 2'000'000}, {1'000'000, 0}});
  const auto planned = [&](size_t n) {
    const AgentSnapshot snapshot = cluster.node(n).engine->Snapshot(0);
    return std::pair(snapshot.rails[0].planned_rx_bytes, snapshot.rails[1].planned_rx_bytes);
  };
  exchange.SubmitAll(1);
  cluster.Run();
  exchange.ExpectDone(1);
  EXPECT_EQ(planned(1), std::pair(uint64_t{0}, uint64_t{0}));
  exchange.SubmitAll(2);
  cluster.Run();
  EXPECT_EQ(planned(1), std::pair(uint64_t{1'000'000}, uint64_t{1'000'000}));
  EXPECT_EQ(planned(0), std::pair(uint64_t{500'000}, uint64_t{500'000}));
  cluster.Advance(absl::Seconds(1));
  cluster.Run();
  // The link is lost and comes back: nothing is counted twice, and nothing is forgotten.
  const uint64_t received = cluster.node(1).engine->Snapshot(0).peers[0].rail_rx_bytes[0];
  EXPECT_EQ(received, 2'000'000u);
  cluster.Lose(0, 1, "silent");
  cluster.Lose(1, 0, "silent");
  cluster.Run();
  cluster.Meet(0, 1);
  cluster.Run();
  Exchange again(&cluster, "h", {{0, 10'000}, {0, 0}});
  again.SubmitAll(1);
  cluster.Run();
  again.ExpectDone(1);
  cluster.Advance(absl::Seconds(1));
  cluster.Run();
  EXPECT_EQ(planned(1), std::pair(uint64_t{2'000'000}, uint64_t{2'000'000}));
  const std::vector<uint64_t> by_rail = cluster.node(1).engine->Snapshot(0).peers[0].rail_rx_bytes;
  EXPECT_EQ(by_rail[0] + by_rail[1], 4'010'000u);
}

TEST_P(JobTest, SeveralJobsOfSeveralGroupsAtOnce) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 2, .seed = Seed(), .limits = {.max_jobs_per_group = 4}});
  std::mt19937_64 random(Seed());
  Exchange a(&cluster, 3, "a"), b(&cluster, 6, "b");
  for (Exchange* exchange : {&a, &b}) exchange->ReceiveApart(4);
  a.SetLengths(Exchange::RandomLengths(3, 50000, random), 1);
  b.SetLengths(Exchange::RandomLengths(6, 50000, random), 2);
  // The same buffers may be sent by several jobs at once.
  for (uint64_t seq = 1; seq <= 4; ++seq) {
    a.SubmitAll(seq);
    b.SubmitAll(seq);
  }
  cluster.Run();
  for (uint64_t seq = 1; seq <= 4; ++seq) {
    a.ExpectDone(seq);
    b.ExpectDone(seq);
  }
  a.ExpectBytes();
  b.ExpectBytes();
}

// Two nodes whose groups submit in opposite order, each with a quota of one job: neither may wait for the other.
TEST_P(JobTest, GroupsInOppositeOrderDoNotDeadlock) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1, .seed = Seed(), .limits = {.max_jobs_per_group = 1}});
  Exchange a(&cluster, 2, "a"), b(&cluster, 2, "b");
  for (Exchange* e : {&a, &b}) e->SetLengths({{0, 5000}, {5000, 0}}, 3);
  EXPECT_TRUE(a.trainer(0).Submit(a.For(0, 1)).ok());
  EXPECT_TRUE(b.trainer(1).Submit(b.For(1, 1)).ok());
  cluster.Run();
  EXPECT_EQ(a.trainer(0).Submit(a.For(0, 2)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(b.trainer(0).Submit(b.For(0, 1)).ok());
  EXPECT_TRUE(a.trainer(1).Submit(a.For(1, 1)).ok());
  cluster.Run();
  for (Exchange* e : {&a, &b}) {
    for (uint32_t r : {0u, 1u}) EXPECT_EQ((*e->trainer(r).Wait(1))->state, JobState::kDone);
    e->ExpectBytes();
  }
}

TEST_P(JobTest, FullRailQueuesOnlyDelay) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 2, .seed = Seed()});
  for (size_t n = 0; n < 3; ++n) {
    for (auto& rail : cluster.node(n).rails) rail->capacity = 1;
  }
  Exchange exchange(&cluster, 6, "g");
  std::mt19937_64 random(Seed());
  exchange.SetLengths(Exchange::RandomLengths(6, 80000, random), 5);
  exchange.RunJob(1, 4);
}

TEST_P(JobTest, SameSubmissionIsTheSameJob) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 100}, {200, 0}});
  exchange.SubmitAll(1);
  EXPECT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  cluster.Run();
  EXPECT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok()) << "after its end, too";
  exchange.SetLengths({{0, 101}, {200, 0}}, 1);
  EXPECT_EQ(exchange.trainer(0).Submit(exchange.For(0, 1)).code(), absl::StatusCode::kAlreadyExists);
  // Refusals consume no number.
  EXPECT_EQ(exchange.trainer(0).Submit(exchange.For(0, 3)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 2)).ok());
}

TEST_P(JobTest, LengthMismatchIsToldToBothAndTheGroupGoesOn) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 100}, {200, 0}});
  Submission first = exchange.For(0, 1);
  exchange.SetLengths({{0, 99}, {200, 0}}, 1);
  ASSERT_TRUE(exchange.trainer(0).Submit(std::move(first)).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  exchange.ExpectFailed(1, absl::StatusCode::kInvalidArgument,
                        AllOf(HasSubstr("rank 0 on n0 sends 100 bytes to rank 1 on n1"), HasSubstr("expects 99")));
  exchange.SetLengths({{0, 100}, {200, 0}}, 1);
  exchange.SubmitAll(2);
  cluster.Run();
  exchange.ExpectDone(2);
}

TEST_P(JobTest, LocalLengthMismatchNamesBothRanks) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 10}, {20, 0}});
  Submission first = exchange.For(0, 1);
  exchange.SetLengths({{0, 10}, {21, 0}}, 1);
  ASSERT_TRUE(exchange.trainer(0).Submit(std::move(first)).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  exchange.ExpectFailed(1, "rank 1 on n0 sends 21 bytes to rank 0");
}

TEST_P(JobTest, TagsMustAgree) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 10}, {20, 0}});
  Submission odd = exchange.For(1, 1);
  odd.tag = 77;
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(std::move(odd)).ok());
  cluster.Run();
  exchange.ExpectFailed(1, "77");
}

TEST_P(JobTest, BadSubmissionsNameFieldAndValueAndChangeNothing) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1, .limits = {.max_ranges_per_submission = 8}});
  Exchange exchange(&cluster, 2, "g");
  Trainer& trainer = exchange.trainer(0);
  const uint64_t size = trainer.send->size();
  const uint64_t huge = ~uint64_t{0};
  const auto with = [&](std::vector<FlowRanges> sends, std::vector<FlowRanges> receives) {
    Submission s;
    s.job = {trainer.group->epoch, JobSeq(1)};
    s.rank = Rank(0);
    s.sends = std::move(sends);
    s.receives = std::move(receives);
    return s;
  };
  const SegmentId a(1), b(2), again(3), none(9);
  cluster.AddSegment(0, trainer.session, 3, *trainer.receive);  // the memory of segment 2
  struct Case {
    Submission submission;
    absl::StatusCode code;
    std::string text;
  };
  using Code = absl::StatusCode;
  std::vector<Case> cases;
  cases.push_back({with({{Rank(2), {}}}, {}), Code::kInvalidArgument, "sends[0].peer_rank: 2"});
  cases.push_back({with({{Rank(0), {{b, 5, 8}}}}, {{Rank(0), {{b, 0, 8}}}}), Code::kInvalidArgument,
                   "sends: range [5, 13) of segment 2 overlaps the receive range [0, 8) of segment 2"});
  cases.push_back({with({{Rank(0), {{b, 0, 4}, {again, 4, 5}}}}, {{Rank(0), {{b, 0, 8}}}}), Code::kInvalidArgument,
                   "overlaps the receive range [0, 8) of segment 2"});
  cases.push_back({with({{Rank(0), {{b, 0, 8}}}, {Rank(1), {{b, 2, 1}}}}, {{Rank(0), {{b, 0, 8}}}}),
                   Code::kInvalidArgument, "sends: range [2, 3) of segment 2 overlaps the receive range [0, 8)"});
  cases.push_back({with({{Rank(0), {{a, 0, 8}}}}, {{Rank(0), {{b, 0, 8}}}, {Rank(1), {{a, 4, 1}}}}),
                   Code::kInvalidArgument, "sends: range [0, 8) of segment 1 overlaps the receive range [4, 5)"});
  cases.push_back({with({}, {{Rank(1), {}}, {Rank(1), {}}}), Code::kInvalidArgument, "receives[1].peer_rank: 1"});
  cases.push_back({with({{Rank(1), {{none, 0, 1}}}}, {}), Code::kNotFound, "sends[0].segment_ids: 9, of range 0"});
  cases.push_back({with({{Rank(1), {{a, size, 1}}}}, {}), Code::kInvalidArgument, "passes the end of segment 1"});
  cases.push_back({with({{Rank(1), {{a, huge, 2}}}}, {}), Code::kInvalidArgument, "18446744073709551615"});
  cases.push_back({with({{Rank(1), {{a, 1, huge}}}}, {}), Code::kInvalidArgument, "passes the end"});
  cases.push_back({with({}, {{Rank(1), {{b, 0, 10}, {b, 9, 10}}}}), Code::kInvalidArgument,
                   "[0, 10) of segment 2 and [9, 19) of segment 2 overlap"});
  cases.push_back({with({{Rank(1), {{b, 5, 1}}}}, {{Rank(1), {{b, 0, 10}}}}), Code::kInvalidArgument,
                   "overlaps the receive range [0, 10) of segment 2"});
  cases.push_back({with({{Rank(1), {{b, 5, 1}}}}, {{Rank(1), {{again, 0, 10}}}}), Code::kInvalidArgument,
                   "sends: range [5, 6) of segment 2 overlaps the receive range [0, 10) of segment 3"});
  cases.push_back({with({}, {{Rank(1), {{b, 5, 1}, {again, 0, 10}}}}), Code::kInvalidArgument,
                   "[0, 10) of segment 3 and [5, 6) of segment 2 overlap"});
  cases.push_back({with({{Rank(1), absl::InlinedVector<Range, 1>(9, {a, 0, 1})}}, {}), Code::kResourceExhausted,
                   "max_ranges_per_submission"});
  Submission wrong = with({}, {});
  wrong.rank = Rank(1);
  cases.push_back({wrong, Code::kPermissionDenied, "rank: 1"});
  wrong.rank = Rank(5);
  cases.push_back({wrong, Code::kInvalidArgument, "job.rank: 5"});
  wrong = with({}, {});
  wrong.job.seq = JobSeq(0);
  cases.push_back({wrong, Code::kInvalidArgument, "job.seq: 0"});
  wrong.job.epoch.counter += 1;
  cases.push_back({wrong, Code::kNotFound, "job.epoch"});
  for (Case& c : cases) {
    const absl::Status s = trainer.Submit(std::move(c.submission));
    EXPECT_EQ(s.code(), c.code) << s;
    EXPECT_THAT(std::string(s.message()), HasSubstr(c.text));
  }
  const AgentSnapshot snapshot = cluster.node(0).engine->Snapshot(0);
  EXPECT_TRUE(snapshot.active_jobs.empty());
  EXPECT_EQ(snapshot.counters.submissions_refused, cases.size());
  exchange.SetLengths({{0, 10}, {20, 0}}, 1);
  exchange.SubmitAll(1);
  cluster.Run();
  exchange.ExpectDone(1);
}

TEST_P(JobTest, EndlessEventsOfARailLeaveOthersTheirTurn) {
  constexpr size_t kEvents = 10'000;
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  cluster.Run();
  SteppedRail& rail = *cluster.node(0).rails[0];
  RailEvent stray;
  stray.kind = RailEvent::Kind::kZoneQuiet;
  stray.zone.slot = 4711;
  for (size_t i = 0; i < kEvents; ++i) rail.Tell(stray);
  size_t turns = 0;
  while (cluster.node(0).engine->Step()) ++turns;
  EXPECT_GE(turns, kEvents / 1024);
}

TEST_P(JobTest, CancelBeforeMatchingLeavesATombstone) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 100}, {200, 0}});
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  exchange.trainer(0).Cancel(1);
  cluster.Run();
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  exchange.ExpectFailed(1, absl::StatusCode::kCancelled, HasSubstr("rank 0"));
  exchange.RunJob(2);
}

TEST_P(JobTest, CancelInTheMiddleIsQuiescentAndBreaksTheGroup) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 4'000'000}, {4'000'000, 0}});
  exchange.SubmitAll(1);
  const auto moving = [&] { return cluster.HasReceived(1, 0); };
  cluster.Run(moving);
  ASSERT_TRUE(moving());
  exchange.trainer(0).Cancel(1);
  std::shared_ptr<absl::StatusOr<JobReport>> report = exchange.trainer(1).Wait(1);
  cluster.Run([&] { return report->ok(); });
  ASSERT_TRUE(report->ok());
  EXPECT_EQ((*report)->status.code(), absl::StatusCode::kCancelled);
  // Terminal means that no byte changes any more.
  const Buffer& receive = *exchange.trainer(1).receive;
  const std::vector<uint8_t> at_end(receive.data(), receive.data() + receive.size());
  cluster.Run();
  EXPECT_TRUE(std::equal(at_end.begin(), at_end.end(), receive.data()));
  EXPECT_EQ(exchange.trainer(0).Submit(exchange.For(0, 2)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(JobTest, ReadysBeforeTheCommitAreKept) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1});
  Exchange exchange(&cluster, 3, "g", {.join = false});
  cluster.Hold(0, 2);  // n2 hears of rank 0's commit last
  for (uint32_t r : {0u, 1u, 2u}) exchange.trainer(r).Join("g", 3);
  cluster.Run();
  ASSERT_TRUE(exchange.trainer(0).group.ok() && exchange.trainer(1).group.ok());
  exchange.SetLengths({{0, 10, 20}, {30, 0, 40}, {50, 60, 0}}, 1);
  for (uint32_t r : {0u, 1u}) ASSERT_TRUE(exchange.trainer(r).Submit(exchange.For(r, 1)).ok());
  cluster.Run();
  cluster.Release(0, 2);
  cluster.Run();
  ASSERT_TRUE(exchange.trainer(2).group.ok()) << exchange.trainer(2).group.status();
  ASSERT_TRUE(exchange.trainer(2).Submit(exchange.For(2, 1)).ok());
  cluster.Run();
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ((*exchange.trainer(r).Wait(1))->state, JobState::kDone);
  exchange.ExpectBytes();
}

// It has heard of the group from another node only, and so of nothing that has ended before the two met.
TEST_P(JobTest, AReadyForAJobThatHasEndedIsAnswered) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1, .connect = false});
  cluster.Connect(0, 1);
  cluster.Connect(0, 2);
  Exchange exchange(&cluster, "g", AllLengths(3, 1000));
  Trainer &first = exchange.trainer(0), &second = exchange.trainer(1), &third = exchange.trainer(2);
  ASSERT_TRUE(second.Submit(exchange.For(1, 1)).ok());
  cluster.node(1).engine->Cancel(second.session, {second.group->epoch, JobSeq(1)}, Rank(1), [](absl::Status) {});
  cluster.Run();
  ASSERT_TRUE(third.Submit(exchange.For(2, 1)).ok());
  cluster.Run();
  ASSERT_TRUE(first.Submit(exchange.For(0, 1)).ok());
  for (Trainer* trainer : {&third, &first}) {
    const auto report = *trainer->Wait(1);
    ASSERT_TRUE(report.ok()) << report.status() << ": n0 knows, and does not say";
    EXPECT_THAT(report->status.ToString(), HasSubstr("cancelled by rank 1 on n1"));
  }
  cluster.Connect(1, 2);
  exchange.SubmitAll(2);
  cluster.Run();
  exchange.ExpectDone(2);
}

// n0 has forgotten why: its rank has submitted later jobs, and more have ended.
TEST_P(JobTest, AReadyForAJobThatHasEndedLongAgoIsAnswered) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1, .connect = false});
  cluster.Connect(0, 1);
  cluster.Connect(0, 2);
  Exchange exchange(&cluster, "g", AllLengths(3, 1000));
  for (uint64_t seq : {1u, 2u, 3u}) {
    Trainer &first = exchange.trainer(0), &second = exchange.trainer(1);
    ASSERT_TRUE(second.Submit(exchange.For(1, seq)).ok());
    cluster.node(1).engine->Cancel(second.session, {second.group->epoch, JobSeq(seq)}, Rank(1), [](absl::Status) {});
    cluster.Run();
    ASSERT_TRUE(first.Submit(exchange.For(0, seq)).ok());
  }
  for (uint64_t seq : {1u, 2u, 3u}) {
    ASSERT_TRUE(exchange.trainer(2).Submit(exchange.For(2, seq)).ok());
    cluster.Run();
    const auto report = *exchange.trainer(2).Wait(seq);
    ASSERT_TRUE(report.ok()) << report.status() << ": n0 knows that job " << seq << " has ended, and does not say";
    EXPECT_EQ(report->state, JobState::kFailed);
  }
  cluster.Connect(1, 2);
  exchange.SubmitAll(4);
  cluster.Run();
  exchange.ExpectDone(4);
}

TEST_P(JobTest, AJobWaitsForAPeerThatIsNotConnectedYet) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1, .connect = false});
  cluster.Connect(0, 1);
  cluster.Connect(0, 2);
  Exchange exchange(&cluster, "g", {{0, 10, 20}, {30, 0, 40}, {50, 60, 0}});
  exchange.SubmitAll(1);
  cluster.Run();
  cluster.Connect(1, 2);
  exchange.ExpectCompletes(1);
}

}  // namespace
}  // namespace railsd::testing
