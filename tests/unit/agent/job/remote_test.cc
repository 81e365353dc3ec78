// Jobs over rails that write into remote memory: keys, fences, quiescence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/job/cluster.h"

namespace railsd::testing {
namespace {

using Lengths = std::vector<std::vector<uint64_t>>;

uint64_t Fences(Cluster& cluster) {
  uint64_t fences = 0;
  for (size_t n = 0; n < cluster.size(); ++n) {
    for (auto& rail : cluster.node(n).rails) fences += rail->counters().tx_fences.load();
  }
  return fences;
}

TEST(RemoteJobTest, OneFenceForEachPairAndRailAtMost) {
  constexpr uint32_t kWorld = 6;
  Cluster cluster({.remote = true, .nodes = 3, .rails = 4, .plan = {.chunk_bytes = 16 << 10, .min_chunk_bytes = 1024}});
  Exchange exchange(&cluster, kWorld, "g", 4 << 20);
  exchange.JoinAll();
  // Some flows use every rail, some one, some are empty.
  Lengths lengths(kWorld, std::vector<uint64_t>(kWorld, 300'000));
  for (uint32_t d = 0; d < kWorld; ++d) lengths[0][d] = 10;
  for (uint32_t d = 0; d < kWorld; ++d) lengths[1][d] = 0;
  exchange.SetLengths(lengths, 1);
  exchange.SubmitAll(1, 3);
  cluster.Run();
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
  const uint64_t crossing = kWorld * 4;  // each rank has four ranks on other nodes
  EXPECT_LE(Fences(cluster), (crossing - 4) * 4);
  EXPECT_GE(Fences(cluster), crossing - 4) << "flows without bytes need none";
  uint64_t chunks = 0;
  for (size_t n = 0; n < 3; ++n) {
    for (auto& rail : cluster.node(n).rails) chunks += rail->counters().tx_chunks.load();
  }
  EXPECT_GT(chunks, Fences(cluster)) << "not one for each chunk";
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, AFlowOnOneRailNeedsNoOrderBesidesItsChunk) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 4});
  Exchange exchange(&cluster, 2, "g");
  exchange.JoinAll();
  exchange.SetLengths({{0, 100}, {0, 0}}, 1);
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
  Exchange exchange(&cluster, 2, "g");
  exchange.JoinAll();
  exchange.SetLengths({{0, 1000}, {0, 0}}, 1);
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
  EXPECT_EQ(ready.keys.size(), ready.ranges.size() * 3);
  EXPECT_EQ(ready.fences.size(), 1u);
  EXPECT_EQ(std::count(ready.keys.begin(), ready.keys.end(), 0u), 0);
  cluster.Release(1, 0);
  cluster.Run();
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
}

// What one rail says never speaks for another.
TEST(RemoteJobTest, FencesOfOneRailDoNotCompleteWhatAnotherStillCarries) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 600'000}, {0, 0}}, 1);
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
  cluster.Run();
  exchange.ExpectDone(1);
  exchange.ExpectBytes();
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, ASenderIsNotDoneBeforeItsFencesAreAcknowledged) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 600'000}, {0, 0}}, 1);
  std::vector<SendOrder> kept;
  for (auto& rail : cluster.node(0).rails) {
    rail->tamper = [&](SendOrder& order) {
      if (order.fences > 0 && order.length_bytes == 0) kept.push_back(order);
      return order.fences == 0 || order.length_bytes > 0;
    };
  }
  exchange.SubmitAll(1);
  auto sender = exchange.trainer(0).Wait(1), receiver = exchange.trainer(1).Wait(1);
  cluster.Run();
  ASSERT_EQ(kept.size(), 1u) << "one fence travels with the last bytes";
  EXPECT_FALSE(sender->ok());
  EXPECT_FALSE(receiver->ok());
}

TEST(RemoteJobTest, LateBindingMovesChunksAndTheirFences) {
  for (const uint64_t seed : Seeds(5)) {
    SCOPED_TRACE(seed);
    Cluster cluster({.remote = true, .nodes = 2, .rails = 3, .seed = seed, .plan = {.chunk_bytes = 64 << 10}});
    Exchange exchange(&cluster, 4, "g", 8 << 20);
    exchange.JoinAll();
    exchange.SetLengths(Lengths(4, std::vector<uint64_t>(4, 2'000'000)), seed);
    exchange.SubmitAll(1, 2);
    cluster.Run([&] { return cluster.HasReceived(1, 0); });
    cluster.fabric().SetStepBytes(cluster.AddressOf(1, 1), 1000);
    cluster.Run([&] {
      cluster.Advance(absl::Milliseconds(1));
      return false;
    });
    cluster.fabric().SetStepBytes(cluster.AddressOf(1, 1), 128 << 10);
    cluster.Run();
    exchange.ExpectDone(1);
    exchange.ExpectBytes();
    EXPECT_GT(cluster.node(0).engine->Snapshot(0).counters.stolen_chunks, 0u);
    EXPECT_LE(Fences(cluster), 8u * 3);
    cluster.ExpectNothingOpen();
  }
}

TEST(RemoteJobTest, ThousandJobsLeaveNothingBehind) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2, .limits = {.max_jobs_per_group = 8}});
  Exchange exchange(&cluster, 4, "g");
  exchange.JoinAll();
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

TEST(RemoteJobTest, ExchangesWaitForRoomForTheirFences) {
  Cluster cluster({.remote = true, .nodes = 3, .rails = 2, .limits = {.max_jobs_per_group = 8}, .fence_room = 5});
  Exchange exchange(&cluster, 6, "g", 1 << 20);  // four flows from each peer
  exchange.JoinAll();
  exchange.ReceiveApart(6);
  exchange.SetLengths(Lengths(6, std::vector<uint64_t>(6, 5000)), 3);
  for (uint64_t seq = 1; seq <= 6; ++seq) exchange.SubmitAll(seq);
  size_t most = 0;
  cluster.Run([&] {
    for (size_t n = 0; n < 3; ++n) {
      most = std::max<size_t>(most, cluster.node(n).engine->Snapshot(0).counters.fence_slots);
    }
    return false;
  });
  for (uint64_t seq = 1; seq <= 6; ++seq) exchange.ExpectDone(seq);
  exchange.ExpectBytes();
  EXPECT_LE(most, 5u);
  EXPECT_GE(most, 4u);
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, OneExchangeMayPassTheRoomAlone) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1, .fence_room = 2});
  Exchange exchange(&cluster, 6, "g", 1 << 20);  // nine flows each way
  exchange.JoinAll();
  exchange.ReceiveApart(3);
  exchange.SetLengths(Lengths(6, std::vector<uint64_t>(6, 5000)), 3);
  for (uint64_t seq = 1; seq <= 3; ++seq) exchange.SubmitAll(seq);
  cluster.Run();
  for (uint64_t seq = 1; seq <= 3; ++seq) exchange.ExpectDone(seq);
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, WaitingExchangesOfAnAbortedJobAreForgotten) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1, .fence_room = 1});
  Exchange a(&cluster, 2, "a", 8 << 20), b(&cluster, 2, "b", 8 << 20);
  a.JoinAll();
  b.JoinAll();
  for (Exchange* e : {&a, &b}) e->SetLengths({{0, 5'000'000}, {0, 0}}, 3);
  a.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.node(0).rails[0]->frozen = true;
  b.SubmitAll(1);
  cluster.Run();
  cluster.node(1).engine->Cancel(b.trainer(1).session, {b.trainer(1).group->epoch, JobSeq(1)}, Rank(1),
                                 [](absl::Status) {});
  auto cancelled = b.trainer(1).Wait(1);
  cluster.Run();
  ASSERT_TRUE(cancelled->ok()) << "no zone was open: nobody has to stop";
  EXPECT_EQ((*cancelled)->status.code(), absl::StatusCode::kCancelled);
  cluster.node(0).rails[0]->frozen = false;
  cluster.Run();
  a.ExpectDone(1);
  cluster.ExpectNothingOpen();
}

TEST(RemoteJobTest, TalliesReachReportsOfJobsThatAreOver) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 600'000}, {0, 0}}, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.Hold(0, 1);
  cluster.Run();
  exchange.ExpectDone(1);
  const auto received = [&] {
    const JobReport report = **exchange.trainer(1).Wait(1);
    return report.rail_rx_bytes[0] + report.rail_rx_bytes[1];
  };
  const uint64_t before = received();
  cluster.Release(0, 1);
  cluster.Run();
  EXPECT_EQ(received(), 600'000u);
  EXPECT_LE(before, 600'000u);
  const AgentSnapshot snapshot = cluster.node(1).engine->Snapshot(0);
  EXPECT_EQ(snapshot.rails[0].rx_payload_bytes + snapshot.rails[1].rx_payload_bytes, 600'000u);
  const JobKey job{exchange.trainer(1).group->epoch, JobSeq(1)};
  const uint64_t ignored = snapshot.counters.control_messages_ignored;
  for (const Sent& lie : {Sent{job, {1, 1}}, Sent{job, {1, 2, 3}}, Sent{{job.epoch, JobSeq(9)}, {1}}}) {
    cluster.node(1).engine->OnPeerMessage("n0", BootId(1000), lie);
  }
  EXPECT_EQ(received(), 600'000u);
  EXPECT_EQ(cluster.node(1).engine->Snapshot(0).counters.control_messages_ignored, ignored + 3);
}

class QuiescenceTest : public ::testing::TestWithParam<bool> {  // weak zones?
 protected:
  // n1 receives, and aborts in the middle; n0 does not stop, for its rails are frozen.
  void Begin() {
    cluster_ = std::make_unique<Cluster>(Cluster::Options{.remote = true, .weak_zones = GetParam()});
    exchange_ = std::make_unique<Exchange>(cluster_.get(), 2, "g", 8 << 20);
    exchange_->JoinAll();
    exchange_->SetLengths({{0, 4'000'000}, {0, 0}}, 1);
    exchange_->SubmitAll(1);
    cluster_->Run([&] { return cluster_->HasReceived(1, 0); });
    for (auto& rail : cluster_->node(0).rails) rail->frozen = true;
    receiver_ = exchange_->trainer(1).Wait(1);
    sender_ = exchange_->trainer(0).Wait(1);
    cluster_->node(1).engine->Cancel(exchange_->trainer(1).session, {exchange_->trainer(1).group->epoch, JobSeq(1)},
                                     Rank(1), [](absl::Status) {});
    cluster_->Run();
    EXPECT_FALSE(receiver_->ok()) << "n0 may still write";
    EXPECT_GT(cluster_->fabric().OpenFences(cluster_->AddressOf(1, 0)), 0u);
  }
  uint64_t Disconnects() {
    return cluster_->node(1).rails[0]->counters().disconnects.load() +
           cluster_->node(1).rails[1]->counters().disconnects.load();
  }
  void Thaw() {
    for (auto& rail : cluster_->node(0).rails) rail->frozen = false;
    cluster_->Run();
  }
  // Terminal means that no byte changes any more.
  void ExpectUntouchedWhile(const std::function<void()>& body) {
    const Buffer& receive = *exchange_->trainer(1).receive;
    const std::vector<uint8_t> before(receive.data(), receive.data() + receive.size());
    body();
    EXPECT_TRUE(std::equal(before.begin(), before.end(), receive.data()));
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Exchange> exchange_;
  std::shared_ptr<absl::StatusOr<JobReport>> receiver_, sender_;
};

INSTANTIATE_TEST_SUITE_P(Zones, QuiescenceTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Weak" : "Windows"; });

TEST_P(QuiescenceTest, ZonesCloseWhenTheSenderHasStopped) {
  Begin();
  Thaw();
  ASSERT_TRUE(receiver_->ok());
  ASSERT_TRUE(sender_->ok());
  EXPECT_EQ((*receiver_)->status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Disconnects(), 0u) << "it said QUIESCED: no connection had to be broken";
  cluster_->ExpectNothingOpen();
}

TEST_P(QuiescenceTest, ASenderThatDoesNotStopIsWaitedForOneSecond) {
  Begin();
  cluster_->Advance(absl::Milliseconds(900));
  cluster_->Run();
  EXPECT_FALSE(receiver_->ok());
  cluster_->Advance(absl::Milliseconds(200));
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  ExpectUntouchedWhile([&] { Thaw(); });
  ASSERT_TRUE(sender_->ok());
  cluster_->ExpectNothingOpen();
}

TEST_P(QuiescenceTest, APeerThatIsLostMeanwhileIsNotWaitedFor) {
  Begin();
  cluster_->node(1).engine->OnPeerDown("n0", "silent for 5 s");
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  EXPECT_EQ((*receiver_)->status.code(), absl::StatusCode::kCancelled);
  ExpectUntouchedWhile([&] { Thaw(); });
}

// What is on the wire of a rail that failed at its sender may yet land, though the sender has stopped.
TEST_P(QuiescenceTest, RailsThatFailedAtTheSenderAreEndedHereToo) {
  Begin();
  cluster_->node(1).engine->OnPeerMessage("n0", BootId(1000),
                                          Quiesced{{exchange_->trainer(1).group->epoch, JobSeq(1)}, 1});
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  const auto broken = [&](size_t rail) { return cluster_->node(0).rails[rail]->counters().disconnects.load(); };
  EXPECT_EQ(broken(0), GetParam() ? 1u : 0u) << "without windows only the end of the connection is safe";
  EXPECT_EQ(broken(1), 0u);
  Thaw();
  cluster_->ExpectNothingOpen();
}

TEST_P(QuiescenceTest, TheSenderNamesTheRailsThatFailed) {
  Cluster cluster({.remote = true, .rails = 3, .plan = {.chunk_bytes = 64 << 10}, .weak_zones = GetParam()});
  Exchange exchange(&cluster, 2, "g", 8 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 4'000'000}, {0, 0}}, 1);
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  cluster.Hold(0, 1);
  for (size_t r : {0u, 2u}) cluster.fabric().FailOrder(cluster.AddressOf(0, r), 0, SendResult::kRailFailed, ETIMEDOUT);
  cluster.Run();
  ASSERT_EQ(Outgoing<Rehome>(cluster, 0).size(), 1u);
  EXPECT_NE(Outgoing<Rehome>(cluster, 0)[0]->failed_rails, 0u);
  cluster.node(1).engine->Cancel(exchange.trainer(1).session, {exchange.trainer(1).group->epoch, JobSeq(1)}, Rank(1),
                                 [](absl::Status) {});
  cluster.Run();
  ASSERT_FALSE(Outgoing<Quiesced>(cluster, 0).empty());
  EXPECT_EQ(Outgoing<Quiesced>(cluster, 0)[0]->failed_rails, 0b101u);
  cluster.Release(0, 1);
  cluster.Run();
  cluster.ExpectNothingOpen();
}

TEST_P(QuiescenceTest, TheSendersWordMayBeLateOrLost) {
  Begin();
  cluster_->Hold(0, 1);
  Thaw();
  EXPECT_FALSE(receiver_->ok()) << "its QUIESCED is under way";
  cluster_->Advance(absl::Milliseconds(1100));
  cluster_->Run();
  ASSERT_TRUE(receiver_->ok());
  cluster_->Release(0, 1);
  cluster_->Run();
  cluster_->ExpectNothingOpen();
}

TEST(RemoteJobTest, ASenderThatIsDoneAnswersAnAbort) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g", 1 << 20);
  exchange.JoinAll();
  exchange.SetLengths({{0, 1000}, {0, 0}}, 1);
  // The receiver does not see its fence.
  exchange.SubmitAll(1);
  auto sender = exchange.trainer(0).Wait(1), receiver = exchange.trainer(1).Wait(1);
  cluster.Run([&] { return Outgoing<Ready>(cluster, 0).size() + Outgoing<Ready>(cluster, 1).size() == 2; });
  bool aborted = false;
  cluster.Run([&] {
    if (cluster.node(1).rails[0]->counters().rx_fences.load() > 0 && !aborted) {
      aborted = true;  // in the moment between the fence's arrival and its being seen
      cluster.node(1).engine->Cancel(exchange.trainer(1).session, {exchange.trainer(1).group->epoch, JobSeq(1)},
                                     Rank(1), [](absl::Status) {});
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

// The sender must know that the old connection's keys are void before it can use the next connection.
TEST(RemoteJobTest, ThePeerHearsThatAConnectionEndedBeforeTheSignalsOfTheNext) {
  Cluster cluster({.remote = true, .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 2, "g");
  exchange.JoinAll();
  exchange.SetLengths({{0, 1000}, {0, 0}}, 1);
  cluster.Hold(1, 0);
  exchange.SubmitAll(1);
  cluster.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster, 1).size(), 1u);
  SteppedRail& rail = *cluster.node(1).rails[0];
  RailEvent stray, down;
  stray.kind = RailEvent::Kind::kReceived;
  stray.zone.slot = 4711;
  for (size_t i = 0; i < 1000; ++i) rail.Tell(stray);
  down.kind = RailEvent::Kind::kPeerDown;
  down.peer = PeerIndex(0);
  down.cookie = cluster.HelloOf(0).boot.value();
  rail.Tell(down);
  cluster.node(1).engine->SendSignal(RailIndex(0), PeerIndex(0), "next");
  EXPECT_EQ(Outgoing<Ready>(cluster, 1).size(), 2u);
  const ControlMessage& last = cluster.node(1).outbox.back().second;
  EXPECT_TRUE(std::holds_alternative<RailSignal>(last));
}

TEST(FenceSlotsTest, NumbersRestLongAndComeBackInAnotherGeneration) {
  FenceSlots slots;
  std::vector<FenceSlot> taken;
  for (size_t i = 0; i < FenceSlots::kSlots; ++i) taken.push_back(slots.Take());
  EXPECT_EQ(slots.free(), 0u);
  slots.Release(taken[500]);
  slots.Release(taken[3]);
  EXPECT_EQ(slots.free(), 2u);
  EXPECT_EQ(slots.Take(), (FenceSlot{500, 1}));
  EXPECT_EQ(slots.Take(), (FenceSlot{3, 1}));
  for (uint8_t generation = 2; generation < 40; ++generation) {
    slots.Release({500, 0});
    EXPECT_EQ(slots.Take(), (FenceSlot{500, static_cast<uint8_t>(generation % 16)}));
  }
  EXPECT_EQ(slots.taken(), FenceSlots::kSlots);
}

}  // namespace
}  // namespace railsd::testing
