// Rails that place the bytes at their receiver (as TCP does) and die in the middle of jobs: the jobs go on over the
// others, and every byte arrives once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

uint64_t Returned(Cluster& cluster) {
  uint64_t chunks = 0;
  for (size_t n = 0; n < cluster.size(); ++n) {
    for (const RailView& rail : cluster.node(n).engine->Snapshot(0).rails) chunks += rail.returned_chunks;
  }
  return chunks;
}

const Lengths kOneFlow = {{0, 2'000'000}, {0, 0}};  // from n0 to n1

// Some of it has arrived.
void Begin(Cluster& cluster, Exchange& exchange) {
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  ASSERT_TRUE(cluster.HasReceived(1, 0));
}

TEST(FailoverTest, WhatARailGivesBackGoesOverAnother) {
  Cluster cluster({.nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", kOneFlow);
  Begin(cluster, exchange);
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  exchange.ExpectCompletes(1);
  EXPECT_GT(Returned(cluster), 0u);
  cluster.ExpectNothingOpen();
}

class FailoverPolicyTest : public ::testing::TestWithParam<Policy> {};

TEST_P(FailoverPolicyTest, NoPolicyKeepsWorkOnADeadRail) {
  Cluster cluster({.nodes = 2, .rails = 3, .plan = {.policy = GetParam(), .chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", AllLengths(6, 300'000));
  exchange.SubmitAll(1);
  cluster.RunSteps(40);
  for (size_t r : {1u, 2u}) cluster.fabric().Fail(cluster.AddressOf(0, r));
  exchange.ExpectCompletes(1);
  cluster.ExpectNothingOpen();
}

INSTANTIATE_TEST_SUITE_P(Policies, FailoverPolicyTest,
                         ::testing::Values(Policy::kLpt, Policy::kPinned, Policy::kAligned, Policy::kRoundRobin));

// Rails die and come back at any moment, again and again, sometimes all of them.
TEST(FailoverTest, JobsSurviveRailsThatComeAndGo) {
  uint64_t returned = 0;
  for (const uint64_t seed : Seeds(30)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    Cluster cluster({.nodes = 3, .rails = 3, .seed = seed, .plan = {.chunk_bytes = 16 << 10}});
    Exchange exchange(&cluster, 6, "g", {.buffer_bytes = 2 << 20});
    exchange.SetLengths(Exchange::RandomLengths(6, 200'000, random), seed);
    exchange.SubmitAll(1, 2);
    cluster.FailRails(8, random);
    exchange.ExpectDone(1);
    exchange.ExpectBytes();
    returned += Returned(cluster);
    cluster.ExpectNothingOpen();
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(returned, 0u);
}

TEST(FailoverTest, WhereNoRailIsLeftTheJobWaitsForOneAndThenFails) {
  for (const bool heals : {true, false}) {
    Cluster cluster({.nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
    Exchange exchange(&cluster, "g", kOneFlow);
    Begin(cluster, exchange);
    for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(1, r));
    cluster.RunFor(absl::Seconds(4));
    auto sender = exchange.trainer(0).Wait(1);
    EXPECT_FALSE(sender->ok()) << "it still waits";
    if (heals) cluster.fabric().Heal(cluster.AddressOf(1, 1));
    cluster.RunFor(absl::Seconds(2));
    if (heals) {
      exchange.ExpectDone(1);
      exchange.ExpectBytes();
    } else {
      exchange.ExpectFailed(1, absl::StatusCode::kUnavailable,
                            HasSubstr("no rail of n0 has reached n1 for 5s (job 1)"));
    }
    cluster.ExpectNothingOpen();
  }
}

// A job that begins while no rail is up has the same limit.
TEST(FailoverTest, AJobThatNeverFindsARailFails) {
  Cluster cluster({.nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g");
  cluster.fabric().Fail(cluster.AddressOf(1, 0));
  cluster.Run();
  exchange.SetLengths({{0, 1000}, {0, 0}}, 1);
  exchange.SubmitAll(1);
  cluster.RunFor(absl::Seconds(6));
  exchange.ExpectFailed(1, absl::StatusCode::kUnavailable, HasSubstr("no rail of n0 has reached n1"));
  cluster.ExpectNothingOpen();
}

// A peer that is cut off loses its rails first; what its jobs are told is what the link makes of it, a moment
// after `peer_lost`.
TEST(FailoverTest, WhyAPeerIsLostIsToldBeforeThatNoRailReachesIt) {
  Cluster cluster({.nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", kOneFlow);
  Begin(cluster, exchange);
  for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(1, r));
  cluster.RunFor(absl::Milliseconds(5600));  // peer_lost is 5 s; the last heartbeat came just before the cut
  EXPECT_FALSE(exchange.trainer(0).Wait(1)->ok()) << "not told yet";
  cluster.node(0).engine->OnPeerDown("n1", "cut off from this node");
  cluster.Run();
  exchange.ExpectFailed(1, absl::StatusCode::kUnavailable, AllOf(HasSubstr("node n1 is lost"), HasSubstr("cut off")),
                        {0});
}

// Everything that a rail had may have arrived: the receiver says so, and what has not is sent again.
TEST(FailoverTest, WhatIsInDoubtIsAskedAbout) {
  Cluster cluster({.nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", kOneFlow);
  Begin(cluster, exchange);
  cluster.node(0).rails[0]->watched.on_event = [](RailEvent& event) {
    if (event.kind == RailEvent::Kind::kSendDone) event.result = SendResult::kRailFailed;
  };
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  exchange.ExpectCompletes(1);
  EXPECT_GT(cluster.node(0).engine->Snapshot(0).counters.rehomed_exchanges, 0u);
  cluster.ExpectNothingOpen();
}

// n1 has aborted the job because n2 has, and drains what n0 sends. n2's ABORT comes to n0 on another link, which may be
// slow.
TEST(FailoverTest, WhatAReceiverDrainsIsNeverTakenForSent) {
  Cluster cluster({.nodes = 3, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", {{0, 2'000'000, 0}, {0, 0, 2'000'000}, {0, 0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.Hold(2, 0);
  cluster.Hold(1, 0);
  exchange.trainer(2).Cancel(1);
  cluster.Run();
  EXPECT_FALSE(exchange.trainer(0).Wait(1)->ok()) << "it waits for the ABORT that says why";
  cluster.Release(2, 0);
  cluster.Run();
  exchange.ExpectFailed(1, absl::StatusCode::kCancelled, HasSubstr("cancelled by rank 2 on n2"), {0});
  EXPECT_LT(exchange.Report(0, 1).bytes_sent, 2'000'000u);
  cluster.Release(1, 0);
  cluster.Run();
  cluster.ExpectNothingOpen();
}

// The same, and the connections end before n0 has heard that anything was refused. n0 asks what has arrived: n1's
// answer is that it has aborted, whether it keeps the job (over rails that bind zones, until n0 has stopped) or a
// tombstone.
class DrainedFramesTest : public ::testing::TestWithParam<bool> {
 protected:
  // Returns when n1 has answered, and its messages to n0 and those of n2 are held.
  void AbortAndBreak() {
    exchange_.SubmitAll(1);
    cluster_.Run([&] { return cluster_.HasReceived(1, 0); });
    cluster_.Hold(2, 0);
    cluster_.Hold(1, 0);
    for (auto& rail : cluster_.node(0).rails) rail->frozen = true;  // n0 hears of no refusal
    exchange_.trainer(2).Cancel(1);
    cluster_.Run();
    EXPECT_TRUE(GetParam() || Discarded(1) > 0) << "n1 has drained frames";
    for (size_t r : {0u, 1u}) cluster_.fabric().Fail(cluster_.AddressOf(0, r));
    for (auto& rail : cluster_.node(0).rails) rail->frozen = false;
    cluster_.Run();
    for (size_t r : {0u, 1u}) cluster_.fabric().Heal(cluster_.AddressOf(0, r));
    cluster_.Run();
    const auto answers = Outgoing<Rehomed>(cluster_, 1);
    ASSERT_EQ(answers.size(), 1u);
    ASSERT_EQ(answers[0]->exchanges.size(), 1u);
    EXPECT_EQ(answers[0]->exchanges[0].state, Rehomed::State::kAborted);
    EXPECT_FALSE(exchange_.trainer(0).Wait(1)->ok()) << "it has no answer yet";
  }
  uint64_t Discarded(size_t n) {
    uint64_t bytes = 0;
    for (auto& rail : cluster_.node(n).rails) bytes += rail->counters().rx_discarded_bytes.load();
    return bytes;
  }
  void ExpectFailed(absl::StatusCode code, const std::string& why) {
    exchange_.ExpectFailed(1, code, HasSubstr(why), {0});
    EXPECT_LT(exchange_.Report(0, 1).bytes_sent, 2'000'000u);
  }

  Cluster cluster_{{.remote = GetParam(), .nodes = 3, .rails = 2, .plan = {.chunk_bytes = 64 << 10}}};
  Exchange exchange_{&cluster_, "g", {{0, 2'000'000, 0}, {0, 0, 2'000'000}, {0, 0, 0}}};
};
INSTANTIATE_TEST_SUITE_P(Rails, DrainedFramesTest, ::testing::Bool(), ModeOf);

TEST_P(DrainedFramesTest, AreNotSentForWhoAsksAfterAFailure) {
  AbortAndBreak();
  cluster_.Release(1, 0);  // n2 still says nothing to n0
  cluster_.Run();
  ExpectFailed(absl::StatusCode::kCancelled, "cancelled by rank 2 on n2");
  cluster_.Release(2, 0);
  cluster_.Run();
  cluster_.ExpectNothingOpen();
}

TEST_P(DrainedFramesTest, AreNotSentThoughTheAnswerIsAllThatComes) {
  AbortAndBreak();
  std::erase_if(cluster_.node(1).outbox, [](const auto& message) {
    return message.first == "n0" && !std::holds_alternative<Rehomed>(message.second);
  });
  cluster_.Release(1, 0);
  cluster_.Run();
  ExpectFailed(absl::StatusCode::kUnavailable, "REHOMED of n1 for job 1: the receiver has aborted it");
  cluster_.Release(2, 0);
  cluster_.Run();
  cluster_.ExpectNothingOpen();
}

// A trainer that dies while a rail is down: what the rail gives back has no job any more.
TEST(FailoverTest, NothingOfAnAbortedJobIsSentAgain) {
  Cluster cluster({.nodes = 2, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", kOneFlow);
  Begin(cluster, exchange);
  cluster.node(1).engine->CloseSession(exchange.trainer(1).session, "pid 42 was killed", [](absl::Status) {});
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  cluster.Run();
  exchange.ExpectFailed(1, absl::StatusCode::kUnavailable, HasSubstr("pid 42 was killed"), {0});
  cluster.ExpectNothingOpen();
}

}  // namespace
}  // namespace railsd::testing
