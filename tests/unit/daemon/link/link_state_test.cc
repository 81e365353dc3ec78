#include "daemon/link/link_state.h"

#include <gtest/gtest.h>

#include <string>

namespace railsd {
namespace {

using Effect = LinkState::Effect;

class LinkStateTest : public ::testing::Test {
 protected:
  LinkState link{absl::Seconds(5)};
  absl::Time now = absl::UnixEpoch();
  std::optional<std::string> down;

  Effect Hello(uint64_t boot, uint32_t generation) {
    PeerHello hello;
    hello.node = "n1";
    hello.boot = BootId(boot);
    const Effect effect = link.OnHello(hello, generation, &down);
    if (effect != Effect::kStale) link.OnConnected(now);
    return effect;
  }
  void BringUp() {
    EXPECT_EQ(Hello(7, 1), Effect::kNew);
    EXPECT_FALSE(link.up());
    EXPECT_TRUE(link.TakeUp());
    EXPECT_FALSE(link.TakeUp());
    EXPECT_TRUE(link.up());
  }
};

TEST_F(LinkStateTest, AReconnectKeepsTheLink) {
  BringUp();
  link.OnDisconnected();
  EXPECT_TRUE(link.up());
  EXPECT_EQ(Hello(7, 1), Effect::kNone);
  EXPECT_FALSE(down);
  EXPECT_FALSE(link.TakeUp());
}

TEST_F(LinkStateTest, AnotherBootIdIsARestart) {
  BringUp();
  EXPECT_EQ(Hello(8, 1), Effect::kNew);
  ASSERT_TRUE(down);
  EXPECT_EQ(*down, "node n1 has restarted");
  EXPECT_EQ(link.own_generation(), 2u)
      << "if that HELLO came late, the living one learns by it that the link has ended";
  EXPECT_FALSE(link.up());
  EXPECT_EQ(Hello(8, 1), Effect::kNone);
  EXPECT_FALSE(down) << "told already";
  EXPECT_TRUE(link.TakeUp());
}

TEST_F(LinkStateTest, AHigherGenerationSaysThatThePeerLostUs) {
  BringUp();
  EXPECT_EQ(Hello(7, 2), Effect::kNew);
  ASSERT_TRUE(down);
  EXPECT_EQ(*down, "node n1 counted this node as lost");
  EXPECT_EQ(Hello(7, 1), Effect::kStale) << "was under way when the peer lost us";
  EXPECT_FALSE(down);
  EXPECT_EQ(link.peer_generation(), 2u);
  EXPECT_EQ(Hello(7, 2), Effect::kNone);
  EXPECT_TRUE(link.TakeUp());
}

TEST_F(LinkStateTest, LosingRaisesTheOwnGeneration) {
  EXPECT_EQ(link.own_generation(), 1u);
  EXPECT_FALSE(link.Lose()) << "was not up";
  BringUp();
  EXPECT_TRUE(link.Lose());
  EXPECT_EQ(link.own_generation(), 3u);
  EXPECT_FALSE(link.known());
  EXPECT_EQ(link.last_boot(), BootId(7));
  EXPECT_EQ(Hello(7, 1), Effect::kNew) << "the peer need not have noticed";
  EXPECT_FALSE(down) << "told already";
  EXPECT_EQ(Hello(7, 2), Effect::kNew);
  EXPECT_FALSE(link.Lose());
  EXPECT_EQ(Hello(7, 1), Effect::kStale) << "also after it was lost from here";
}

TEST_F(LinkStateTest, WhoWaitsForThePeerKeepsTheLinkBeyondSilence) {
  link.SetPatience(absl::Seconds(20));
  EXPECT_FALSE(link.Silent(absl::InfiniteFuture())) << "it was never up";
  BringUp();
  now += absl::Seconds(5);
  EXPECT_FALSE(link.Silent(now));
  now += absl::Seconds(1);
  EXPECT_TRUE(link.Silent(now));
  EXPECT_FALSE(link.GivenUp(now));
  now += absl::Seconds(13);
  EXPECT_FALSE(link.GivenUp(now));
  // Another connection of the same link: the outbox is resent.
  EXPECT_EQ(Hello(7, 1), Effect::kNone);
  EXPECT_TRUE(link.up());
  EXPECT_FALSE(link.Silent(now));
  now += absl::Seconds(21);
  EXPECT_TRUE(link.GivenUp(now));
  link.SetPatience(absl::ZeroDuration());
  link.OnHeard(now);
  EXPECT_FALSE(link.GivenUp(now + absl::Seconds(5)));
  EXPECT_TRUE(link.GivenUp(now + absl::Seconds(6)));
}

TEST_F(LinkStateTest, TroubleBeginsBeforeSilence) {
  EXPECT_FALSE(link.Troubled(absl::InfiniteFuture())) << "it was never up";
  BringUp();
  EXPECT_FALSE(link.Troubled(now));
  EXPECT_TRUE(link.Troubled(now + absl::Seconds(1)));
  link.OnHeard(now + absl::Seconds(2));
  EXPECT_FALSE(link.Troubled(now + absl::Seconds(1)));
  link.OnDisconnected();
  EXPECT_TRUE(link.Troubled(now));
  EXPECT_FALSE(link.Silent(now + absl::Seconds(7))) << "the deadline counts from what was heard last";
}

TEST(ReplacesTest, CrossedDialsKeepThatOfTheLowerName) {
  const ConnectionOrigin own = {true, 1, 2}, theirs = {false, 2, 1};
  EXPECT_TRUE(Replaces(own, theirs, true));
  EXPECT_FALSE(Replaces(theirs, own, true));
  EXPECT_FALSE(Replaces(own, theirs, false));
  EXPECT_TRUE(Replaces(theirs, own, false));
}

TEST(ReplacesTest, ADialAfterTheHelloOnTheOtherConnectionReplacesIt) {
  EXPECT_TRUE(Replaces({true, 3, 3}, {false, 2, 2}, false));
  EXPECT_TRUE(Replaces({false, 3, 3}, {false, 2, 2}, true));
  EXPECT_FALSE(Replaces({true, 2, 2}, {true, 3, 3}, true)) << "an old one that arrives late";
}

}  // namespace
}  // namespace railsd
