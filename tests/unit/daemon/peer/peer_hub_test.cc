#include "daemon/peer/peer_hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/peer/hub_node.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PeerHubTest : public ::testing::Test {
 protected:
  Node a{"a", FreePort()}, b{"b", FreePort()};
};

TEST_F(PeerHubTest, ABrokenConnectionLosesAndDoublesNothing) {
  RunBoth(&a, &b);
  uint64_t sent = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 200; ++i) {
      a.hub->Send("b", Numbered(++sent));
      b.hub->Send("a", Numbered(sent));
      if (i == 100) (round % 2 ? a : b).hub->Redial(round % 2 ? "b" : "a").IgnoreError();  // it may still connect
    }
  }
  for (const Node* node : {&a, &b}) {
    ASSERT_TRUE(testing::Until([&] { return node->agent.messages.size() >= sent; }));
    const auto messages = node->agent.messages();
    ASSERT_EQ(messages.size(), sent);
    for (uint64_t n = 1; n <= sent; ++n) ASSERT_EQ(NumberOf(messages[n - 1].second), n);
  }
  EXPECT_THAT(a.agent.events(), ElementsAre("up b"));
  EXPECT_THAT(b.agent.events(), ElementsAre("up a"));
  EXPECT_EQ(a.hub->counters().lost, 0u);
  EXPECT_NE(a.agent.DataKeyOf("b"), DataKey{});
  EXPECT_EQ(a.agent.DataKeyOf("b"), b.agent.DataKeyOf("a"));
}

TEST_F(PeerHubTest, ARestartIsANewLife) {
  RunBoth(&a, &b);
  const DataKey key = a.agent.DataKeyOf("b");
  for (uint64_t n = 1; n <= 10; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return b.agent.messages.size() == 10; }));
  EXPECT_EQ(a.hub->Peers()[0].version, "1.22");
  b.Restart(b.Options(a, 33));
  ASSERT_TRUE(testing::Until([&] { return a.agent.events().size() == 3 && b.agent.events().size() >= 2; }));
  EXPECT_EQ(a.agent.events()[0], "up b");
  EXPECT_THAT(a.agent.events()[1], HasSubstr("down b: node b is stopping (ended)"));
  EXPECT_EQ(a.agent.events()[2], "up b");
  EXPECT_NE(a.agent.DataKeyOf("b"), key);
  a.hub->Send("b", Numbered(77));
  ASSERT_TRUE(testing::Until([&] { return b.agent.messages.size() == 11; }));
  EXPECT_EQ(NumberOf(b.agent.messages()[10].second), 77u);
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
  const std::unique_ptr<PeerHub> hub = std::make_unique<PeerHub>(options);
  ASSERT_TRUE(hub->Start(&slow).ok());
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && slow.Saw("up a"); }));
  for (uint64_t n = 1; n <= 500; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return slow.taking.load(); }));
  hub->Stop();
  const size_t taken = slow.messages.size();
  a.hub->Stop();
  EXPECT_EQ(slow.messages.size(), taken) << "nobody is called after Stop()";
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
