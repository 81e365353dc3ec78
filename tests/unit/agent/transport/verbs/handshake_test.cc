#include "agent/transport/verbs/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "tests/support/seeds.h"

namespace railsd::verbs {
namespace {

using ::testing::HasSubstr;

// One end with a pretended set of queue pairs: what it is connected to, and what it says.
struct End {
  Handshake handshake;
  uint64_t next_generation = 1;
  std::optional<uint64_t> connected_to;  // the peer's generation
  uint64_t early = 0;                    // the connection's number, when it was connected
  bool up = false;
  uint64_t last_connection = 0;  // number of the last one that came up
  std::deque<Signal> sent;

  Signal State() const {
    Signal signal;
    signal.state = handshake.link_state();
    signal.generation = handshake.generation();
    signal.answers = handshake.answers();
    // The queue pair's number stands for the generation.
    signal.endpoint.queue_pairs = {{static_cast<uint32_t>(handshake.generation()), 0}};
    return signal;
  }
  void Do(const Handshake::Action& action) {
    if (action.fail) Break();
    if (action.connect.has_value()) {
      connected_to = action.connect->queue_pairs[0].number;
      const Handshake::Action next = handshake.Connected();
      early = handshake.connection();
      Do(next);
      return;
    }
    if (action.up) {
      up = true;
      EXPECT_EQ(handshake.connection(), early) << "it has had its number since it was connected";
      EXPECT_GT(handshake.connection(), last_connection);
      last_connection = handshake.connection();
    }
    if (action.reply) sent.push_back(State());
  }
  void Begin() { Do(handshake.Begin(next_generation++)); }
  void Break() {
    Signal down = State();
    down.kind = Signal::Kind::kDown;
    handshake.Break();
    EXPECT_TRUE(!up || handshake.connection() == last_connection) << "it ends under its number";
    connected_to.reset();
    up = false;
    sent.push_back(down);
  }
  void Hear(const Signal& signal) { Do(handshake.OnSignal(signal)); }
  bool IsDown() const { return handshake.state() == Handshake::State::kDown; }
};

void Deliver(End& from, End& to, bool lost = false) {
  const Signal signal = from.sent.front();
  from.sent.pop_front();
  if (!lost) to.Hear(signal);
}

void Settle(End& a, End& b) {
  for (int i = 0; i < 100 && (!a.sent.empty() || !b.sent.empty()); ++i) {
    if (!a.sent.empty()) Deliver(a, b);
    if (!b.sent.empty()) Deliver(b, a);
  }
}

void ExpectUp(const End& a, const End& b) {
  EXPECT_TRUE(a.up);
  EXPECT_TRUE(b.up);
  EXPECT_EQ(a.connected_to, b.handshake.generation());
  EXPECT_EQ(b.connected_to, a.handshake.generation());
  EXPECT_EQ(a.last_connection, b.last_connection);
  EXPECT_TRUE(a.sent.empty());
  EXPECT_TRUE(b.sent.empty());
}

TEST(Handshake, BothBeginAtOnce) {
  End a, b;
  a.Begin();
  b.Begin();
  Settle(a, b);
  ExpectUp(a, b);
}

TEST(Handshake, OneBeginsLater) {
  End a, b;
  a.Begin();
  Deliver(a, b);  // b has no queue pairs yet
  EXPECT_TRUE(b.sent.empty());
  b.Begin();
  Settle(a, b);
  ExpectUp(a, b);
}

TEST(Handshake, NobodyIsUpBeforeBothAreConnected) {
  End a, b;
  a.Begin();
  Deliver(a, b, /*lost=*/true);
  b.Begin();
  Deliver(b, a);  // a connects
  EXPECT_EQ(a.handshake.state(), Handshake::State::kConnected);
  EXPECT_FALSE(a.up);
  Deliver(a, b);  // b connects, and knows that a is
  EXPECT_TRUE(b.up);
  EXPECT_FALSE(a.up);
  Settle(a, b);
  ExpectUp(a, b);
}

TEST(Handshake, ANewGenerationEndsTheOld) {
  End a, b;
  a.Begin();
  b.Begin();
  Settle(a, b);
  a.Break();
  a.sent.clear();  // the news is lost
  a.Begin();
  Deliver(a, b);
  EXPECT_TRUE(b.IsDown()) << "its queue pairs belong to what a had before";
  b.Begin();
  Settle(a, b);
  ExpectUp(a, b);
  EXPECT_EQ(a.handshake.generation(), 2u);
  EXPECT_EQ(b.handshake.generation(), 2u);
}

TEST(Handshake, DownIsToldAtOnce) {
  End a, b;
  a.Begin();
  b.Begin();
  Settle(a, b);
  a.Break();
  Deliver(a, b);
  EXPECT_TRUE(b.IsDown());
  const Signal late = b.sent.front();
  b.sent.clear();
  b.Begin();
  a.Begin();
  Settle(a, b);
  ExpectUp(a, b);
  a.Hear(late);
  EXPECT_TRUE(a.up) << "it is about a generation of before";
}

TEST(Handshake, ALateHelloOfBeforeDoesNotConnect) {
  End a, b;
  a.Begin();
  b.Begin();
  Settle(a, b);
  const Signal old = b.State();  // up, answers a's generation 1
  a.Break();
  a.sent.clear();
  a.Begin();
  a.sent.clear();
  a.Hear(old);
  EXPECT_EQ(a.handshake.state(), Handshake::State::kInit);
  ASSERT_FALSE(a.sent.empty()) << "b must hear that its generation is no good";
  Deliver(a, b);
  EXPECT_TRUE(b.IsDown());
}

TEST(Handshake, WhateverIsLostRepeatingHelps) {
  std::mt19937_64 random = testing::SeededRandom();
  for (uint64_t round = 0; round < testing::Rounds(2000); ++round) {
    End a, b;
    for (int step = 0; step < 60; ++step) {
      End& one = random() % 2 == 0 ? a : b;
      End& other = &one == &a ? b : a;
      switch (random() % 6) {
        case 0:
          if (one.IsDown()) one.Begin();
          break;
        case 1:
          if (random() % 4 == 0 && !one.IsDown()) one.Break();
          break;
        default:
          if (!one.sent.empty()) Deliver(one, other, /*lost=*/random() % 5 == 0);
      }
    }
    // An end that is not up begins or repeats itself, as timers make it do.
    for (int i = 0; i < 20; ++i) {
      for (End* end : {&a, &b}) {
        if (end->IsDown()) {
          end->Begin();
        } else if (!end->up) {
          end->sent.push_back(end->State());
        }
      }
      Settle(a, b);
    }
    ExpectUp(a, b);
    if (HasFailure()) FAIL() << "round " << round;
  }
}

class Judge : public ::testing::Test {
 protected:
  Judge() {
    signal_.node = "b";
    signal_.rail = RailIndex(2);
    signal_.port = "mlx5_2/1";
    signal_.boot = BootId(20);
    signal_.to_boot = BootId(10);
    signal_.generation = 1;
    own_.queue_pairs.resize(2);
    signal_.endpoint.queue_pairs.resize(2);
  }
  Refusal Ask() { return JudgeSignal({"a", BootId(10), RailIndex(2), "mlx5_7/1"}, own_, "b", BootId(20), signal_); }
  EndpointAddress own_;
  Signal signal_;
};

TEST_F(Judge, TakesWhatFits) { EXPECT_EQ(Ask().reason, RefusalReason::kNone); }

TEST_F(Judge, RailsThatWouldCrossAreRefusedWithBothEndsNamed) {
  signal_.rail = RailIndex(5);
  const Refusal refusal = Ask();
  EXPECT_EQ(refusal.reason, RefusalReason::kRail);
  EXPECT_THAT(refusal.text, HasSubstr("node 'b' rail 5 (mlx5_2/1) to node 'a' rail 2 (mlx5_7/1)"));
}

TEST_F(Judge, OtherVersionsNodesLivesAndSetUpsAreRefused) {
  signal_.version = 9;
  EXPECT_EQ(Ask().reason, RefusalReason::kVersion);
  EXPECT_THAT(Ask().text, HasSubstr("version 9"));
  signal_.version = kSignalVersion;
  signal_.node = "c";
  EXPECT_EQ(Ask().reason, RefusalReason::kUnknownNode);
  signal_.node = "b";
  signal_.boot = BootId(21);
  EXPECT_EQ(Ask().reason, RefusalReason::kBoot);
  signal_.boot = BootId(20);
  signal_.to_boot = BootId(11);
  EXPECT_EQ(Ask().reason, RefusalReason::kBoot);
  signal_.to_boot = BootId(10);
  signal_.endpoint.link_layer = LinkLayer::kInfiniBand;
  EXPECT_EQ(Ask().reason, RefusalReason::kLinkLayer);
  signal_.endpoint.link_layer = LinkLayer::kEthernet;
  signal_.endpoint.queue_pairs.resize(1);
  EXPECT_EQ(Ask().reason, RefusalReason::kQueuePairs);
}

}  // namespace
}  // namespace railsd::verbs
