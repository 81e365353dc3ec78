// Tests two daemons of one name, and what a hub logs of peers that it refuses or does not reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HubFailuresTest : public ::testing::Test {
 protected:
  explicit HubFailuresTest(const std::vector<std::string>& peers = {"a", "b"})
      : by_hand(Options(&text, peers), &agent) {}
  static PeerHubOptions Options(std::ostringstream* text, const std::vector<std::string>& peers) {
    PeerHubOptions options = OptionsByHand("a", 11, peers);
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_st>(*text);
    options.log = std::make_shared<spdlog::logger>("test", std::move(sink));
    options.log->set_pattern("%l %v");
    return options;
  }
  void Tick() { by_hand.Tick(now += absl::Seconds(2)); }
  // Dials the hub and sends the HELLO of b.
  HandPtr Greet(uint64_t boot, uint32_t max_world_size = PeerHubOptions().max_world_size) {
    HelloFacts facts = FactsOf("b", boot);
    facts.max_world_size = max_world_size;
    const HandPtr connection = by_hand.Accept();
    by_hand.Say(connection, FrameKind::kHello, 0, HelloOf(facts));
    by_hand.Say(connection, FrameKind::kTaken);
    return connection;
  }
  // Lines of warnings and errors since the last call.
  std::vector<std::string> Lines() {
    std::vector<std::string> lines;
    for (absl::string_view line : absl::StrSplit(text.str(), '\n', absl::SkipEmpty())) {
      if (line.substr(0, 4) != "info") lines.emplace_back(line);
    }
    text.str("");
    return lines;
  }

  std::ostringstream text;
  FakeAgent agent;
  HubByHand by_hand;
  absl::Time now = SteadyNow();
};

TEST_F(HubFailuresTest, ASecondDaemonOfANameIsRefusedWhileTheFirstOneSpeaks) {
  const HandPtr first = Greet(22);
  for (int i = 0; i < 10; ++i) {
    const HandPtr second = Greet(33);
    ASSERT_TRUE(second->closed);
    EXPECT_THAT(second->Said().back().body,
                HasSubstr("two daemons call themselves node b: one at 192.0.2.1 (boot id 0000000000000021), and one at "
                          "192.0.2.1 (boot id 0000000000000016), whose link with node a is up; stop one of them, or "
                          "give it another name"));
    by_hand.End(second);
    EXPECT_FALSE(Greet(22)->ended) << "its next connection has the same boot id";
  }
  EXPECT_THAT(agent.events(), ElementsAre("up b"));
  EXPECT_EQ(by_hand.hub().counters().refused, 10u);
  EXPECT_THAT(Lines(),
              ElementsAre(HasSubstr("error peer_refused node=b address=192.0.2.1 times=1 reason=\"two daemons")));
}

TEST_F(HubFailuresTest, ADaemonThatRestartedIsWelcomeOnceItsOldConnectionHasEnded) {
  by_hand.End(Greet(22));
  EXPECT_FALSE(Greet(33)->closed);
  EXPECT_THAT(agent.events(), ElementsAre("up b", "down b: node b has restarted (ended)", "up b"));
  EXPECT_THAT(Lines(), IsEmpty());
}

// The node lost its power, or was cut off: nothing ends its old connection. `dialled`: by the hub.
class HalfDeadTest : public HubFailuresTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(DialledAndAccepted, HalfDeadTest, ::testing::Bool());

TEST_P(HalfDeadTest, ADaemonThatRestartedIsWelcomeTwoHeartbeatsAfterItsOldConnectionFellSilent) {
  HandPtr old;
  if (GetParam()) {
    Tick();
    old = by_hand.DialledTo("127.0.0.2");
    by_hand.Open(old);
    by_hand.Say(old, FrameKind::kHello, 0, HelloOf(FactsOf("b", 22)));
  } else {
    old = Greet(22);
  }
  const absl::Duration heartbeat = PeerHubOptions().heartbeat;
  by_hand.Silence("b", heartbeat);
  EXPECT_TRUE(Greet(33)->closed) << "one heartbeat may be late";
  by_hand.Silence("b", 2 * heartbeat);
  EXPECT_FALSE(Greet(33)->closed);
  EXPECT_TRUE(old->closed);
  EXPECT_THAT(agent.events(), ElementsAre("up b", "down b: node b has restarted (ended)", "up b"));
}

// A peer that the hub cannot be dialled by: it has to find out by itself.
TEST_F(HubFailuresTest, APeerThatRestartedBehindACutNetworkIsDialledAgain) {
  Tick();
  const HandPtr old = by_hand.DialledTo("127.0.0.2");
  by_hand.Open(old);
  by_hand.Say(old, FrameKind::kHello, 0, HelloOf(FactsOf("b", 22)));
  by_hand.hub().SetPatience("b", absl::Hours(1));  // a group waits for it
  for (int i = 0; i < 4; ++i) Tick();
  EXPECT_TRUE(old->closed);
  by_hand.End(old);
  for (int dial = 0; dial < 2; ++dial) {  // the first one learns that the old link is over
    Tick();
    const HandPtr fresh = by_hand.DialledTo("127.0.0.2");
    ASSERT_NE(fresh, nullptr);
    by_hand.Open(fresh);
    by_hand.Say(fresh, FrameKind::kHello, 0, HelloOf(FactsOf("b", 33)));
    if (fresh->closed) by_hand.End(fresh);
  }
  ASSERT_EQ(agent.events().size(), 4u);
  EXPECT_THAT(agent.events()[1], HasSubstr("silent b: nothing was heard of node b"));
  EXPECT_THAT(agent.events()[2], HasSubstr("down b: node b has restarted (ended)"));
  EXPECT_EQ(agent.events()[3], "up b");
}

TEST_F(HubFailuresTest, APeerThatIsNotReachedIsLoggedOncePerReason) {
  const std::string line = "warning peer_not_reached node=b address=127.0.0.2:1 times=1 reason=";
  for (const char* reason : {"Connection refused", "No route to host", "Connection refused"}) {
    for (int i = 0; i < 20; ++i) {
      Tick();
      const HandPtr dialled = by_hand.DialledTo("127.0.0.2");
      ASSERT_NE(dialled, nullptr);
      by_hand.End(dialled, absl::UnavailableError(reason));
    }
  }
  EXPECT_THAT(Lines(), ElementsAre(absl::StrCat(line,
                                                "\"Connection refused; does railsd run there, and is this the "
                                                "address of its control.listen?\""),
                                   HasSubstr("No route to host")));
}

TEST_F(HubFailuresTest, ARefusedPeerIsLoggedOncePerReasonByBothEnds) {
  for (int i = 0; i < 20; ++i) {
    by_hand.End(Greet(22, 8));
    Tick();
    const HandPtr dialled = by_hand.DialledTo("127.0.0.2");
    ASSERT_NE(dialled, nullptr);
    by_hand.Open(dialled);
    by_hand.Say(dialled, FrameKind::kEnd, 0, "no peer of mine; add it to peers.static");
    by_hand.End(dialled);
    by_hand.End(by_hand.Accept(), absl::FailedPreconditionError("the other end speaks TLS"));
    by_hand.End(by_hand.Accept(), absl::UnavailableError("it broke"));
  }
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("peer_refused node=b address=192.0.2.1 times=1 reason=\"node b to node a: "
                                             "hello.limits.max_world_size: 8"),
                                   HasSubstr("peer_refused node=? address=192.0.2.1 times=1 reason=\"the other end "
                                             "speaks TLS\""),
                                   HasSubstr("peer_not_reached node=b address=127.0.0.2:1 times=1 reason=\"no peer")));
}

// One file for all nodes calls this node by its short name, and the host by its long one.
TEST_F(HubFailuresTest, TheNodesOwnAddressUnderAnotherNameIsRefused) {
  for (int i = 0; i < 3; ++i) {
    Tick();
    const HandPtr dialled = by_hand.DialledTo("127.0.0.2");
    ASSERT_NE(dialled, nullptr);
    by_hand.Open(dialled);
    by_hand.Say(dialled, FrameKind::kHello, 0, HelloOf(FactsOf("a", 11)));
    by_hand.End(dialled);
  }
  EXPECT_THAT(Lines(), ElementsAre(HasSubstr("peer_refused node=b address=127.0.0.2 times=1 reason=\"peers.static has "
                                             "this node\\'s own address under the name b, and this node calls itself "
                                             "a")));
  EXPECT_EQ(by_hand.hub().counters().own_addresses, 0u);
}

TEST(FailureCountsTest, TheSameFailureIsReportedOnceAMinuteWithItsCount) {
  FailureCounts counts;
  const absl::Time begin = absl::FromUnixSeconds(1000);
  EXPECT_EQ(counts.Note("one", begin), 1u);
  EXPECT_EQ(counts.Note("two", begin), 1u);
  for (int second = 1; second < 60; ++second) EXPECT_EQ(counts.Note("one", begin + absl::Seconds(second)), 0u);
  EXPECT_EQ(counts.Note("one", begin + absl::Minutes(1)), 60u);
  EXPECT_EQ(counts.Note("one", begin + absl::Minutes(1)), 0u);
  // Strangers invent texts. The texts that are kept are bounded, and nobody is silenced.
  for (size_t i = 0; i < 2 * FailureCounts::kMost; ++i) EXPECT_EQ(counts.Note(absl::StrCat("x", i), begin), 1u);
}

}  // namespace
}  // namespace railsd
