// Hubs with lanes beside their streams: what is in which, and what becomes of it when lanes break.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/until.h"
#include "tests/unit/daemon/peer/hub_node.h"
#include "tests/unit/daemon/peer/lane_proxy.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;

class LaneHubTest : public ::testing::Test {
 protected:
  Node a{"a", FreePort()}, b{"b", FreePort()};
  void StartBoth() { RunBoth(&a, &b); }
};

void AwaitLanes(const Node& a, const Node& b) {
  ASSERT_TRUE(testing::Until([&] {
    return a.hub->counters().lanes_opened > a.hub->counters().lanes_lost &&
           b.hub->counters().lanes_opened > b.hub->counters().lanes_lost;
  }));
}

TEST_F(LaneHubTest, MessagesGoOverLanesAsSoonAsThereAreAny) {
  StartBoth();
  AwaitLanes(a, b);
  for (uint64_t n = 1; n <= 500; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 500; }));
  EXPECT_EQ(a.hub->counters().lane_messages_out, 500u);
  EXPECT_EQ(b.hub->counters().lane_messages_in, 500u);
  EXPECT_EQ(a.hub->counters().messages_out, 500u);
  ASSERT_TRUE(testing::Until([&] { return a.hub->Outboxes().messages == 0; })) << "acknowledged over the stream";
}

// What is too long for a lane goes over the stream; all stays in order.
TEST_F(LaneHubTest, LaneAndStreamTogetherKeepTheOrder) {
  StartBoth();
  AwaitLanes(a, b);
  Offer large;
  large.job = {{BootId(1), 1}, JobSeq(0)};
  for (uint32_t i = 0; i < 20'000; ++i) large.flows.push_back({Rank(i % 4096), Rank(i % 4096), uint64_t{1} << 40});
  uint64_t n = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 10; ++i) a.hub->Send("b", Numbered(++n));
    large.job.seq = JobSeq(++n);
    a.hub->Send("b", large);
    for (int i = 0; i < 10; ++i) a.hub->Send("b", Numbered(++n));
    // Whatever is under way: sometimes the lane may go on.
    if (round % 4 == 3) {
      ASSERT_TRUE(testing::Until([&] { return a.hub->Outboxes().messages == 0; }));
    }
  }
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == n; }));
  const auto messages = b.agent.messages();
  for (uint64_t i = 1; i <= n; ++i) {
    const ControlMessage& message = messages[i - 1].second;
    const uint64_t number =
        std::holds_alternative<Offer>(message) ? std::get<Offer>(message).job.seq.value() : NumberOf(message);
    ASSERT_EQ(number, i);
  }
  EXPECT_GE(a.hub->counters().lane_messages_out, 10u);
  EXPECT_LE(a.hub->counters().lane_messages_out, n - 20);
  EXPECT_EQ(a.hub->counters().protocol_errors + b.hub->counters().protocol_errors, 0u);
  EXPECT_EQ(a.hub->counters().lost + b.hub->counters().lost, 0u);
}

TEST_F(LaneHubTest, ABrokenLaneLosesAndDoublesNothing) {
  StartBoth();
  uint64_t sent = 0;
  for (int round = 0; round < 5; ++round) {
    if (round == 0) AwaitLanes(a, b);
    for (int i = 0; i < 100; ++i) a.hub->Send("b", Numbered(++sent));
    b.hub->BreakLane("a");
    for (int i = 0; i < 100; ++i) a.hub->Send("b", Numbered(++sent));
  }
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() >= sent; }));
  const auto messages = b.agent.messages();
  ASSERT_EQ(messages.size(), sent);
  for (uint64_t n = 1; n <= sent; ++n) ASSERT_EQ(NumberOf(messages[n - 1].second), n);
  EXPECT_THAT(a.agent.events(), ElementsAre("up b")) << "the link has not been lost";
  EXPECT_THAT(b.agent.events(), ElementsAre("up a"));
  EXPECT_EQ(a.hub->counters().lost + b.hub->counters().lost, 0u);
  EXPECT_GE(a.hub->counters().lanes_lost, 1u);
}

// A lane that broke soon is not tried again at once: the peer is reached without one.
TEST_F(LaneHubTest, WithoutALaneTheStreamCarriesEverything) {
  StartBoth();
  AwaitLanes(a, b);
  b.hub->BreakLane("a");
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().connects == 2; })) << "the stream began anew";
  for (uint64_t n = 1; n <= 100; ++n) a.hub->Send("b", Numbered(n));
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 100; }));
  EXPECT_EQ(a.hub->counters().lane_messages_out, 0u);
  EXPECT_EQ(a.hub->counters().lanes_opened, 1u);
}

class LaneProxyTest : public LaneHubTest {
 protected:
  // a reaches b by the proxy.
  void StartBoth(absl::Duration lost_after) {
    const int port = FreePort();
    proxy_ = std::make_unique<LaneProxy>(port, b.port);
    PeerHubOptions options = a.Options(b, 11);
    options.static_peers = {{"b", absl::StrCat("127.0.0.1:", port), {}}};
    options.lost_after = lost_after;
    a.Run(options);
    b.Run(b.Options(a, 22));
    ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); }));
  }
  void TearDown() override {
    a.hub->Stop();
    b.hub->Stop();
  }
  void SendAndAwait(uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; ++n) a.hub->Send("b", Numbered(n));
    ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() >= last; }));
    const auto messages = b.agent.messages();
    ASSERT_EQ(messages.size(), last);
    for (uint64_t n = 1; n <= last; ++n) ASSERT_EQ(NumberOf(messages[n - 1].second), n);
  }
  std::unique_ptr<LaneProxy> proxy_;
};

TEST_F(LaneProxyTest, ALaneThatSwallowsWhatItTakesIsGivenUp) {
  StartBoth(absl::Seconds(3));
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().lanes_opened == 1; }));
  proxy_->lanes = LaneProxy::Lanes::kSwallow;
  SendAndAwait(1, 20);
  EXPECT_EQ(a.hub->counters().lanes_lost, 1u);
  EXPECT_EQ(b.hub->counters().lane_messages_in, 0u);
  EXPECT_EQ(a.hub->counters().lost + b.hub->counters().lost, 0u) << "the link is as it was";
}

TEST_F(LaneProxyTest, WhereLanesAreRefusedTheStreamCarriesEverythingAndOneIsTriedLater) {
  const int port = FreePort();
  proxy_ = std::make_unique<LaneProxy>(port, b.port);
  proxy_->lanes = LaneProxy::Lanes::kRefuse;
  PeerHubOptions options = a.Options(b, 11);
  options.static_peers = {{"b", absl::StrCat("127.0.0.1:", port), {}}};
  options.lost_after = absl::Seconds(1);  // tried again after six times that
  a.Run(options);
  b.Run(b.Options(a, 22));
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("up b") && b.agent.Saw("up a"); }));
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().lanes_lost == 1; }));
  SendAndAwait(1, 20);
  EXPECT_EQ(a.hub->counters().lane_messages_out, 0u);
  proxy_->lanes = LaneProxy::Lanes::kPass;
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().lanes_opened >= 1; }));
  ASSERT_TRUE(testing::Until([&] { return a.hub->Outboxes().messages == 0; }));
  SendAndAwait(21, 40);
  EXPECT_GT(a.hub->counters().lane_messages_out, 0u);
}

// What the counterpart over TLS (tls_hub_test.cc) must not find.
TEST_F(LaneProxyTest, OverPlainTextLanesAreReadable) {
  StartBoth(absl::Seconds(30));
  ASSERT_TRUE(testing::Until([&] { return a.hub->counters().lanes_opened == 1; }));
  a.hub->Send("b", Abort{{{BootId(1), 1}, JobSeq(1)}, absl::StatusCode::kAborted, "plain words", false});
  ASSERT_TRUE(testing::Until([&] { return b.agent.message_count() == 1; }));
  EXPECT_NE(proxy_->lane_bytes().find("plain words"), std::string::npos);
}

TEST_F(LaneHubTest, APeerThatEndsHasLostNoLane) {
  StartBoth();
  AwaitLanes(a, b);
  b.hub->Stop();
  ASSERT_TRUE(testing::Until([&] { return a.agent.Saw("down b"); }));
  EXPECT_EQ(a.hub->counters().lanes_lost, 0u) << "it ended with its stream";
}

}  // namespace
}  // namespace railsd
