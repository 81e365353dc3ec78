// Tests the effect of a peer that lies about itself or breaks the protocol on a hub and its other peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"

namespace railsd {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

PeerHubOptions HostileOptions() {
  PeerHubOptions options = OptionsByHand("a", 11, {"a", "b", "c"});
  options.max_message_bytes = 100'000;
  return options;
}

class HubHostileTest : public ::testing::Test {
 protected:
  explicit HubHostileTest(PeerHubOptions options = HostileOptions()) : by_hand(std::move(options), &agent) {}
  void SetUp() override { by_hand.Tick(absl::Now()); }

  const PeerCounters& counters() { return by_hand.hub().counters(); }
  void Say(FrameKind kind, uint64_t number = 0, absl::string_view body = {}) {
    by_hand.Say(connection, kind, number, body);
  }
  // Dials the hub and sends a HELLO.
  HandPtr Greet(const HelloFacts& facts) {
    const HandPtr accepted = by_hand.Accept();
    by_hand.Say(accepted, FrameKind::kHello, 0, HelloOf(facts));
    return accepted;
  }
  // Accepts the hub's dial and answers with a HELLO.
  void Answer(const HelloFacts& facts) {
    connection = by_hand.DialledTo(facts.hello.node == "b" ? "127.0.0.2" : "127.0.0.3");
    ASSERT_NE(connection, nullptr);
    by_hand.Open(connection);
    Say(FrameKind::kHello, 0, HelloOf(facts));
  }
  // Brings up a node that keeps the rules.
  void BringUp(const HelloFacts& facts) {
    ASSERT_NO_FATAL_FAILURE(Answer(facts));
    ASSERT_TRUE(agent.Saw("up " + facts.hello.node));
    connection->Said();
  }
  // The reason in the hub's last frame. The hub has closed the connection.
  static std::string LastWord(const HandPtr& of) {
    const std::vector<HandFrame> said = of->Said();
    EXPECT_TRUE(of->closed);
    return said.empty() || said.back().kind != FrameKind::kEnd ? "nothing" : said.back().body;
  }
  static uint32_t GenerationIn(const HandPtr& of) {
    pb::Hello hello;
    const std::vector<HandFrame> said = of->Said();
    EXPECT_TRUE(!said.empty() && said[0].kind == FrameKind::kHello && hello.ParseFromString(said[0].body));
    return hello.link_generation();
  }
  void ExpectBroken(const std::string& why) {
    EXPECT_EQ(LastWord(connection), why);
    EXPECT_EQ(counters().protocol_errors, 1u);
    EXPECT_THAT(agent.events(), ElementsAre("up b", "down b: " + why));
  }

  FakeAgent agent;
  HubByHand by_hand;
  HandPtr connection;
};

// A daemon that was stopped hears nothing of its peers either, and must name its own pause.
TEST_F(HubHostileTest, ADaemonThatStoodStillSaysSo) {
  BringUp(FactsOf("b", 22));
  by_hand.Tick(absl::Now() + absl::Seconds(12));
  EXPECT_EQ(agent.events().size(), 1u) << "what b has said meanwhile is read first";
  by_hand.Tick(absl::Now() + absl::Seconds(12.1));
  ASSERT_EQ(agent.events().size(), 2u);
  EXPECT_THAT(agent.events()[1], ContainsRegex("down b: the daemon of a itself had not run for 1[12].*s before: it was "
                                               "stopped, or its machine is far too busy; nothing was heard of node b"));
}

TEST_F(HubHostileTest, ADaemonThatRanBlamesItsPeer) {
  BringUp(FactsOf("b", 22));
  const absl::Time begun = absl::Now();
  for (int second = 1; second <= 6; ++second) by_hand.Tick(begun + absl::Seconds(second));
  ASSERT_EQ(agent.events().size(), 2u);
  EXPECT_THAT(agent.events()[1], StartsWith("down b: nothing was heard of node b"));
}

TEST_F(HubHostileTest, TheFirstFrameIsAHello) {
  uint64_t broken = 0;
  for (const FrameKind kind : {FrameKind::kMessage, FrameKind::kPart, FrameKind::kLastPart, FrameKind::kTaken}) {
    connection = by_hand.Accept();
    Say(kind, 1, BytesOf(Quiesced{{{BootId(1), 1}, JobSeq(1)}, 0}));
    EXPECT_THAT(LastWord(connection), HasSubstr("the first frame is no hello"));
    EXPECT_EQ(counters().protocol_errors, ++broken);
  }
  connection = by_hand.DialledTo("127.0.0.2");
  by_hand.Open(connection);
  Say(FrameKind::kTaken);
  EXPECT_EQ(counters().protocol_errors, ++broken);
  Say(FrameKind::kHello, 0, HelloOf(FactsOf("b", 22)));
  by_hand.End(connection);
  EXPECT_EQ(by_hand.hub().Peers()[0].why,
            "127.0.0.2:1: whoever is at 127.0.0.2 to node a: the first frame is no hello");
  EXPECT_EQ(counters().connects, 0u);
  EXPECT_EQ(agent.message_count(), 0u);
}

TEST_F(HubHostileTest, WhoEndsAConnectionIsAskedAgainAndQuotedWithoutItsControlBytes) {
  connection = by_hand.DialledTo("127.0.0.2");
  by_hand.Open(connection);
  Say(FrameKind::kEnd, 0, "go\naway" + std::string(10'000, 'x'));
  EXPECT_TRUE(connection->closed);
  by_hand.End(connection);
  EXPECT_THAT(by_hand.hub().Peers()[0].why, StartsWith("127.0.0.2:1: go\\naway"));
  EXPECT_LT(by_hand.hub().Peers()[0].why.size(), 600u);
  EXPECT_EQ(counters().protocol_errors, 0u);
  by_hand.Tick(absl::Now() + absl::Seconds(2));
  BringUp(FactsOf("b", 22));
}

TEST_F(HubHostileTest, BytesThatAreNoFramesBreakTheLink) {
  BringUp(FactsOf("b", 22));
  by_hand.End(connection, absl::InvalidArgumentError("a frame of kind 9"));
  ExpectBroken("node b to node a: a frame of kind 9");
}

TEST_F(HubHostileTest, AHelloThatIsNoneBreaks) {
  connection = by_hand.Accept();
  Say(FrameKind::kHello, 0, "\xff\xff");
  EXPECT_THAT(LastWord(connection), HasSubstr("a broken hello"));
  EXPECT_EQ(counters().protocol_errors, 1u);
}

// Only the first HELLO of a connection is checked.
TEST_F(HubHostileTest, ASecondHelloIsNoHello) {
  BringUp(FactsOf("b", 22));
  Say(FrameKind::kHello, 0, HelloOf(FactsOf("c", 33)));
  ExpectBroken("node b to node a: a second hello");
  EXPECT_EQ(counters().connects, 1u);
}

TEST_F(HubHostileTest, NumbersComeInOrder) {
  BringUp(FactsOf("b", 22));
  const std::string message = BytesOf(Quiesced{{{BootId(1), 1}, JobSeq(1)}, 0});
  Say(FrameKind::kMessage, 1, message);
  Say(FrameKind::kMessage, 1, message);
  EXPECT_EQ(counters().duplicates, 1u);
  EXPECT_EQ(agent.message_count(), 1u);
  Say(FrameKind::kMessage, 3, message);
  ExpectBroken("node b to node a: frame 3 after 1");
  EXPECT_EQ(agent.message_count(), 1u);
}

TEST_F(HubHostileTest, NobodyAcknowledgesWhatWasNeverSent) {
  BringUp(FactsOf("b", 22));
  Say(FrameKind::kTaken, 1);
  ExpectBroken("node b to node a: acknowledges frame 1, which was never sent");
}

TEST_F(HubHostileTest, AHelloThatHasTakenWhatWasNeverSentBreaks) {
  HelloFacts facts = FactsOf("b", 22);
  facts.expected_boot = BootId(11);
  facts.expected_generation = 1;
  facts.taken = 7;
  Answer(facts);
  EXPECT_THAT(LastWord(connection), HasSubstr("says it has taken frame 7, which was never sent"));
  EXPECT_TRUE(agent.events().empty());
  EXPECT_EQ(counters().protocol_errors, 1u);
  EXPECT_EQ(counters().connects, counters().disconnects);
  const absl::Time before = absl::Now();
  by_hand.End(connection);
  by_hand.Tick(before + kMaxRedial - absl::Milliseconds(1));
  EXPECT_EQ(by_hand.DialledTo("127.0.0.2"), nullptr) << "as any other that breaks the protocol";
}

TEST_F(HubHostileTest, AMessageThatIsNoneBreaks) {
  BringUp(FactsOf("b", 22));
  Say(FrameKind::kMessage, 1, "\xff\xff");
  ExpectBroken("node b to node a: a broken message");
}

TEST_F(HubHostileTest, PartsAreAMessageOfTheSizeThatWasTold) {
  BringUp(FactsOf("b", 22));
  const std::string part(kMaxFrameBody, 'x');
  Say(FrameKind::kPart, 1, part);
  Say(FrameKind::kMessage, 2, BytesOf(Quiesced{{{BootId(1), 1}, JobSeq(1)}, 0}));
  EXPECT_EQ(agent.message_count(), 1u) << "between the parts";
  Say(FrameKind::kLastPart, 3, part);
  ExpectBroken("node b to node a: a message in parts of 65536 and 65536 bytes, outside 1 to 100000");
  by_hand.End(connection);
  by_hand.Tick(absl::Now() + absl::Seconds(2));
  Answer(FactsOf("b", 22));
  Say(FrameKind::kPart, 1, "");
  EXPECT_EQ(counters().protocol_errors, 2u);
  by_hand.End(connection);
  by_hand.Tick(absl::Now() + absl::Seconds(4));
  Answer(FactsOf("b", 22));
  Say(FrameKind::kPart, 1, "\xff");
  Say(FrameKind::kLastPart, 2, "\xff");
  EXPECT_EQ(agent.events().back(), "down b: node b to node a: a broken message");
}

TEST_F(HubHostileTest, ABootIdIsOfOneNode) {
  BringUp(FactsOf("c", 33));
  EXPECT_THAT(LastWord(Greet(FactsOf("b", 33))),
              HasSubstr("node b says boot id 0000000000000021, which node c has said before"));
  EXPECT_EQ(counters().refused, 1u);
  Answer(FactsOf("b", 33));
  EXPECT_TRUE(connection->closed);
  EXPECT_EQ(counters().refused, 2u);
  EXPECT_THAT(agent.events(), ElementsAre("up c"));
  // With its own boot id the node is accepted.
  by_hand.End(connection);
  by_hand.Tick(absl::Now() + absl::Seconds(2));
  BringUp(FactsOf("b", 22));
}

// A node that is up cannot take another node's boot id, as if it had restarted. A node that is down keeps its boot id.
TEST_F(HubHostileTest, NobodyRestartsAsAnotherOrTakesTheBootIdOfWhoIsAway) {
  BringUp(FactsOf("c", 33));
  Say(FrameKind::kStopping);
  BringUp(FactsOf("b", 22));
  EXPECT_TRUE(Greet(FactsOf("b", 33))->closed);
  EXPECT_THAT(agent.events(), ElementsAre("up c", "down c: node c is stopping (ended)", "up b"));
  EXPECT_FALSE(connection->closed) << "what b said before is as good as it was";
}

TEST_F(HubHostileTest, NamesOfOthersAreRefused) {
  EXPECT_EQ(LastWord(Greet(FactsOf("a", 99))), "node name a: two daemons have it");
  EXPECT_THAT(LastWord(Greet(FactsOf("x", 99))), StartsWith("node x is no peer of node a"));
  connection = by_hand.DialledTo("127.0.0.2");
  by_hand.Open(connection);
  Say(FrameKind::kHello, 0, HelloOf(FactsOf("c", 33)));
  EXPECT_THAT(LastWord(connection), HasSubstr("the address of b is answered by node c"));
  EXPECT_EQ(counters().refused, 3u);
  EXPECT_EQ(by_hand.hub().Peers().size(), 2u);
}

TEST_F(HubHostileTest, WhoSaysTheBootIdOfThisNodeIsNotThisNode) {
  Answer(FactsOf("b", 11));
  EXPECT_EQ(LastWord(connection), "node b says the boot id of node a");
  EXPECT_EQ(counters().own_addresses, 0u);
  by_hand.End(connection);
  by_hand.Tick(absl::Now() + absl::Seconds(2));
  BringUp(FactsOf("b", 22));
}

TEST_F(HubHostileTest, GenerationsOnlyGrow) {
  BringUp(FactsOf("b", 22));
  const HandPtr first = connection;
  connection = Greet(FactsOf("b", 22, 5));
  EXPECT_EQ(LastWord(first), "the link is over");
  EXPECT_FALSE(connection->greeted) << "it has not accepted what a said";
  Say(FrameKind::kTaken);
  EXPECT_TRUE(connection->greeted);
  EXPECT_EQ(LastWord(Greet(FactsOf("b", 22, 4))), "this link is over; dial anew");
  EXPECT_FALSE(connection->closed);
  EXPECT_THAT(agent.events(), ElementsAre("up b", "down b: node b had lost this node", "up b"));
}

// Otherwise both ends would believe that they are in the same link, but with different numbers.
TEST_F(HubHostileTest, AHelloOfAFormerLifeThatComesLateEndsTheLinkForBoth) {
  BringUp(FactsOf("b", 22));
  EXPECT_TRUE(Greet(FactsOf("b", 21))->open) << "it was on its way when that daemon ended";
  const uint32_t after = GenerationIn(Greet(FactsOf("b", 22)));
  EXPECT_TRUE(!agent.Saw("down b") || after > 1) << "b believes that its link goes on";
}

TEST_F(HubHostileTest, AConnectionThatWasReplacedCarriesNothing) {
  const HandPtr first = Greet(FactsOf("b", 22));
  HelloFacts facts = FactsOf("b", 22);
  facts.count = 9;
  connection = Greet(facts);
  EXPECT_EQ(LastWord(first), "another connection carries this link");
  by_hand.hub().OnFrame(first, Frame{FrameKind::kTaken, 1, ""});
  by_hand.hub().OnFrame(first, Frame{FrameKind::kMessage, 1, "\xff"});
  by_hand.End(first);
  EXPECT_FALSE(connection->closed);
  EXPECT_EQ(counters().protocol_errors, 0u);
  Say(FrameKind::kTaken);
  EXPECT_THAT(agent.events(), ElementsAre("up b"));
}

// The hub has dialled b at a port where nobody listens, as it finds out when b does not speak.
class ReachTest : public HubHostileTest {
 protected:
  void SetUp() override {
    by_hand.with_ports = true;
    HubHostileTest::SetUp();
    connection = by_hand.DialledTo("127.0.0.2:1");
    by_hand.Open(connection);
    Say(FrameKind::kHello, 0, HelloOf(FactsOf("b", 22)));
  }
  void Pass(int ticks) {
    for (; ticks > 0; --ticks) by_hand.Tick(now += absl::Milliseconds(200));
  }
  absl::Time now = absl::Now();
};

TEST_F(ReachTest, APeerThatIsRefusedWhereItWasReachedIsDead) {
  by_hand.End(connection);
  Pass(10);
  EXPECT_THAT(agent.events(),
              ElementsAre("up b", "down b: the daemon of node b is dead: 127.0.0.2:1 refuses connections (ended)"));
}

TEST_F(ReachTest, AnAddressOfAFormerLinkSaysNothingOfThisOne) {
  const HandPtr former = connection;
  connection = Greet(FactsOf("b", 23));
  Say(FrameKind::kTaken);
  by_hand.End(former);
  by_hand.End(connection);
  Pass(10);
  EXPECT_THAT(agent.events(), ElementsAre("up b", "down b: node b has restarted (ended)", "up b"));
}

TEST_F(ReachTest, ARefusalAtAnAddressThatWasDroppedIsForgotten) {
  by_hand.End(connection);
  Pass(2);  // the probe is refused, and b is dialled again
  by_hand.hub().SetStaticPeers({});
  by_hand.End(by_hand.DialledTo("127.0.0.2:1"));
  Pass(10);
  EXPECT_THAT(agent.events(), ElementsAre("up b"));
}

// Plain text with peers.dns: whoever reaches the control port is taken for a peer.
class NamesTest : public HubHostileTest {
 protected:
  NamesTest() : HubHostileTest(Dns()) {}
  static PeerHubOptions Dns() {
    PeerHubOptions options = HostileOptions();
    options.dns.name = "peers.example";
    return options;
  }
};

TEST_F(NamesTest, AStrangersNameIsForgottenWithItsConnection) {
  for (uint64_t i = 0; i < 1000; ++i) {
    const HandPtr stranger = Greet(FactsOf(absl::StrCat("x", i), 100 + i));
    EXPECT_FALSE(stranger->closed);
    if (i == 0) continue;
    by_hand.End(stranger);
    by_hand.Tick(absl::Now());
  }
  ASSERT_EQ(by_hand.hub().Peers().size(), 3u) << "b and c, and the one whose connection is open";
  EXPECT_EQ(by_hand.hub().Peers()[2].node, "x0");
  EXPECT_TRUE(agent.events().empty()) << "none of them was up";
}

TEST_F(NamesTest, APeerThatIsGoneIsShownForAWhileAndBeginsAnew) {
  connection = by_hand.DialledTo("127.0.0.2");
  by_hand.Open(connection);
  EXPECT_EQ(GenerationIn(connection), 1u);
  Say(FrameKind::kHello, 0, HelloOf(FactsOf("b", 22)));
  by_hand.hub().SetStaticPeers({});
  Say(FrameKind::kStopping);
  by_hand.End(connection);
  by_hand.End(by_hand.DialledTo("127.0.0.3"));
  for (const absl::Duration moment : {absl::ZeroDuration(), absl::Seconds(1)}) {  // the first is after a pause
    by_hand.Tick(absl::Now() + absl::Minutes(9) + moment);
  }
  EXPECT_EQ(by_hand.hub().Peers().size(), 2u);
  EXPECT_FALSE(agent.Saw("forgotten b"));
  for (const absl::Duration moment : {absl::ZeroDuration(), absl::Seconds(1)}) {
    by_hand.Tick(absl::Now() + absl::Minutes(11) + moment);
  }
  EXPECT_EQ(by_hand.hub().Peers().size(), 0u);
  EXPECT_TRUE(agent.Saw("forgotten b"));
  // The peer may remember this node's generation from before: 2.
  EXPECT_EQ(GenerationIn(Greet(FactsOf("b", 22))), 3u);
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
    PeerHubOptions options = HostileOptions();
    options.outbox = {.max_messages = 100, .max_bytes = 20'000};
    return options;
  }
  // b acknowledges nothing.
  void SetUp() override {
    HubHostileTest::SetUp();
    BringUp(FactsOf("c", 33));
    BringUp(FactsOf("b", 22));
  }
};

TEST_F(SlowPeerTest, LongMessagesOfJobsTakeHalfOfAnOutboxAndLeaveTheRestToShortOnes) {
  uint64_t sent = 0;
  absl::Status full;
  while (full.ok()) {
    ASSERT_LT(sent, 100u) << "nothing is refused";
    full = by_hand.hub().SendIfItFits("b", OfferOf(sent + 1, 90));
    sent += full.ok() ? 1 : 0;
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr(absl::StrCat("node b has not taken ", sent, " messages of ")));
  EXPECT_THAT(std::string(full.message()), HasSubstr("(50 of 10000)"));
  EXPECT_GT(sent, 5u);
  EXPECT_EQ(counters().messages_held_back, 1u);
  // There is room for a shorter message, for aborts, and for all messages to another node.
  EXPECT_TRUE(by_hand.hub().SendIfItFits("b", OfferOf(50, 1)).ok());
  for (uint64_t seq = 1; seq <= sent; ++seq) {
    by_hand.hub().Send("b", Abort{{{BootId(11), 1}, JobSeq(seq)}, absl::StatusCode::kResourceExhausted, "full", false});
  }
  EXPECT_TRUE(by_hand.hub().SendIfItFits("c", OfferOf(1, 90)).ok());
  EXPECT_THAT(agent.events(), ElementsAre("up c", "up b"));
  // After the peer has caught up.
  Say(FrameKind::kTaken, 2 * sent + 1);
  EXPECT_EQ(by_hand.hub().Outboxes().messages, 1u) << "that for c";
  EXPECT_TRUE(by_hand.hub().SendIfItFits("b", OfferOf(51, 90)).ok());
}

TEST_F(SlowPeerTest, ManyMessagesOfJobsTakeHalfOfAnOutbox) {
  for (uint64_t seq = 1; seq <= 50; ++seq) ASSERT_TRUE(by_hand.hub().SendIfItFits("b", OfferOf(seq, 0)).ok());
  EXPECT_EQ(by_hand.hub().SendIfItFits("b", OfferOf(51, 0)).code(), absl::StatusCode::kResourceExhausted);
  for (uint64_t seq = 1; seq <= 50; ++seq) by_hand.hub().Send("b", OfferOf(seq, 0));
  EXPECT_EQ(by_hand.hub().Outboxes().messages, 100u);
  EXPECT_EQ(counters().lost, 0u);
  by_hand.hub().Send("b", OfferOf(52, 0));
  EXPECT_EQ(counters().lost, 1u) << "without it the next ones are worth nothing";
}

}  // namespace
}  // namespace railsd
