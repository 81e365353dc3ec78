// What a peer that lies about itself, or breaks the rules of its streams, can do to a hub and to its other peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "daemon/lifecycle/logging.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PeerHubOptions Options() {
  PeerHubOptions options;
  options.node = "a";
  options.boot = BootId(11);
  options.log = NullLogger();
  return options;
}

class HubHostileTest : public ::testing::Test {
 protected:
  void SetUp() override { hub.Tick(absl::Now()); }

  std::shared_ptr<InByHand> Greet(const HelloFacts& facts) {
    const std::shared_ptr<InByHand> stream = hub.Accept();
    hub.Request(stream, GreetingOf(facts));
    return stream;
  }
  // Both streams of a node that keeps the rules.
  void BringUp(const HelloFacts& facts) {
    out = hub.DialledTo(facts.hello.node);
    hub.Respond(out, AnswerOf(facts));
    in = Greet(facts);
    ASSERT_TRUE(agent.Saw("up " + facts.hello.node));
  }

  FakeAgent agent;
  HubByHand hub{Options(), {"b", "c"}, &agent};
  std::shared_ptr<OutByHand> out;
  std::shared_ptr<InByHand> in;
};

// The name was checked with the first one.
TEST_F(HubHostileTest, ASecondAnswerIsNoAnswer) {
  BringUp(FactsOf("c", 33));
  BringUp(FactsOf("b", 22));
  hub.Respond(out, AnswerOf(FactsOf("b", 22)));
  EXPECT_TRUE(out->cancelled);
  EXPECT_TRUE(in->finished);
  EXPECT_EQ(hub.hub().counters().protocol_errors, 1u);
  EXPECT_EQ(hub.hub().counters().connects, 2u);
  EXPECT_THAT(agent.events(),
              ElementsAre("up c", "up b", "down b: node b to node a: a second hello, or an empty answer"));
}

TEST_F(HubHostileTest, ASecondAnswerInAnothersNameIsNotHis) {
  BringUp(FactsOf("b", 22));
  hub.Respond(out, AnswerOf(FactsOf("c", 33)));
  EXPECT_EQ(hub.hub().counters().protocol_errors, 1u);
  EXPECT_EQ(hub.hub().counters().connects, 1u);
  // What comes until the stream has ended is of nobody.
  hub.Respond(out, AnswerOf(FactsOf("c", 33)));
  EXPECT_EQ(hub.hub().counters().protocol_errors, 1u);
  EXPECT_EQ(agent.events().size(), 2u);
  EXPECT_FALSE(agent.Saw("up c"));
}

TEST_F(HubHostileTest, TheFirstAnswerIsAHello) {
  out = hub.DialledTo("b");
  pb::ExchangeResponse response;
  response.mutable_heartbeat();
  hub.Respond(out, response);
  EXPECT_TRUE(out->cancelled);
  EXPECT_EQ(hub.hub().counters().protocol_errors, 1u);
  hub.Respond(out, AnswerOf(FactsOf("b", 22)));
  EXPECT_EQ(hub.hub().counters().connects, 0u);
  hub.End(out, absl::CancelledError(""));
  EXPECT_EQ(hub.hub().Peers()[0].why, "b: whoever is at b to node a: the first answer is no hello");
}

TEST_F(HubHostileTest, AnEmptyAnswerLosesThePeer) {
  BringUp(FactsOf("b", 22));
  hub.Respond(out, pb::ExchangeResponse());
  EXPECT_EQ(hub.hub().counters().protocol_errors, 1u);
  EXPECT_TRUE(agent.Saw("down b"));
}

TEST_F(HubHostileTest, ASecondGreetingIsNoGreeting) {
  BringUp(FactsOf("b", 22));
  hub.Request(in, GreetingOf(FactsOf("c", 33)));
  EXPECT_EQ(in->status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(hub.hub().counters().protocol_errors, 1u);
  EXPECT_TRUE(agent.Saw("down b: node b to node a: a second hello"));
  EXPECT_FALSE(hub.hub().Peers()[1].boot == BootId(33));
}

TEST_F(HubHostileTest, ABootIdIsOfOneNode) {
  BringUp(FactsOf("c", 33));
  const std::shared_ptr<InByHand> lie = Greet(FactsOf("b", 33));
  EXPECT_EQ(lie->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(lie->status.message()),
              HasSubstr("node b says boot id 0000000000000021, which node c has said before"));
  EXPECT_EQ(hub.hub().counters().refused, 1u);
  out = hub.DialledTo("b");
  hub.Respond(out, AnswerOf(FactsOf("b", 33)));
  EXPECT_TRUE(out->cancelled);
  EXPECT_EQ(hub.hub().counters().refused, 2u);
  EXPECT_THAT(agent.events(), ElementsAre("up c"));
  // With one of its own it is welcome.
  hub.End(out, absl::CancelledError(""));
  hub.Tick(absl::Now() + absl::Seconds(2));
  BringUp(FactsOf("b", 22));
  EXPECT_THAT(agent.events(), ElementsAre("up c", "up b"));
}

// A node that is up cannot become another one either, which is no restart; and who is away keeps what is his.
TEST_F(HubHostileTest, NobodyRestartsAsAnotherOrTakesTheBootIdOfWhoIsAway) {
  BringUp(FactsOf("c", 33));
  hub.End(hub.DialledTo("c"), absl::UnavailableError(""), /*stopping=*/true);
  ASSERT_TRUE(agent.Saw("down c"));
  BringUp(FactsOf("b", 22));
  EXPECT_EQ(Greet(FactsOf("b", 33))->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(agent.events(), ElementsAre("up c", "down c: node c is stopping (ended)", "up b"));
  EXPECT_FALSE(in->finished) << "what b said before is as good as it was";
}

}  // namespace
}  // namespace railsd
