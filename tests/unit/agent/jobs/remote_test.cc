// Jobs over rails that write into remote memory: keys, fences, room for zones, tallies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::ElementsAre;

uint64_t Fences(Cluster& cluster) {
  uint64_t fences = 0;
  for (size_t n = 0; n < cluster.size(); ++n) {
    for (auto& rail : cluster.node(n).rails) fences += rail->counters().tx_fences.load();
  }
  return fences;
}

TEST(RemoteJobTest, OneFenceForEachExchangeAndRailAtMost) {
  constexpr uint32_t kWorld = 6;
  Cluster cluster({.remote = true, .nodes = 3, .rails = 4, .plan = {.chunk_bytes = 16 << 10, .min_chunk_bytes = 1024}});
  Exchange exchange(&cluster, kWorld, "g", {.buffer_bytes = 4 << 20});
  // n0 sends much, n1 nothing, n2 little.
  Lengths lengths(kWorld, std::vector<uint64_t>(kWorld, 300'000));
  for (uint32_t source : {1u, 4u}) lengths[source].assign(kWorld, 0);
  for (uint32_t source : {2u, 5u}) lengths[source].assign(kWorld, 10);
  exchange.SetLengths(lengths, 1);
  exchange.RunJob(1, 3);
  EXPECT_LE(Fences(cluster), 4u * 4);
  EXPECT_GE(Fences(cluster), 4u + 3) << "exchanges without bytes need none";
  uint64_t chunks = 0;
  for (size_t n = 0; n < 3; ++n) {
    for (auto& rail : cluster.node(n).rails) chunks += rail->counters().tx_chunks.load();
  }
  EXPECT_GT(chunks, Fences(cluster)) << "not one for each chunk";
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, AStreamOnOneRailNeedsNoOrderBesidesItsChunk) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 4});
  Exchange exchange(&cluster, "g", {{0, 100}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run();
  exchange.ExpectDone(1);
  uint64_t work_requests = 0;
  for (auto& rail : cluster.node(0).rails) work_requests += rail->counters().work_requests.load();
  EXPECT_EQ(work_requests, 1u);
  EXPECT_EQ(Fences(cluster), 1u);
}

TEST(RemoteJobTest, ReadyWaitsForTheKeysOfEveryRail) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 3});
  Exchange exchange(&cluster, "g", {{0, 1000}, {0, 0}});
  cluster.node(1).rails[2]->frozen = true;
  cluster.Hold(1, 0);
  exchange.SubmitAll(1);
  cluster.Run();
  EXPECT_TRUE(Outgoing<Ready>(cluster, 1).empty());
  EXPECT_EQ((*exchange.trainer(1).Wait(1)).status().code(), absl::StatusCode::kUnknown);
  cluster.node(1).rails[2]->frozen = false;
  cluster.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster, 1).size(), 1u);
  const Ready& ready = *Outgoing<Ready>(cluster, 1)[0];
  ASSERT_TRUE(ready.grant.has_value());
  EXPECT_NE(ready.grant->zone.slot, 0u);
  ASSERT_EQ(ready.grant->keys.size(), 3u);
  for (const RailKeys& rail : ready.grant->keys) {
    EXPECT_EQ(rail.keys.size(), ready.grant->ranges.size());
    EXPECT_EQ(std::count(rail.keys.begin(), rail.keys.end(), 0u), 0);
    EXPECT_NE(rail.rail.connection, 0u);
  }
  cluster.Release(1, 0);
  exchange.ExpectCompletes(1);
}

// A fence of one rail says nothing about another rail.
TEST(RemoteJobTest, FencesOfOneRailDoNotCompleteWhatAnotherStillCarries) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 600'000}, {0, 0}});
  exchange.SubmitAll(1);
  SteppedRail& slow = *cluster.node(1).rails[0];
  cluster.Run([&] { return cluster.node(0).engine->Snapshot(0).rails[0].in_flight_bytes > 0; });
  slow.frozen = true;  // nothing lands on it any more
  auto sender = exchange.trainer(0).Wait(1), receiver = exchange.trainer(1).Wait(1);
  cluster.Run();
  EXPECT_GT(cluster.node(1).rails[1]->counters().rx_fences.load(), 0u);
  EXPECT_FALSE(receiver->ok());
  EXPECT_FALSE(sender->ok());
  slow.frozen = false;
  exchange.ExpectCompletes(1);
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, ASenderIsNotDoneBeforeItsFencesAreAcknowledged) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 600'000}, {0, 0}});
  std::vector<SendOrder> kept;
  cluster.node(0).rails[1]->watched.tamper = [&](SendOrder& order) {
    if (order.weight > 0) kept.push_back(order);
    return order.weight == 0;
  };
  exchange.SubmitAll(1);
  auto sender = exchange.trainer(0).Wait(1), receiver = exchange.trainer(1).Wait(1);
  cluster.Run();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_GT(kept[0].length_bytes, 0u) << "the fence travels with the last bytes";
  EXPECT_FALSE(sender->ok());
  EXPECT_FALSE(receiver->ok());
}

TEST(RemoteJobTest, LateBindingMovesChunksAndTheirFences) {
  for (const uint64_t seed : Seeds(5)) {
    SCOPED_TRACE(seed);
    Cluster cluster({.remote = true, .nodes = 2, .rails = 3, .seed = seed, .plan = {.chunk_bytes = 64 << 10}});
    Exchange exchange(&cluster, 4, "g", {.buffer_bytes = 8 << 20});
    exchange.SetLengths(AllLengths(4, 2'000'000), seed);
    exchange.SubmitAll(1, 2);
    cluster.Run([&] { return cluster.HasReceived(1, 0); });
    cluster.fabric().SetStepBytes(cluster.AddressOf(1, 1), 1000);
    cluster.Run([&] {
      cluster.Advance(absl::Milliseconds(1));
      return false;
    });
    cluster.fabric().SetStepBytes(cluster.AddressOf(1, 1), 128 << 10);
    exchange.ExpectCompletes(1);
    const uint64_t moves = cluster.node(0).engine->Snapshot(0).counters.late_moves;
    EXPECT_GT(moves, 0u);
    EXPECT_LE(Fences(cluster), 2u * 3 + moves + cluster.node(1).engine->Snapshot(0).counters.late_moves);
    cluster.ExpectNothingOpen();
  }
}

TEST(RemoteJobTest, ThousandJobsLeaveNothingBehind) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .limits = {.max_jobs_per_group = 8}});
  Exchange exchange(&cluster, 4, "g");
  exchange.ReceiveApart(5);
  std::mt19937_64 random(7);
  for (uint64_t seq = 1; seq <= 1000; ++seq) {
    if (seq % 50 == 1) exchange.SetLengths(Exchange::RandomLengths(4, 2000, random), seq);
    exchange.SubmitAll(seq);
    if (seq % 5 != 0) continue;  // five at a time
    cluster.Run();
    for (uint64_t done = seq - 4; done <= seq; ++done) exchange.ExpectDone(done);
    if (seq % 50 == 0) exchange.ExpectBytes();
    if (::testing::Test::HasFailure()) return;
  }
  cluster.ExpectNothingOpen();
  for (size_t n = 0; n < 2; ++n) {
    for (auto& rail : cluster.node(n).rails) {
      EXPECT_EQ(rail->counters().protocol_errors.load(), 0u);
      EXPECT_EQ(rail->counters().disconnects.load(), 0u);
    }
  }
}

TEST(RemoteJobTest, ExchangesWaitForRoomForTheirZones) {
  Cluster cluster({.remote = true, .nodes = 3, .rails = 2, .limits = {.max_jobs_per_group = 8}, .zone_room = 5});
  Exchange exchange(&cluster, 6, "g");  // each job needs two zones on each node
  exchange.ReceiveApart(6);
  exchange.SetLengths(AllLengths(6, 5000), 3);
  for (uint64_t seq = 1; seq <= 6; ++seq) exchange.SubmitAll(seq);
  size_t most = 0;
  cluster.Run([&] {
    for (size_t n = 0; n < 3; ++n) {
      most = std::max<size_t>(most, cluster.node(n).engine->Snapshot(0).counters.open_zones);
    }
    return false;
  });
  for (uint64_t seq = 1; seq <= 6; ++seq) exchange.ExpectDone(seq);
  exchange.ExpectBytes();
  EXPECT_LE(most, 5u);
  EXPECT_GE(most, 4u);
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, ANodeWithoutRoomOpensOneZoneAtATime) {
  Cluster cluster({.remote = true, .nodes = 3, .rails = 1, .zone_room = 0});
  Exchange exchange(&cluster, 6, "g");
  exchange.ReceiveApart(3);
  exchange.SetLengths(AllLengths(6, 5000), 3);
  for (uint64_t seq = 1; seq <= 3; ++seq) exchange.SubmitAll(seq);
  size_t most = 0;
  cluster.Run([&] {
    for (size_t n = 0; n < 3; ++n) {
      most = std::max<size_t>(most, cluster.node(n).engine->Snapshot(0).counters.open_zones);
    }
    return false;
  });
  for (uint64_t seq = 1; seq <= 3; ++seq) exchange.ExpectDone(seq);
  exchange.ExpectBytes();
  EXPECT_EQ(most, 1u);
  cluster.ExpectNothingOpen();
}

// Grants that n1 has sent to n0.
struct Grants {
  explicit Grants(Cluster* cluster) {
    cluster->node(1).does_not_fit = [this](const ControlMessage& message) {
      const auto* ready = std::get_if<Ready>(&message);
      if (ready != nullptr) (ready->grant.has_value() ? riding : without).push_back(ready->job.seq.value());
      if (const auto* grant = std::get_if<LateGrant>(&message)) late.push_back(grant->job.seq.value());
      return absl::OkStatus();
    };
  }
  std::vector<uint64_t> riding, without, late;  // jobs
};

TEST(RemoteJobTest, GrantsRideWhileHalfOfTheRoomIsLeftAndFollowOtherwise) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .limits = {.max_jobs_per_group = 8}, .zone_room = 5});
  Exchange exchange(&cluster, 2, "g");
  exchange.ReceiveApart(7);
  exchange.SetLengths({{0, 5000}, {0, 0}}, 3);
  Grants grants(&cluster);
  for (uint64_t seq = 1; seq <= 4; ++seq) ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, seq)).ok());
  cluster.Run();
  EXPECT_THAT(grants.riding, ElementsAre(1, 2)) << "with the third more than half of it would wait for n0";
  EXPECT_THAT(grants.without, ElementsAre(3, 4));
  EXPECT_TRUE(grants.late.empty()) << "n0 has not submitted";
  for (auto& rail : cluster.node(0).rails) rail->frozen = true;  // no zone is done with
  for (uint64_t seq = 1; seq <= 7; ++seq) ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, seq)).ok());
  cluster.Run();
  EXPECT_THAT(grants.late, ElementsAre(3, 4));
  // All of the room is for peers that have submitted.
  for (uint64_t seq = 5; seq <= 7; ++seq) ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, seq)).ok());
  cluster.Run();
  EXPECT_THAT(grants.riding, ElementsAre(1, 2, 5));
  EXPECT_THAT(grants.without, ElementsAre(3, 4, 6, 7));
  EXPECT_EQ(cluster.node(1).engine->Snapshot(0).counters.open_zones, 5u);
  EXPECT_THAT(grants.late, ElementsAre(3, 4));
  for (auto& rail : cluster.node(0).rails) rail->frozen = false;
  cluster.Run();
  EXPECT_THAT(grants.late, ElementsAre(3, 4, 6, 7));
  for (uint64_t seq = 1; seq <= 7; ++seq) {
    for (uint32_t r : {0u, 1u}) EXPECT_EQ((*exchange.trainer(r).Wait(seq))->state, JobState::kDone);
  }
  exchange.ExpectBytes();
  cluster.ExpectNothingOpen();
}

// Room that waits for a peer which has submitted something else is not missing for what that peer waits for.
TEST(RemoteJobTest, GroupsInDifferentOrderDoNotWaitForEachOther) {
  constexpr size_t kGroups = 5;
  for (const uint64_t seed : Seeds(24)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const size_t nodes = 2 + seed % 2;
    Cluster cluster({.remote = seed % 4 != 0,
                     .nodes = nodes,
                     .rails = 2,
                     .seed = seed,
                     .zone_room = static_cast<uint32_t>(1 + random() % 3)});
    std::deque<Exchange> groups;
    const auto world = static_cast<uint32_t>(nodes);
    for (size_t g = 0; g < kGroups; ++g) {
      groups.emplace_back(&cluster, absl::StrCat("g", g), AllLengths(world, 5000));
    }
    std::vector<std::vector<size_t>> order(nodes, std::vector<size_t>(kGroups));
    for (std::vector<size_t>& of_node : order) {
      std::iota(of_node.begin(), of_node.end(), 0);
      std::shuffle(of_node.begin(), of_node.end(), random);
    }
    for (size_t submitted = 0; submitted < nodes * kGroups;) {
      const auto rank = static_cast<uint32_t>(random() % nodes);
      if (order[rank].empty()) continue;
      Exchange& group = groups[order[rank].back()];
      order[rank].pop_back();
      ++submitted;
      ASSERT_TRUE(group.trainer(rank).Submit(group.For(rank, 1)).ok());
      if (random() % 2 == 0) cluster.Run();
    }
    cluster.Run();
    for (Exchange& group : groups) {
      for (uint32_t r = 0; r < world; ++r) {
        const auto report = *group.trainer(r).Wait(1);
        ASSERT_TRUE(report.ok()) << "it still waits";
        EXPECT_EQ(report->state, JobState::kDone) << report->status;
      }
      group.ExpectBytes();
    }
    cluster.ExpectNothingOpen();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RemoteJobTest, WaitingExchangesOfAnAbortedJobAreForgotten) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1, .zone_room = 1});
  Exchange a(&cluster, 2, "a", {.buffer_bytes = 8 << 20}), b(&cluster, 2, "b", {.buffer_bytes = 8 << 20});
  for (Exchange* e : {&a, &b}) e->SetLengths({{0, 5'000'000}, {0, 0}}, 3);
  a.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.node(0).rails[0]->frozen = true;
  b.SubmitAll(1);
  cluster.Run();
  b.trainer(1).Cancel(1);
  auto cancelled = b.trainer(1).Wait(1);
  cluster.Run();
  ASSERT_TRUE(cancelled->ok()) << "no zone was open: nobody has to stop";
  EXPECT_EQ((*cancelled)->status.code(), absl::StatusCode::kCancelled);
  cluster.node(0).rails[0]->frozen = false;
  cluster.Run();
  a.ExpectDone(1);
  cluster.ExpectNothingOpen();
}

// Bytes received over rails that bind zones are told by their senders: with their next READY, or 10 ms later.
TEST(RemoteJobTest, TalliesReachReportsOfJobsThatAreOver) {
  for (const bool rides : {false, true}) {
    Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
    Exchange exchange(&cluster, "g", {{0, 600'000}, {0, 0}});
    exchange.SubmitAll(1);
    cluster.Run();
    exchange.ExpectDone(1);
    const auto received = [&] {
      const JobReport report = **exchange.trainer(1).Wait(1);
      return report.rail_rx_bytes[0] + report.rail_rx_bytes[1];
    };
    EXPECT_EQ(received(), 0u);
    if (rides) {
      ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 2)).ok());
      cluster.Run();
      EXPECT_EQ(received(), 600'000u);
    } else {
      cluster.Advance(absl::Milliseconds(9));
      cluster.Run();
      EXPECT_EQ(received(), 0u);
      cluster.Advance(absl::Milliseconds(1));
      cluster.Run();
    }
    EXPECT_EQ(received(), 600'000u);
    const AgentSnapshot snapshot = cluster.node(1).engine->Snapshot(0);
    EXPECT_EQ(snapshot.rails[0].counts.rx_payload_bytes + snapshot.rails[1].counts.rx_payload_bytes, 600'000u);
    EXPECT_EQ((**exchange.trainer(0).Wait(1)).rail_tx_bytes, (**exchange.trainer(1).Wait(1)).rail_rx_bytes);
    const JobKey job{exchange.trainer(1).group->epoch, JobSeq(1)};
    const uint64_t ignored = snapshot.counters.control_messages_ignored;
    for (const Tally& lie : {Tally{job, {600'000, 1}}, Tally{job, {1, 2, 3}}, Tally{{job.epoch, JobSeq(9)}, {1}}}) {
      cluster.node(1).engine->OnPeerMessage("n0", BootId(1000), lie);
    }
    EXPECT_EQ(received(), 600'000u);
    EXPECT_EQ(cluster.node(1).engine->Snapshot(0).counters.control_messages_ignored, ignored + 3);
  }
}

TEST(RemoteJobTest, ASenderThatIsDoneAnswersAnAbort) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 1000}, {0, 0}});
  // The receiver does not see its fence.
  exchange.SubmitAll(1);
  auto sender = exchange.trainer(0).Wait(1), receiver = exchange.trainer(1).Wait(1);
  cluster.Run([&] { return Outgoing<Ready>(cluster, 0).size() + Outgoing<Ready>(cluster, 1).size() == 2; });
  bool aborted = false;
  cluster.Run([&] {
    if (cluster.node(1).rails[0]->counters().rx_fences.load() > 0 && !aborted) {
      aborted = true;  // in the moment between the fence's arrival and its being seen
      exchange.trainer(1).Cancel(1);
    }
    return false;
  });
  ASSERT_TRUE(aborted);
  ASSERT_TRUE(sender->ok());
  ASSERT_TRUE(receiver->ok()) << "without waiting for a second";
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, SignalsOfRailsThatAreNotThereAreIgnored) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1});
  Engine& engine = *cluster.node(0).engine;
  const uint64_t before = engine.Snapshot(0).counters.control_messages_ignored;
  engine.OnPeerMessage("n1", BootId(1001), RailSignal{RailIndex(7), "x"});
  EXPECT_EQ(engine.Snapshot(0).counters.control_messages_ignored, before + 1);
  engine.OnPeerMessage("n1", BootId(1001), RailSignal{RailIndex(0), "rubbish"});
  cluster.Run();
  EXPECT_EQ(cluster.node(0).rails[0]->counters().refused_connections.load(), 1u);
}

// Whatever the engine says of the next connection, it has taken the end of the one before into account.
TEST(RemoteJobTest, AConnectionHasEndedBeforeTheSignalsOfTheNext) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Engine& engine = *cluster.node(1).engine;
  SteppedRail& rail = *cluster.node(1).rails[0];
  RailEvent stray, down;
  stray.kind = RailEvent::Kind::kZoneQuiet;
  stray.zone.slot = 4711;
  for (size_t i = 0; i < 1000; ++i) rail.Tell(stray);
  down.kind = RailEvent::Kind::kPeerDown;
  down.peer = PeerIndex(0);
  down.cookie = 1;  // the first link
  rail.Tell(down);
  ASSERT_TRUE(engine.Snapshot(0).peers[0].rails_up[0]);
  engine.SendSignal(RailIndex(0), PeerIndex(0), "next");
  EXPECT_FALSE(engine.Snapshot(0).peers[0].rails_up[0]);
  EXPECT_TRUE(std::holds_alternative<RailSignal>(cluster.node(1).outbox.back().second));
}

}  // namespace
}  // namespace railsd::testing
