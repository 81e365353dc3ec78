// Jobs whose rails fail while they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <numeric>
#include <string>

#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::Contains;

uint64_t Sum(absl::Span<const uint64_t> values) { return std::accumulate(values.begin(), values.end(), uint64_t{0}); }

// a connection fails under what an aborted job has posted. Its orders come back before its end is told.
TEST(RehomeTest, QuiescedNamesTheConnectionThatFailsUnderAnAbortedJob) {
  for (const bool weak : {false, true}) {
    SCOPED_TRACE(weak);
    Cluster cluster({.remote = true, .rails = 2, .plan = {.chunk_bytes = 64 << 10}, .weak_zones = weak});
    Exchange exchange(&cluster, "g", {{0, 4'000'000}, {0, 0}});
    exchange.SubmitAll(1);
    Grant grant;
    cluster.Run([&] {
      for (const Ready* ready : Outgoing<Ready>(cluster, 1)) grant = ready->grant.value_or(grant);
      return cluster.HasReceived(1, 0) && cluster.HasReceived(1, 1);
    });
    ASSERT_EQ(grant.keys.size(), 2u);
    cluster.Hold(0, 1);
    for (auto& rail : cluster.node(0).rails) rail->frozen = true;  // n0's rails are busy
    cluster.Run();
    ASSERT_GT(cluster.node(0).engine->Snapshot(0).rails[0].in_flight_bytes, 0u);
    // The job is cancelled, and the network fails under rail 0 before the rail has heard of that.
    exchange.trainer(0).Cancel(1);
    cluster.fabric().Fail(cluster.AddressOf(0, 0));
    cluster.node(0).rails[1]->frozen = false;  // stops what it has
    cluster.Run();
    ASSERT_EQ(Outgoing<Quiesced>(cluster, 0).size(), 0u);
    cluster.node(0).rails[0]->frozen = false;  // what it had comes back, and then the end of its connection
    cluster.Run();
    ASSERT_EQ(Outgoing<Quiesced>(cluster, 0).size(), 1u);
    EXPECT_THAT(Outgoing<Quiesced>(cluster, 0)[0]->failed, Contains(grant.keys[0].rail));
    cluster.Release(0, 1);
    cluster.Run();
  }
}

// The same: every order has come back and the end of the connection is not told yet, when the job is aborted.
TEST(RehomeTest, QuiescedNamesAConnectionWhoseEndIsNotToldYet) {
  Cluster cluster({.remote = true, .rails = 2, .plan = {.chunk_bytes = 64 << 10}, .weak_zones = true});
  Exchange exchange(&cluster, "g", {{0, 4'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0) && cluster.HasReceived(1, 1); });
  cluster.Hold(0, 1);
  bool down = false;
  cluster.node(0).rails[0]->watched.on_event = [&](RailEvent& event) {
    if (event.kind != RailEvent::Kind::kPeerDown || down) return;
    down = true;
    event.kind = RailEvent::Kind::kBadPeer;  // stands for: it comes later
  };
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  cluster.Run();
  ASSERT_TRUE(down);
  exchange.trainer(0).Cancel(1);
  cluster.Run();
  ASSERT_EQ(Outgoing<Quiesced>(cluster, 0).size(), 0u) << "said without the connection";
}

// n1 has everything, its rank has left; only then n0 asks, since the last acknowledgement was lost with its rail.
TEST(RehomeTest, ARehomeOfWhatIsLongCompleteIsAnsweredComplete) {
  for (const bool remote : {false, true}) {
    SCOPED_TRACE(remote);
    Cluster cluster({.remote = remote, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
    Exchange exchange(&cluster, "g", {{0, 2'000'000}, {0, 0}});
    exchange.SubmitAll(1);
    cluster.Run([&] { return cluster.HasReceived(1, 0) && Outgoing<Ready>(cluster, 0).empty(); });
    uint32_t weight = 0, last = 0;  // of acknowledged fences; the rail of the last of them
    for (uint32_t rail = 0; rail < 2; ++rail) {
      cluster.node(0).rails[rail]->watched.on_event = [&weight, &last, rail](RailEvent& event) {
        if (event.kind != RailEvent::Kind::kSendDone || (weight += event.weight) < kWholeWeight) return;
        event.result = SendResult::kRailFailed;
        last = rail;
      };
    }
    cluster.Hold(0, 1);
    cluster.Run();
    const JobReport receiver = exchange.Report(1, 1);
    ASSERT_EQ(receiver.state, JobState::kDone) << receiver.status;
    exchange.ExpectBytes();
    cluster.fabric().Break(cluster.AddressOf(0, last), PeerIndex(0), ECONNRESET);
    cluster.Run();
    ASSERT_EQ(Outgoing<Rehome>(cluster, 0).size(), 1u);
    // The trainer of rank 1 is through, and leaves in good order.
    exchange.trainer(1).Leave();
    cluster.Run();
    cluster.Release(0, 1);
    cluster.Run();
    const JobReport sender = exchange.Report(0, 1);
    EXPECT_EQ(sender.state, JobState::kDone) << sender.status;
  }
}

// policies that interleave, and one failed rail: what a done job says of its rails.
TEST(RehomeTest, RailBytesOfADoneJobAddUpAfterAFailedRail) {
  for (const Policy policy : {Policy::kLpt, Policy::kRoundRobin, Policy::kAligned, Policy::kEcmp}) {
    SCOPED_TRACE(std::string(PolicyName(policy)));
    Cluster cluster({.rails = 2, .plan = {.policy = policy, .chunk_bytes = 16 << 10}});
    Exchange exchange(&cluster, "g", AllLengths(16, 100'000));
    exchange.SubmitAll(1);
    cluster.Run([&] { return cluster.HasReceived(1, 0); });
    cluster.RunSteps(30);
    cluster.fabric().Break(cluster.AddressOf(0, 0), PeerIndex(0), ECONNRESET);
    exchange.ExpectCompletes(1);
    const AgentSnapshot snapshot = cluster.node(1).engine->Snapshot(0);
    ASSERT_GT(cluster.node(0).engine->Snapshot(0).counters.rehomed_exchanges, 0u);
    const uint64_t in = 8 * 8 * 100'000;
    EXPECT_EQ(Sum((*exchange.trainer(1).Wait(1))->rail_rx_bytes), in);
    EXPECT_EQ(snapshot.rails[0].counts.rx_payload_bytes + snapshot.rails[1].counts.rx_payload_bytes, in);
    EXPECT_EQ(Sum(snapshot.peers[0].rail_rx_bytes), in);
  }
}

// Keys grow with what tenants receive into: the answer carries as many as fit.
TEST(RehomeTest, AnAnswerThatIsTooLongLeavesKeysOut) {
  Cluster cluster({.remote = true, .rails = 2});
  Exchange exchange(&cluster, 2, "g");
  constexpr size_t kJobs = 4;
  exchange.ReceiveApart(kJobs);
  exchange.SetLengths({{0, 10'000}, {0, 0}}, 1);
  size_t too_long = 0;
  cluster.node(1).does_not_fit = [&](const ControlMessage& message) {
    const auto* const answer = std::get_if<Rehomed>(&message);
    size_t keys = 0;
    for (size_t i = 0; answer != nullptr && i < answer->exchanges.size(); ++i) {
      for (const RailKeys& rail : answer->exchanges[i].keys) keys += rail.keys.size();
    }
    too_long += keys > 2;
    return keys > 2 ? absl::ResourceExhaustedError("too long") : absl::OkStatus();
  };
  // n0's rail 1 is down while the zones are granted; then rail 0 goes and rail 1 is back.
  cluster.fabric().Fail(cluster.AddressOf(0, 1));
  cluster.Run();
  cluster.fabric().SetStepBytes(cluster.AddressOf(1, 0), 0);
  for (uint64_t seq = 1; seq <= kJobs; ++seq) exchange.SubmitAll(seq, 900);
  cluster.Run();
  cluster.fabric().Heal(cluster.AddressOf(0, 1));
  cluster.fabric().Fail(cluster.AddressOf(0, 0));
  for (int i = 0; i < 10; ++i) {  // what got no key asks again after a while
    cluster.Run();
    cluster.Advance(absl::Milliseconds(60));
  }
  EXPECT_GT(too_long, 0u);
  for (uint64_t seq = 1; seq <= kJobs; ++seq) exchange.ExpectDone(seq);
  exchange.ExpectBytes();
}

// job 1 is complete at n1, and its last acknowledgement was lost with the rails. Job 2 goes on. No rail comes back.
TEST(RehomeTest, WhatIsCompleteDoesNotWaitForTheKeysOfOthers) {
  for (const bool remote : {false, true}) {
    SCOPED_TRACE(remote);
    Cluster cluster({.remote = remote, .rails = 2, .plan = {.chunk_bytes = 64 << 10}});
    Exchange exchange(&cluster, 2, "g", {.buffer_bytes = 8 << 20});
    exchange.ReceiveApart(2);
    exchange.SetLengths({{0, 100'000}, {0, 0}}, 1);
    for (size_t r : {0u, 1u}) {
      cluster.node(0).rails[r]->watched.on_event = [](RailEvent& event) {
        if (event.kind == RailEvent::Kind::kSendDone && event.weight > 0) event.result = SendResult::kRailFailed;
      };
    }
    exchange.SubmitAll(1);
    cluster.Run();
    const JobReport receiver = exchange.Report(1, 1);
    ASSERT_EQ(receiver.state, JobState::kDone) << receiver.status;
    EXPECT_FALSE(exchange.trainer(0).Wait(1)->ok());
    for (size_t r : {0u, 1u}) cluster.fabric().SetStepBytes(cluster.AddressOf(1, r), 1000);
    exchange.SubmitAll(2);
    cluster.RunSteps(60);
    for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(0, r));
    cluster.RunFor(absl::Seconds(7));
    const JobReport sender = exchange.Report(0, 1);
    EXPECT_EQ(sender.state, JobState::kDone) << sender.status;
  }
}

// over TCP nobody sends tallies. A peer that does.
TEST(RehomeTest, ATallyOverTcpCountsNothing) {
  Cluster cluster({.rails = 2, .plan = {.chunk_bytes = 64 << 10}});
  Exchange exchange(&cluster, "g", {{0, 2'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.node(1).engine->OnPeerMessage("n0", BootId(1000),
                                        Tally{{exchange.trainer(1).group->epoch, JobSeq(1)}, {1'000'000, 1'000'000}});
  cluster.Run();
  exchange.ExpectDone(1);
  EXPECT_EQ(Sum((*exchange.trainer(1).Wait(1))->rail_rx_bytes), 2'000'000u);
  const AgentSnapshot snapshot = cluster.node(1).engine->Snapshot(0);
  EXPECT_EQ(snapshot.rails[0].counts.rx_payload_bytes + snapshot.rails[1].counts.rx_payload_bytes, 2'000'000u);
}

}  // namespace
}  // namespace railsd::testing
