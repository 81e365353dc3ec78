// READYs that bring bytes: their acknowledgement, and what the agent hears of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Ready ReadyOf(uint64_t seq, const std::string& eager) {
  Ready ready;
  ready.job = {{BootId(11), 1}, JobSeq(seq)};
  if (!eager.empty()) ready.sends = {{Rank(0), Rank(1), eager.size()}};
  ready.eager = eager;
  return ready;
}

class HubReceiptTest : public ::testing::Test {
 protected:
  void SetUp() override {
    by_hand.Tick(SteadyNow());
    connection = Greet(FactsOf("b", 22));
    Say(FrameKind::kTaken);
    ASSERT_THAT(agent.events(), ElementsAre("up b"));
    Acknowledged();
  }
  // Dials the hub and sends a HELLO.
  HandPtr Greet(const HelloFacts& facts) {
    const HandPtr accepted = by_hand.Accept();
    by_hand.Say(accepted, FrameKind::kHello, 0, HelloOf(facts));
    return accepted;
  }
  void Say(FrameKind kind, uint64_t number = 0, absl::string_view body = {}) {
    by_hand.Say(connection, kind, number, body);
  }
  void SendReady(uint64_t seq, const std::string& eager) {
    const absl::Status sent = by_hand.hub().SendIfItFits("b", ReadyOf(seq, eager));
    ASSERT_TRUE(sent.ok()) << sent;
  }
  // Numbers that the hub has acknowledged since the last call.
  std::vector<uint64_t> Acknowledged() {
    std::vector<uint64_t> numbers;
    for (const HandFrame& frame : connection->Said()) {
      if (frame.kind == FrameKind::kTaken) numbers.push_back(frame.number);
    }
    return numbers;
  }
  std::vector<std::string> Events() {
    std::vector<std::string> events = agent.events();
    events.erase(events.begin());
    return events;
  }

  FakeAgent agent;
  HubByHand by_hand{OptionsByHand("a", 11, {"a", "b"}), &agent};
  HandPtr connection;
};

TEST_F(HubReceiptTest, AReadyWithBytesIsAcknowledgedAtOnce) {
  Say(FrameKind::kMessage, 1, BytesOf(ReadyOf(1, "")));
  EXPECT_THAT(Acknowledged(), IsEmpty()) << "with the next heartbeat";
  Say(FrameKind::kMessage, 2, BytesOf(ReadyOf(2, "bytes")));
  EXPECT_THAT(Acknowledged(), ElementsAre(2));
  const std::string body = BytesOf(ReadyOf(3, "bytes in two parts"));
  Say(FrameKind::kPart, 3, body.substr(0, 9));
  EXPECT_THAT(Acknowledged(), IsEmpty());
  Say(FrameKind::kLastPart, 4, body.substr(9));
  EXPECT_THAT(Acknowledged(), ElementsAre(4));
  // It comes once more: its sender has not heard of the acknowledgement.
  Say(FrameKind::kMessage, 2, BytesOf(ReadyOf(2, "bytes")));
  EXPECT_THAT(Acknowledged(), ElementsAre(4));
  EXPECT_EQ(agent.messages.size(), 3u);
}

TEST_F(HubReceiptTest, AnAcknowledgementThatTheSocketDoesNotTakeIsSaidWhenItTakesMore) {
  const size_t room = std::exchange(connection->room, 0);
  Say(FrameKind::kMessage, 1, BytesOf(ReadyOf(1, "bytes")));
  EXPECT_THAT(Acknowledged(), IsEmpty());
  connection->room = room;
  by_hand.Writable(connection);
  EXPECT_THAT(Acknowledged(), ElementsAre(1));
  by_hand.Writable(connection);
  EXPECT_THAT(Acknowledged(), IsEmpty());
}

TEST_F(HubReceiptTest, TheAgentHearsWhatThePeerHasTaken) {
  SendReady(1, "bytes");
  SendReady(2, "");
  SendReady(3, "more bytes");
  Say(FrameKind::kTaken, 0);
  EXPECT_THAT(Events(), IsEmpty());
  Say(FrameKind::kTaken, 2);
  EXPECT_THAT(Events(), ElementsAre("taken by b: ready of job 1"));
  Say(FrameKind::kTaken, 3);
  Say(FrameKind::kTaken, 3);
  EXPECT_THAT(Events(), ElementsAre("taken by b: ready of job 1", "taken by b: ready of job 3"));
}

// The connection breaks before the acknowledgement; the HELLO on the next one says what has been taken.
TEST_F(HubReceiptTest, AReconnectBringsTheReceipt) {
  SendReady(1, "bytes");
  SendReady(2, "more bytes");
  by_hand.End(connection);
  EXPECT_THAT(Events(), IsEmpty());
  HelloFacts facts = FactsOf("b", 22);
  facts.count = 9;
  facts.expected_boot = BootId(11);
  facts.expected_generation = 1;
  facts.taken = 1;
  connection = Greet(facts);
  EXPECT_THAT(Events(), ElementsAre("taken by b: ready of job 1"));
  Say(FrameKind::kTaken, 1);
  std::vector<uint64_t> resent;
  for (const HandFrame& frame : connection->Said()) {
    if (frame.kind == FrameKind::kMessage) resent.push_back(frame.number);
  }
  EXPECT_THAT(resent, ElementsAre(2));
  Say(FrameKind::kTaken, 2);
  EXPECT_THAT(Events(), ElementsAre("taken by b: ready of job 1", "taken by b: ready of job 2"));
}

TEST_F(HubReceiptTest, NothingOfALinkThatIsOverIsAcknowledged) {
  SendReady(1, "bytes");
  by_hand.End(connection);
  HelloFacts facts = FactsOf("b", 23);
  facts.count = 9;
  facts.expected_boot = BootId(11);
  facts.expected_generation = 1;
  facts.taken = 0;
  connection = Greet(facts);
  Say(FrameKind::kTaken, 0);
  SendReady(2, "of the new one");
  Say(FrameKind::kTaken, 1);
  EXPECT_THAT(Events(), ElementsAre("down b: node b has restarted (ended)", "up b", "taken by b: ready of job 2"));
}

}  // namespace
}  // namespace railsd
