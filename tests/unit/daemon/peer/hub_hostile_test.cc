// What a peer that lies about itself, or breaks the rules of its streams, can do to a hub and to its other peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"

namespace railsd {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

PeerHubOptions Options() {
  PeerHubOptions options;
  options.node = "a";
  options.boot = BootId(11);
  options.log = NullLogger();
  return options;
}

class HubHostileTest : public ::testing::Test {
 protected:
  explicit HubHostileTest(PeerHubOptions options = Options()) : hub(std::move(options), {"b", "c"}, &agent) {}
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
  HubByHand hub;
  std::shared_ptr<OutByHand> out;
  std::shared_ptr<InByHand> in;
};

// A daemon that was stopped hears nothing of its peers either, and must not blame them alone.
TEST_F(HubHostileTest, ADaemonThatStoodStillSaysSo) {
  BringUp(FactsOf("b", 22));
  hub.Tick(absl::Now() + absl::Seconds(12));
  ASSERT_EQ(agent.events().size(), 2u);
  EXPECT_THAT(agent.events()[1], ContainsRegex("down b: the daemon of a itself had not run for 1[12].*s before: it was "
                                               "stopped, or its machine is far too busy; nothing was heard of node b"));
}

TEST_F(HubHostileTest, ADaemonThatRanBlamesItsPeer) {
  BringUp(FactsOf("b", 22));
  const absl::Time begun = absl::Now();
  for (int second = 1; second <= 6; ++second) hub.Tick(begun + absl::Seconds(second));
  ASSERT_EQ(agent.events().size(), 2u);
  EXPECT_THAT(agent.events()[1], StartsWith("down b: nothing was heard of node b"));
}

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

// A stream that is given up ends a while later, and is nobody's until then.
TEST_F(HubHostileTest, AHelloThatComesTooLateOpensNothing) {
  out = hub.DialledTo("b");
  in = hub.Accept();
  hub.Tick(absl::Now() + Options().lost_after + absl::Seconds(1));
  EXPECT_TRUE(out->cancelled);
  EXPECT_EQ(in->status.code(), absl::StatusCode::kDeadlineExceeded);
  hub.Respond(out, AnswerOf(FactsOf("b", 22)));
  hub.Request(in, GreetingOf(FactsOf("b", 22)));
  EXPECT_EQ(hub.hub().counters().connects, 0u);
  EXPECT_TRUE(agent.events().empty());
}

// Plain text with peers.dns: whoever reaches the control port is taken for a peer.
class NamesTest : public HubHostileTest {
 protected:
  NamesTest() : HubHostileTest(Dns()) {}
  static PeerHubOptions Dns() {
    PeerHubOptions options = Options();
    options.dns.name = "peers.example";
    return options;
  }
};

TEST_F(NamesTest, AStrangersNameIsForgottenWithItsStream) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const std::shared_ptr<InByHand> stranger = Greet(FactsOf(absl::StrCat("x", i), 100 + i));
    EXPECT_FALSE(stranger->finished);
    if (i == 0) continue;
    hub.End(stranger);
    hub.Tick(absl::Now());
  }
  ASSERT_EQ(hub.hub().Peers().size(), 3u) << "b and c, and the one whose stream is open";
  EXPECT_EQ(hub.hub().Peers()[2].node, "x0");
  EXPECT_TRUE(agent.events().empty()) << "none of them was up";
}

TEST_F(NamesTest, AStreamThatWasGivenUpKeepsItsPeerUntilItEnds) {
  const std::shared_ptr<InByHand> stranger = Greet(FactsOf("x", 100));
  hub.Tick(absl::Now() + Options().lost_after + absl::Seconds(1));
  EXPECT_TRUE(stranger->finished);
  hub.Tick(absl::Now());
  EXPECT_EQ(hub.hub().Peers().size(), 3u);
  hub.Request(stranger, GreetingOf(FactsOf("x", 100)));
  hub.End(stranger);
  hub.Tick(absl::Now());
  EXPECT_EQ(hub.hub().Peers().size(), 2u);
}

TEST_F(NamesTest, APeerThatIsGoneIsShownForAWhileAndBeginsAnew) {
  BringUp(FactsOf("b", 22));
  EXPECT_EQ(out->written[0]->hello().link_generation(), 1u);
  hub.hub().SetStaticPeers({});
  hub.End(out, absl::UnavailableError(""), /*stopping=*/true);
  hub.End(in);
  hub.End(hub.DialledTo("c"), absl::UnavailableError(""));
  hub.Tick(absl::Now() + absl::Minutes(9));
  EXPECT_EQ(hub.hub().Peers().size(), 2u);
  EXPECT_FALSE(agent.Saw("forgotten b"));
  hub.Tick(absl::Now() + absl::Minutes(11));
  EXPECT_EQ(hub.hub().Peers().size(), 0u);
  EXPECT_TRUE(agent.Saw("forgotten b"));
  // It may remember the generation that this node had when it left: 2.
  in = Greet(FactsOf("b", 22));
  EXPECT_EQ(in->written[0]->hello().hello().link_generation(), 3u);
}

Offer OfferOf(uint64_t seq, uint32_t flows) {
  Offer offer;
  offer.job = {{BootId(11), 1}, JobSeq(seq)};
  for (uint32_t i = 0; i < flows; ++i) offer.flows.push_back({Rank(i), Rank(i), uint64_t{1} << 40});
  return offer;
}

class SlowPeerTest : public HubHostileTest {
 protected:
  SlowPeerTest() : HubHostileTest(Small()) {}
  static PeerHubOptions Small() {
    PeerHubOptions options = Options();
    options.outbox = {.max_messages = 100, .max_bytes = 20'000};
    return options;
  }
  // The answers of b and c to HELLO; from then on b takes nothing.
  void SetUp() override {
    hub.Tick(absl::Now());
    BringUp(FactsOf("c", 33));
    BringUp(FactsOf("b", 22));
  }
  void Acknowledge(uint64_t number) {
    while (out->writing()) hub.Written(out);
    pb::ExchangeResponse response;
    response.set_acknowledged(number);
    hub.Respond(out, response);
  }
};

TEST_F(SlowPeerTest, LongMessagesOfJobsTakeHalfOfAnOutboxAndLeaveTheRestToShortOnes) {
  uint64_t sent = 0;
  absl::Status full;
  while (full.ok()) {
    ASSERT_LT(sent, 100u) << "nothing is refused";
    full = hub.hub().SendIfItFits("b", OfferOf(sent + 1, 100));
    sent += full.ok() ? 1 : 0;
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr(absl::StrCat("node b has not taken ", sent, " messages of ")));
  EXPECT_THAT(std::string(full.message()), HasSubstr("(50 of 10000)"));
  EXPECT_GT(sent, 5u);
  EXPECT_LE(hub.hub().Outboxes().bytes, 10'000u);
  EXPECT_EQ(hub.hub().counters().messages_held_back, 1u);
  // A shorter one has room, aborts have, and so has everybody for another node.
  EXPECT_TRUE(hub.hub().SendIfItFits("b", OfferOf(50, 1)).ok());
  for (uint64_t seq = 1; seq <= sent; ++seq) {
    hub.hub().Send("b", Abort{{{BootId(11), 1}, JobSeq(seq)}, absl::StatusCode::kResourceExhausted, "full", false});
  }
  EXPECT_TRUE(hub.hub().SendIfItFits("c", OfferOf(1, 100)).ok());
  EXPECT_EQ(hub.hub().counters().lost, 0u);
  EXPECT_THAT(agent.events(), ElementsAre("up c", "up b"));
  // When it has caught up.
  Acknowledge(2 * sent + 1);
  EXPECT_EQ(hub.hub().Outboxes().messages, 1u) << "that for c";
  EXPECT_TRUE(hub.hub().SendIfItFits("b", OfferOf(51, 100)).ok());
}

TEST_F(SlowPeerTest, ManyMessagesOfJobsTakeHalfOfAnOutbox) {
  for (uint64_t seq = 1; seq <= 50; ++seq) ASSERT_TRUE(hub.hub().SendIfItFits("b", OfferOf(seq, 0)).ok());
  EXPECT_EQ(hub.hub().SendIfItFits("b", OfferOf(51, 0)).code(), absl::StatusCode::kResourceExhausted);
  for (uint64_t seq = 1; seq <= 50; ++seq) hub.hub().Send("b", OfferOf(seq, 0));
  EXPECT_EQ(hub.hub().Outboxes().messages, 100u);
  EXPECT_EQ(hub.hub().counters().lost, 0u);
  hub.hub().Send("b", OfferOf(52, 0));
  EXPECT_EQ(hub.hub().counters().lost, 1u) << "without it the next ones are worth nothing";
}

}  // namespace
}  // namespace railsd
