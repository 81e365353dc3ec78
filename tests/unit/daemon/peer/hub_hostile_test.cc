// Tests the effect of a peer that lies about itself or breaks the protocol on a hub and its other peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/link/listen.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"
#include "tests/unit/daemon/peer/long_ready.h"

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

// Bytes that the hub answers with a last word, and what it counts.
struct Refusal {
  enum Begin { kAccepted, kDialled, kUp } begin;  // b, when it has dialled, was dialled, or is up
  std::string bytes, text;                        // of one that is up: the whole text
  enum Count { kProtocol, kRefused, kNeither } count = kProtocol;
};

template <typename Change>
std::string Hello(HelloFacts facts, Change change) {
  facts.hello.rails.push_back({RailIndex(1), "verbs:mlx5_0/2", 1000});
  change(facts);
  return FrameOf(FrameKind::kHello, 0, HelloOf(facts));
}
std::string Hello(const std::string& node, uint64_t boot) {
  return Hello(FactsOf(node, boot), [](HelloFacts&) {});
}
std::string Message(uint64_t number, const std::string& body = BytesOf(Quiesced{{{BootId(1), 1}, JobSeq(1)}, {}})) {
  return FrameOf(FrameKind::kMessage, number, body);
}

std::vector<Refusal> Refusals() {
  using R = Refusal;
  const HelloFacts b = FactsOf("b", 22);
  const auto rail = [&](size_t i, const char* address) {
    return Hello(b, [&](HelloFacts& facts) { facts.hello.rails[i].address = address; });
  };
  const auto part = [](uint64_t n, const std::string& body) { return FrameOf(FrameKind::kPart, n, body); };
  const auto last = [](uint64_t n, const std::string& body) { return FrameOf(FrameKind::kLastPart, n, body); };
  const std::string whole(kMaxFrameBody, 'x'), up = "node b to node a: ";
  std::vector<Refusal> all = {
      {R::kDialled, FrameOf(FrameKind::kTaken, 0) + Hello("b", 22),
       "an unknown peer at 127.0.0.2 to node a: the first frame"},
      {R::kAccepted, FrameOf(FrameKind::kHello, 0, "\xff\xff"), "a broken hello"},
      {R::kDialled,
       Hello(b,
             [](HelloFacts& facts) {
               facts.expected_boot = BootId(11);
               facts.expected_generation = 1;
               facts.taken = 7;
             }),
       "says it has taken frame 7, which was never sent"},
      {R::kAccepted, Hello("a", 99), "node name a: two daemons have it", R::kRefused},
      {R::kAccepted, Hello("x", 99), "node x is no peer of node a", R::kRefused},
      {R::kDialled, Hello("c", 33), "the address of b is answered by node c", R::kRefused},
      {R::kDialled, Hello("b", 11), "node b claims the boot id of node a", R::kRefused},
      {R::kDialled, Hello(b, [](HelloFacts& facts) { facts.max_world_size = 8; }), "max_world_size: 8", R::kRefused},
      {R::kDialled, Hello(b, [](HelloFacts& facts) { facts.hello.rails.pop_back(); }),
       "node b has 1 rails, but node a expects 2", R::kRefused},
      {R::kDialled, rail(0, "127.0.0.9:1"), "rail 0 is 127.0.0.9:1, but node a expects 127.0.0.1", R::kRefused},
      {R::kDialled, rail(1, "verbs:mlx5_0/1"), "rail 1 is verbs:mlx5_0/1, but node a expects verbs:mlx5_0/2",
       R::kRefused},
      {R::kDialled, rail(0, "verbs:mlx5_0/2"), "rail 0 is verbs:mlx5_0/2 on node b and 127.1.0.1:4000 on node a",
       R::kRefused},
      {R::kUp, std::string("\x09\0\0\0\x09\0\0\0\0\0\0\0\0", 13), up + "a frame of kind 9"},
      {R::kUp, Hello("c", 33), up + "a second hello"},
      {R::kUp, Message(1) + Message(1) + Message(3), up + "frame 3 after 1"},
      {R::kUp, FrameOf(FrameKind::kTaken, 1), up + "acknowledges frame 1, which was never sent"},
      {R::kUp, Message(1, "\xff\xff"), up + "a broken message"},
      {R::kUp, part(1, whole) + Message(2) + last(3, whole),
       up + "a message in parts of 65536 and 65536 bytes, outside 1 to 100000"},
      {R::kUp, part(1, ""), up + "a message in parts of 0 and 0 bytes, outside 1 to 100000"},
      {R::kUp, part(1, "\xff") + last(2, "\xff"), up + "a broken message"},
      {R::kUp, FrameOf(FrameKind::kKey, 0, std::string(32, 'k')), up + "sends a key, but this node draws the key"},
      {R::kUp, Message(1) + Message(2) + Message(3),
       "node b sends messages faster than the engine of node a takes them", R::kNeither}};
  for (const FrameKind kind :
       {FrameKind::kMessage, FrameKind::kPart, FrameKind::kLastPart, FrameKind::kTaken, FrameKind::kKey}) {
    all.push_back(
        {R::kAccepted, FrameOf(kind, 1, "x"), "an unknown peer at 192.0.2.1 to node a: the first frame is no hello"});
  }
  return all;
}

TEST(HubRefusalTest, ALastWordSaysWhyAndWhoeverKeepsTheRulesThenIsWelcome) {
  for (const Refusal& refusal : Refusals()) {
    SCOPED_TRACE(refusal.text);
    PeerHubOptions options = HostileOptions();
    options.static_peers[1].rails = {"127.0.0.1", "verbs:mlx5_0/2"};
    FakeAgent agent;
    agent.message_capacity = 2;
    HubByHand by_hand(options, &agent);
    by_hand.Tick(SteadyNow());
    const HandPtr connection = refusal.begin == Refusal::kAccepted ? by_hand.Accept() : by_hand.DialledTo("127.0.0.2");
    by_hand.Open(connection);
    const bool up = refusal.begin == Refusal::kUp;
    by_hand.Arrive(connection, absl::StrCat(kLinkPreface, up ? Hello("b", 22) : "", refusal.bytes));
    const std::vector<HandFrame> said = connection->Said();
    ASSERT_TRUE(connection->closed && !said.empty() && said.back().kind == FrameKind::kEnd);
    EXPECT_THAT(said.back().body, up ? ::testing::Matcher<std::string>(refusal.text) : HasSubstr(refusal.text));
    if (up) {
      EXPECT_THAT(agent.events(), ElementsAre("up b", "down b: " + refusal.text));
    } else {
      EXPECT_TRUE(agent.events().empty());
    }
    const PeerCounters& counters = by_hand.hub().counters();
    EXPECT_EQ(counters.protocol_errors, refusal.count == Refusal::kProtocol ? 1u : 0u);
    EXPECT_EQ(counters.refused, refusal.count == Refusal::kRefused ? 1u : 0u);
    EXPECT_EQ(counters.connects, up ? 1u : 0u);
    EXPECT_EQ(counters.disconnects, up ? 1u : 0u);
    EXPECT_EQ(counters.own_addresses, 0u);
    const absl::Time before = SteadyNow();
    by_hand.End(connection);
    if (refusal.begin == Refusal::kDialled) {
      EXPECT_THAT(by_hand.hub().Peers()[0].why, HasSubstr(refusal.text));
      by_hand.Tick(before + kMaxRedial - absl::Milliseconds(1));
      EXPECT_EQ(by_hand.DialledTo("127.0.0.2"), nullptr) << "not at once";
    }
    by_hand.Tick(SteadyNow() + absl::Seconds(2));
    const HandPtr again = by_hand.DialledTo("127.0.0.2");
    ASSERT_NE(again, nullptr);
    by_hand.Open(again);
    by_hand.Arrive(again, absl::StrCat(kLinkPreface, Hello("b", 22)));
    EXPECT_FALSE(again->closed);
    EXPECT_EQ(agent.events().back(), "up b");
  }
}

class HubHostileTest : public ::testing::Test {
 protected:
  explicit HubHostileTest(PeerHubOptions options = HostileOptions())
      : refusals(options.links.refused), by_hand(std::move(options), &agent) {}
  void SetUp() override { by_hand.Tick(SteadyNow()); }

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
  FakeAgent agent;
  const std::shared_ptr<LimitCounters> refusals;
  HubByHand by_hand;
  HandPtr connection;
};

// A daemon that was stopped hears nothing of its peers either, and must name its own pause.
TEST_F(HubHostileTest, ADaemonThatStoodStillSaysSo) {
  BringUp(FactsOf("b", 22));
  by_hand.Tick(SteadyNow() + absl::Seconds(12));
  EXPECT_EQ(agent.events().size(), 1u) << "what b has said meanwhile is read first";
  by_hand.Tick(SteadyNow() + absl::Seconds(12.1));
  ASSERT_EQ(agent.events().size(), 2u);
  EXPECT_THAT(agent.events()[1], ContainsRegex("down b: the daemon of a itself had not run for 1[12].*s before: it was "
                                               "stopped, or got no processor time; nothing was heard of node b"));
}

TEST_F(HubHostileTest, ADaemonThatRanBlamesItsPeer) {
  BringUp(FactsOf("b", 22));
  const absl::Time begun = SteadyNow();
  for (int second = 1; second <= 6; ++second) by_hand.Tick(begun + absl::Seconds(second));
  ASSERT_EQ(agent.events().size(), 2u);
  EXPECT_THAT(agent.events()[1], StartsWith("down b: nothing was heard of node b"));
  EXPECT_FALSE(by_hand.hub().Peers()[0].up);
  EXPECT_THAT(by_hand.hub().Peers()[0].why, StartsWith("nothing was heard of node b"));
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
  by_hand.Tick(SteadyNow() + absl::Seconds(2));
  BringUp(FactsOf("b", 22));
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
  by_hand.Tick(SteadyNow() + absl::Seconds(2));
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
  EXPECT_THAT(agent.events(), ElementsAre("up b", "down b: node b counted this node as lost", "up b"));
}

// Otherwise both ends would believe that they are in the same link, but with different numbers.
TEST_F(HubHostileTest, AHelloOfAFormerLifeThatComesLateEndsTheLinkForBoth) {
  BringUp(FactsOf("b", 22));
  by_hand.Silence("b", absl::Seconds(2));
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
  absl::Time now = SteadyNow();
};

TEST_F(ReachTest, APeerThatIsRefusedWhereItWasReachedIsDead) {
  by_hand.End(connection);
  Pass(10);
  EXPECT_THAT(agent.events(),
              ElementsAre("up b", "down b: the daemon of node b is dead: 127.0.0.2:1 refuses connections (ended)"));
}

TEST_F(ReachTest, AnAddressOfAFormerLinkSaysNothingOfThisOne) {
  const HandPtr former = connection;
  by_hand.Silence("b", absl::Seconds(2));
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

// After a row of failures the next dial is far away, and a peer that has restarted dials itself.
TEST_F(ReachTest, WhereAPeerListensIsLookedForWhenItHasDialled) {
  Listeners listeners = ListenOn("127.0.0.2:0").value();
  const std::string address = absl::StrCat("127.0.0.2:", listeners.port);
  by_hand.hub().SetStaticPeers({{"b", address, {}}});
  by_hand.End(connection);
  for (int failed = 0; failed < 6; ++failed, by_hand.End(by_hand.DialledTo(address))) Pass(6);
  now = SteadyNow();
  by_hand.Silence("b", absl::Seconds(2));
  connection = Greet(FactsOf("b", 23));
  Say(FrameKind::kTaken);
  Pass(2);
  listeners.sockets.clear();
  by_hand.End(connection);
  Pass(10);
  EXPECT_THAT(agent.events().back(), HasSubstr("the daemon of node b is dead: " + address));
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
    by_hand.Tick(SteadyNow());
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
    by_hand.Tick(SteadyNow() + absl::Minutes(9) + moment);
  }
  EXPECT_EQ(by_hand.hub().Peers().size(), 2u);
  EXPECT_FALSE(agent.Saw("forgotten b"));
  for (const absl::Duration moment : {absl::ZeroDuration(), absl::Seconds(1)}) {
    by_hand.Tick(SteadyNow() + absl::Minutes(11) + moment);
  }
  EXPECT_EQ(by_hand.hub().Peers().size(), 0u);
  EXPECT_TRUE(agent.Saw("forgotten b"));
  // The peer may remember this node's generation from before: 2.
  EXPECT_EQ(GenerationIn(Greet(FactsOf("b", 22))), 3u);
}

Ready ReadyOf(uint64_t seq, uint32_t flows) { return testing::LongReady({{BootId(11), 1}, JobSeq(seq)}, flows); }

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
    full = by_hand.hub().SendIfItFits("b", ReadyOf(sent + 1, 90));
    sent += full.ok() ? 1 : 0;
  }
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()),
              HasSubstr(absl::StrCat("node b has not acknowledged ", sent, " messages of ")));
  EXPECT_THAT(std::string(full.message()), HasSubstr("(50 of 10000)"));
  EXPECT_GT(sent, 5u);
  EXPECT_EQ(counters().messages_held_back, 1u);
  // There is room for a shorter message, for aborts, and for all messages to another node.
  EXPECT_TRUE(by_hand.hub().SendIfItFits("b", ReadyOf(50, 1)).ok());
  for (uint64_t seq = 1; seq <= sent; ++seq) {
    by_hand.hub().Send("b", Abort{{{BootId(11), 1}, JobSeq(seq)}, absl::StatusCode::kResourceExhausted, "full"});
  }
  EXPECT_TRUE(by_hand.hub().SendIfItFits("c", ReadyOf(1, 90)).ok());
  EXPECT_THAT(agent.events(), ElementsAre("up c", "up b"));
  // After the peer has caught up.
  Say(FrameKind::kTaken, 2 * sent + 1);
  EXPECT_EQ(by_hand.hub().Outboxes().messages, 1u) << "that for c";
  EXPECT_TRUE(by_hand.hub().SendIfItFits("b", ReadyOf(51, 90)).ok());
}

TEST_F(HubHostileTest, AMessageThatIsLongerThanThePeerTakesNeedNotCostTheLink) {
  HelloFacts narrow = FactsOf("c", 33);
  narrow.max_message_bytes = 64 << 10;
  BringUp(narrow);
  PeerHub& hub = by_hand.hub();
  const absl::Status refused = hub.SendIfItFits("c", ReadyOf(1, 10'000));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("more than node c takes (65536); raise its limits.max_message"));
  EXPECT_EQ(refusals->Read(Limit::kMessage), 1u);
  EXPECT_TRUE(hub.SendIfItFits("c", ReadyOf(1, 1)).ok());
  EXPECT_TRUE(hub.SendIfItFits("nobody", ReadyOf(1, 10'000)).ok());
  EXPECT_EQ(counters().messages_dropped, 1u);
  EXPECT_EQ(counters().lost, 0u);
  hub.Send("c", ReadyOf(1, 10'000));
  EXPECT_THAT(agent.events().back(), StartsWith("down c: a message of "));
  EXPECT_EQ(refusals->Read(Limit::kMessage), 2u);
}

TEST_F(SlowPeerTest, ManyMessagesOfJobsTakeHalfOfAnOutbox) {
  for (uint64_t seq = 1; seq <= 50; ++seq) ASSERT_TRUE(by_hand.hub().SendIfItFits("b", ReadyOf(seq, 0)).ok());
  EXPECT_EQ(by_hand.hub().SendIfItFits("b", ReadyOf(51, 0)).code(), absl::StatusCode::kResourceExhausted);
  for (uint64_t seq = 1; seq <= 50; ++seq) by_hand.hub().Send("b", ReadyOf(seq, 0));
  const OutboxDepths depths = by_hand.hub().Outboxes();
  EXPECT_EQ(depths.messages, 100u);
  EXPECT_EQ(depths.most_messages, 100u);
  EXPECT_EQ(depths.bytes, depths.most_bytes);
  EXPECT_GT(depths.bytes, 100 * kFrameHeaderBytes);
  EXPECT_EQ(counters().lost, 0u);
  by_hand.hub().Send("b", ReadyOf(52, 0));
  EXPECT_EQ(counters().lost, 1u) << "without it the next ones are worth nothing";
  EXPECT_THAT(agent.events().back(), StartsWith("down b: node b does not acknowledge messages: 100 of "));
}

// A static peer that was removed, while DNS still has its address.
TEST(RemovedPeerTest, ItsAddressIsOneLikeAnyOtherOfDns) {
  FakeAgent agent;
  PeerHubOptions options = OptionsByHand("a", 1, {});
  options.dns.name = "peers.example";
  options.static_peers.push_back({"b", "127.0.0.2:1", {}});
  HubByHand hub(std::move(options), &agent);
  hub.hub().SetStaticPeers({});
  hub.Find({"127.0.0.2:1"});
  absl::Time now = SteadyNow() + absl::Milliseconds(100);
  hub.Tick(now);
  const HandPtr c = hub.DialledTo("127.0.0.2");
  ASSERT_NE(c, nullptr);
  hub.Open(c);
  hub.Say(c, FrameKind::kHello, 0, HelloOf(FactsOf("c", 7)));
  EXPECT_FALSE(c->closed) << "another node has the address now";
  hub.End(c);
  hub.Find({});
  const size_t dialled = hub.dialled.size();
  for (int i = 0; i < 10; ++i) hub.Tick(now += absl::Seconds(1));
  EXPECT_EQ(hub.dialled.size(), dialled) << "nobody names the address any more";
}

}  // namespace
}  // namespace railsd
