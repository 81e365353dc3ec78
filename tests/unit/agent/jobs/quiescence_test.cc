// Terminal means quiescent: no status is told while anything may still touch the rank's memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

constexpr ZoneRef kFirstZone{1, 1};

// Over rails that receive frames, and over rails that write into remote memory.
class QuiescenceTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Rails, QuiescenceTest, ::testing::Bool(), ModeOf);

// No status, failed ones included, is told while a rail may still read the rank's memory.
TEST(FramedQuiescenceTest, AbortedSenderIsNotTerminalWhileARailHoldsItsChunks) {
  Cluster cluster({.nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 4'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  const auto moving = [&] { return cluster.node(1).rails[0]->counters().rx_payload_bytes.load() > 0; };
  cluster.Run(moving);
  SteppedRail& rail = *cluster.node(0).rails[0];
  ASSERT_GT(cluster.node(0).engine->Snapshot(0).rails[0].in_flight_bytes, 0u);
  rail.frozen = true;
  auto sender = exchange.trainer(0).Wait(1), receiver = exchange.trainer(1).Wait(1);
  exchange.trainer(1).Cancel(1);
  cluster.Run();
  EXPECT_TRUE(receiver->ok()) << "its own rails have let go";
  EXPECT_FALSE(sender->ok()) << "rail 0 still holds chunks";
  bool closed = false;
  cluster.node(0).engine->CloseSession(exchange.trainer(0).session, "test", [&](absl::Status) { closed = true; });
  cluster.Run();
  EXPECT_FALSE(closed) << "its segments are still mapped";
  rail.frozen = false;
  cluster.Run();
  ASSERT_TRUE(sender->ok());
  EXPECT_EQ((*sender)->status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(closed);
}

TEST_P(QuiescenceTest, AbortedReceiverIsNotTerminalWhileARailHasItsZonesOpen) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 4'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.HasReceived(1, 0); });
  SteppedRail& rail = *cluster.node(1).rails[1];
  ASSERT_TRUE(cluster.node(1).zones.Enter(kFirstZone) != nullptr);  // in the middle of a receive
  rail.frozen = true;
  auto receiver = exchange.trainer(1).Wait(1);
  exchange.trainer(0).Cancel(1);
  cluster.Run();
  EXPECT_FALSE(receiver->ok());
  cluster.node(1).zones.Leave(kFirstZone);
  RailEvent out;  // as the rail would say
  out.kind = RailEvent::Kind::kZoneQuiet;
  out.zone = kFirstZone;
  rail.Tell(out);
  rail.frozen = false;
  cluster.Run();
  ASSERT_TRUE(receiver->ok());
  EXPECT_EQ((*receiver)->status.code(), absl::StatusCode::kCancelled);
}

TEST(FramedQuiescenceTest, DoneWaitsForARailThatIsInsideAReceive) {
  Cluster cluster({.nodes = 2, .rails = 2});
  Exchange exchange(&cluster, 2, "g");
  exchange.SetLengths({{0, 0}, {1000, 0}}, 1);  // one piece, on one rail
  exchange.SubmitAll(1);
  // Both rails learn of the zones; then the one that carries nothing stops.
  size_t idle = 0;
  cluster.Run([&] {
    for (size_t r : {0u, 1u}) {
      if (cluster.node(0).rails[r]->counters().rx_payload_bytes.load() > 0) {
        idle = 1 - r;
        return true;
      }
    }
    return false;
  });
  SteppedRail& rail = *cluster.node(0).rails[idle];
  ASSERT_TRUE(cluster.node(0).zones.Enter(kFirstZone) != nullptr);
  rail.frozen = true;
  auto receiver = exchange.trainer(0).Wait(1);
  cluster.Run();
  EXPECT_FALSE(receiver->ok());
  cluster.node(0).zones.Leave(kFirstZone);
  RailEvent out;  // as the rail would say
  out.kind = RailEvent::Kind::kZoneQuiet;
  out.zone = kFirstZone;
  rail.Tell(out);
  rail.frozen = false;
  exchange.ExpectCompletes(1);
}

// A command that a rail has not seen yet does not matter once nobody can enter the zone.
TEST(FramedQuiescenceTest, DoneDoesNotWaitForARailThatIsOutside) {
  Cluster cluster({.nodes = 2, .rails = 2});
  Exchange exchange(&cluster, "g", {{0, 1000}, {0, 0}});
  exchange.SubmitAll(1);
  size_t idle = 0;
  cluster.Run([&] {
    for (size_t r : {0u, 1u}) {
      if (cluster.node(1).rails[r]->counters().rx_payload_bytes.load() > 0) {
        idle = 1 - r;
        return true;
      }
    }
    return false;
  });
  cluster.node(1).rails[idle]->frozen = true;
  exchange.ExpectCompletes(1);
  cluster.node(1).rails[idle]->frozen = false;
  exchange.SetLengths({{0, 500}, {0, 0}}, 2);
  exchange.RunJob(2);
}

TEST_P(QuiescenceTest, AbortedCopiesAreWaitedFor) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 1000}, {1000, 0}});
  cluster.node(0).copier.held = true;
  exchange.SubmitAll(1);
  auto report = exchange.trainer(0).Wait(1);
  exchange.trainer(0).Cancel(1);
  cluster.Run();
  EXPECT_FALSE(report->ok());
  cluster.node(0).copier.held = false;
  cluster.Run();
  ASSERT_TRUE(report->ok());
  EXPECT_EQ((*report)->status.code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace railsd::testing
