#include "daemon/peer/peer_hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/peer/peer_conversion.h"
#include "rails/peer/v1/peer.pb.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/peer/hub_node.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PeerHubTest : public ::testing::Test {
 protected:
  Node a{"a", FreePort()}, b{"b", FreePort()};

  void StartBoth() { RunBoth(&a, &b); }
};

TEST_F(PeerHubTest, BothSidesComeUpAndCarryMessagesInOrder) {
  StartBoth();
  for (uint64_t n = 1; n <= 500; ++n) {
    a.hub->Send("b", Numbered(n));
    b.hub->Send("a", Numbered(n + 10'000));
  }
  ASSERT_TRUE(testing::Until([&] { return a.agent.message_count() == 500 && b.agent.message_count() == 500; }));
  for (uint64_t n = 1; n <= 500; ++n) {
    EXPECT_EQ(NumberOf(b.agent.messages()[n - 1].second), n);
    EXPECT_EQ(NumberOf(a.agent.messages()[n - 1].second), n + 10'000);
  }
}

TEST_F(PeerHubTest, TellsWhatIsNotAcknowledged) {
  StartBoth();
  OutboxDepths most;
  for (uint64_t n = 1; n <= 500; ++n) {
    a.hub->Send("b", Numbered(n));
    const OutboxDepths now = a.hub->Outboxes();
    EXPECT_EQ(now.messages, now.most_messages) << "there is one peer";
    EXPECT_EQ(now.bytes, now.most_bytes);
    if (now.messages > most.messages) most = now;
  }
  EXPECT_GT(most.messages, 0u);
  EXPECT_GT(most.bytes, most.messages);
  ASSERT_TRUE(testing::Until([&] { return a.hub->Outboxes().messages == 0; }));
  EXPECT_EQ(a.hub->Outboxes().bytes, 0u);
}

TEST_F(PeerHubTest, ABrokenConnectionLosesAndDoublesNothing) {
  StartBoth();
  uint64_t sent = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 100; ++i) a.hub->Send("b", Numbered(++sent));
    (round % 2 ? a : b).hub->Redial(round % 2 ? "b" : "a").IgnoreError();  // it may still be connecting
    for (int i = 0; i < 100; ++i) a.hub->Send("b", Numbered(++sent));
  }
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() >= sent; }));
  const auto messages = b.agent.messages();
  ASSERT_EQ(messages.size(), sent);
  for (uint64_t n = 1; n <= sent; ++n) ASSERT_EQ(NumberOf(messages[n - 1].second), n);
  EXPECT_THAT(a.agent.events(), ElementsAre("up b"));
  EXPECT_THAT(b.agent.events(), ElementsAre("up a"));
  EXPECT_EQ(a.hub->counters().lost, 0u);
  EXPECT_NE(a.agent.DataKeyOf("b"), DataKey{});
  EXPECT_EQ(a.agent.DataKeyOf("b"), b.agent.DataKeyOf("a"));
}

TEST_F(PeerHubTest, ARestartIsANewLife) {
  StartBoth();
  const DataKey key = a.agent.DataKeyOf("b");
  for (uint64_t n = 1; n <= 10; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 10; }));
  EXPECT_EQ(a.hub->Peers()[0].version, "1.22");
  b.Restart(b.Options(a, 33));
  ASSERT_TRUE(testing::Until([&] { return a.agent.events().size() == 3 && b.agent.events().size() >= 2; }));
  EXPECT_EQ(a.agent.events()[0], "up b");
  EXPECT_THAT(a.agent.events()[1], HasSubstr("down b: node b is stopping (ended)"));
  EXPECT_EQ(a.agent.events()[2], "up b");
  EXPECT_NE(a.agent.DataKeyOf("b"), key);
  a.hub->Send("b", Numbered(77));
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 11; }));
  EXPECT_EQ(NumberOf(b.agent.messages()[10].second), 77u);
}

TEST_F(PeerHubTest, AFullOutboxLosesThePeerAtBothEnds) {
  PeerHubOptions options = a.Options(b, 11);
  options.outbox.max_bytes = 4096;
  a.Run(options);
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); }));
  Offer large;
  large.job = {{BootId(1), 1}, JobSeq(1)};
  for (uint32_t i = 0; i < 1000; ++i) large.flows.push_back({Rank(i), Rank(i), uint64_t{1} << 40});
  a.hub->Send("b", large);
  ASSERT_TRUE(
      testing::Until([&] { return a.agent.Saw("down b: node b does not take messages") && b.agent.Saw("down a"); }));
  // They connect to each other again.
  ASSERT_TRUE(testing::Until([&] { return a.agent.events().size() >= 3 && b.agent.events().size() >= 3; }));
  EXPECT_EQ(a.agent.events().back(), "up b");
  EXPECT_EQ(a.hub->counters().lost, 1u);
}

TEST_F(PeerHubTest, AMessageThatIsLongerThanThePeerTakesNeedNotCostTheLink) {
  PeerHubOptions options = a.Options(b, 11);
  a.Run(options);
  PeerHubOptions narrow = b.Options(a, 22);
  narrow.max_message_bytes = 64 << 10;
  b.Run(narrow);
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); }));
  Offer large;
  large.job = {{BootId(1), 1}, JobSeq(1)};
  for (uint32_t i = 0; i < 10'000; ++i) large.flows.push_back({Rank(i % 4096), Rank(i % 4096), uint64_t{1} << 40});
  const absl::Status refused = a.hub->SendIfItFits("b", large);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("is more than node b takes (65536); raise its limits.max_message"));
  EXPECT_EQ(options.links.refused->Read(Limit::kMessage), 1u);
  EXPECT_TRUE(a.hub->SendIfItFits("b", Numbered(1)).ok());
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 1; }));
  EXPECT_EQ(a.hub->counters().lost, 0u);
  // Send() of the same message loses the link.
  a.hub->Send("b", large);
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("down b: a message of") && b.agent.Saw("down a"); }));
  EXPECT_EQ(options.links.refused->Read(Limit::kMessage), 2u);
  EXPECT_TRUE(a.hub->SendIfItFits("nobody", large).ok());
}

TEST_F(PeerHubTest, AnAgentThatIsTooFarBehindLosesThePeerAtBothEndsAndGetsItBack) {
  StartBoth();
  b.agent.message_capacity = 3;
  for (uint64_t n = 1; n <= 10; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return b.hub->counters().lost == 1; }));
  EXPECT_EQ(b.agent.message_count(), 3u);
  ASSERT_TRUE(testing::Until([&] { return a.agent.events().size() >= 3 && b.agent.events().size() >= 3; }));
  EXPECT_THAT(b.agent.events()[1], HasSubstr("outran"));
  EXPECT_THAT(a.agent.events()[1], HasSubstr("down b"));
  EXPECT_EQ(a.agent.events()[2], "up b");
  EXPECT_EQ(b.agent.events()[2], "up a");
}

TEST_F(PeerHubTest, SilenceLosesThePeer) {
  PeerHubOptions options = a.Options(b, 11);
  options.lost_after = absl::Milliseconds(300);
  a.Run(options);
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b"); }));
  // The peer's hub stops, and its port then refuses connections.
  b.hub->Stop();
  b.hub.reset();
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("down b"); }));
  EXPECT_FALSE(a.hub->Peers()[0].up);
  EXPECT_NE(a.hub->Peers()[0].why, "");
}

TEST_F(PeerHubTest, AWrongNameIsRefusedWithBothNames) {
  PeerHubOptions options = a.Options(b, 11);
  options.static_peers[0].name = "c";
  a.Run(options);
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().refused > 0; }));
  ASSERT_TRUE(testing::Until(
      [&] { return a.hub->Peers()[0].why.find("the address of c is answered by node b") != std::string::npos; }));
  EXPECT_TRUE(a.agent.events().empty());
  EXPECT_TRUE(b.agent.events().empty());
}

TEST_F(PeerHubTest, UnequalLimitsAreRefused) {
  PeerHubOptions options = a.Options(b, 11);
  options.max_world_size = 8;
  a.Run(options);
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().refused > 0 || b.hub->counters().refused > 0; }));
  EXPECT_TRUE(a.agent.events().empty());
}

TEST_F(PeerHubTest, RailsThatDifferFromTheConfigurationAreRefused) {
  PeerHubOptions options = a.Options(b, 11);
  options.static_peers[0].rails = {"127.1.0.9"};
  a.Run(options);
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().refused > 0; }));
  EXPECT_TRUE(a.agent.events().empty());
}

TEST_F(PeerHubTest, ARailOfTwoTransportsIsRefusedWithBothEnds) {
  a.agent.mutable_hello().rails[0].address = "verbs:mlx5_0/1";
  a.Run(a.Options(b, 11));
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] {
    const std::string why = a.hub->Peers()[0].why + b.hub->Peers()[0].why;
    return why.find("verbs:mlx5_0/1 on node a") != std::string::npos &&
           why.find("127.1.0.1:4000 on node b") != std::string::npos;
  }));
  EXPECT_TRUE(a.agent.events().empty());
  EXPECT_TRUE(b.agent.events().empty());
}

TEST_F(PeerHubTest, AVerbsRailIsComparedAsAWhole) {
  a.agent.mutable_hello().rails[0].address = b.agent.mutable_hello().rails[0].address = "verbs:mlx5_0/1";
  PeerHubOptions options = a.Options(b, 11);
  options.static_peers[0].rails = {"verbs:mlx5_0/2"};
  a.Run(options);
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().refused > 0; }));
  EXPECT_TRUE(a.agent.events().empty());
  options.static_peers[0].rails = {"verbs:mlx5_0/1"};
  a.Restart(options);
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); }));
}

// b stops while its thread has messages left to take, and looks the name of c up again and again.
TEST_F(PeerHubTest, StopEndsAmongNamesAndMessages) {
  class Slow : public FakeAgent {
   public:
    bool OnPeerMessage(std::string node, BootId boot, ControlMessage message) override {
      taking = true;
      absl::SleepFor(absl::Microseconds(100));
      return FakeAgent::OnPeerMessage(std::move(node), boot, std::move(message));
    }
    std::atomic<bool> taking = false;
  } slow;
  PeerHubOptions options = a.Options(b, 11);
  options.static_peers[0].control = absl::StrCat("localhost:", b.port);
  a.Run(options);
  options = b.Options(a, 22);
  options.static_peers[0].control = absl::StrCat("localhost:", a.port);
  options.static_peers.push_back({"c", "localhost:1", {}});
  const std::unique_ptr<PeerHub> hub = PeerHub::Make(options);
  ASSERT_TRUE(hub->Start(&slow).ok());
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && slow.Saw("up a"); }));
  for (uint64_t n = 1; n <= 500; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return slow.taking.load(); }));
  hub->Stop();
  const size_t taken = slow.message_count();
  a.hub->Stop();
  EXPECT_EQ(slow.message_count(), taken) << "nobody is called after Stop()";
}

TEST_F(PeerHubTest, MessagesToNobodyAreCounted) {
  a.Run(a.Options(b, 11));
  a.hub->Send("b", Numbered(1));
  a.hub->Send("nobody", Numbered(1));
  EXPECT_EQ(a.hub->counters().messages_dropped, 2u);
}

TEST_F(PeerHubTest, DnsFindsThePeersAndLeavesOutTheNodeItself) {
  // peers.dns of each hub gives the loopback address with the other hub's port.
  PeerHubOptions options = a.Options(b, 11);
  options.static_peers.clear();
  options.dns = {"127.0.0.1", static_cast<uint32_t>(b.port), absl::Milliseconds(100)};
  a.Run(options);
  options = b.Options(a, 22);
  options.static_peers.clear();
  options.dns = {"127.0.0.1", static_cast<uint32_t>(a.port), absl::Milliseconds(100)};
  b.Run(options);
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); }));
  Node c("c", FreePort());
  options = c.Options(a, 44);
  options.static_peers.clear();
  options.dns = {"127.0.0.1", static_cast<uint32_t>(c.port), absl::Milliseconds(100)};
  c.Run(options);
  ASSERT_TRUE(testing::Until([&] { return c.hub->counters().own_addresses == 1; }));
  EXPECT_TRUE(c.hub->Peers().empty());
  EXPECT_TRUE(c.agent.events().empty());
}

}  // namespace
}  // namespace railsd
