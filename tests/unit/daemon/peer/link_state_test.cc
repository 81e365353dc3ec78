#include "daemon/peer/link_state.h"

#include <gtest/gtest.h>

namespace railsd {
namespace {

constexpr auto kOut = Direction::kOutbound;
constexpr auto kIn = Direction::kInbound;
using Effect = LinkState::Effect;

PeerHello HelloOf(uint64_t boot) {
  PeerHello hello;
  hello.node = "n1";
  hello.boot = BootId(boot);
  return hello;
}

class LinkStateTest : public ::testing::Test {
 protected:
  LinkState link{absl::Seconds(5)};
  absl::Time now = absl::UnixEpoch();
  std::optional<std::string> down;

  Effect Hello(Direction direction, uint64_t boot, uint32_t generation) {
    return link.OnHello(direction, HelloOf(boot), generation, now, &down);
  }
  void BringUp() {
    EXPECT_EQ(Hello(kOut, 7, 1), Effect::kNew);
    EXPECT_FALSE(link.TakeUp());
    EXPECT_EQ(Hello(kIn, 7, 1), Effect::kNone);
    EXPECT_TRUE(link.TakeUp());
    EXPECT_FALSE(link.TakeUp());
  }
};

TEST_F(LinkStateTest, IsUpWhenBothDirectionsAre) {
  BringUp();
  EXPECT_TRUE(link.up());
  EXPECT_FALSE(down);
}

TEST_F(LinkStateTest, AReconnectKeepsTheLink) {
  BringUp();
  link.OnStreamEnd(kOut);
  EXPECT_TRUE(link.up());
  EXPECT_EQ(Hello(kOut, 7, 1), Effect::kNone);
  EXPECT_FALSE(down);
  EXPECT_FALSE(link.TakeUp());
}

TEST_F(LinkStateTest, AnotherBootIdIsARestart) {
  BringUp();
  EXPECT_EQ(Hello(kIn, 8, 1), Effect::kNew);
  ASSERT_TRUE(down);
  EXPECT_EQ(*down, "node n1 has restarted");
  EXPECT_FALSE(link.up());
  EXPECT_FALSE(link.open(kOut)) << "the old outbound stream is of the old link";
  EXPECT_EQ(Hello(kOut, 8, 1), Effect::kNone);
  EXPECT_TRUE(link.TakeUp());
}

TEST_F(LinkStateTest, AHigherGenerationSaysThatThePeerLostUs) {
  BringUp();
  EXPECT_EQ(Hello(kOut, 7, 2), Effect::kNew);
  ASSERT_TRUE(down);
  EXPECT_EQ(*down, "node n1 had lost this node");
  EXPECT_EQ(Hello(kIn, 7, 1), Effect::kStale) << "was under way when the peer lost us";
  EXPECT_FALSE(link.open(kIn));
  EXPECT_EQ(Hello(kIn, 7, 2), Effect::kNone);
  EXPECT_TRUE(link.TakeUp());
}

TEST_F(LinkStateTest, LosingRaisesTheOwnGeneration) {
  EXPECT_EQ(link.own_generation(), 1u);
  EXPECT_FALSE(link.Lose()) << "was not up";
  BringUp();
  EXPECT_TRUE(link.Lose());
  EXPECT_EQ(link.own_generation(), 3u);
  EXPECT_FALSE(link.known());
  EXPECT_EQ(Hello(kIn, 7, 1), Effect::kNew) << "the peer need not have noticed";
  EXPECT_FALSE(down) << "told already";
}

TEST_F(LinkStateTest, SilenceOfEitherDirectionIsSeen) {
  BringUp();
  now += absl::Seconds(4);
  link.OnHeard(kOut, now);
  EXPECT_FALSE(link.Silent(now));
  now += absl::Seconds(2);
  EXPECT_EQ(link.Silent(now), kIn);
  link.OnHeard(kIn, now);
  EXPECT_FALSE(link.Silent(now));
  now += absl::Seconds(4);
  EXPECT_EQ(link.Silent(now), kOut);
}

TEST_F(LinkStateTest, WhoWaitsForThePeerKeepsTheLinkBeyondSilence) {
  link.SetPatience(absl::Seconds(20));
  BringUp();
  now += absl::Seconds(6);
  EXPECT_TRUE(link.Silent(now));
  EXPECT_FALSE(link.GivenUp(now));
  now += absl::Seconds(13);
  EXPECT_FALSE(link.GivenUp(now));
  // The streams begin anew, of the same link: what waits is resent.
  EXPECT_EQ(Hello(kIn, 7, 1), Effect::kNone);
  EXPECT_EQ(Hello(kOut, 7, 1), Effect::kNone);
  EXPECT_TRUE(link.up());
  EXPECT_FALSE(link.Silent(now));
  now += absl::Seconds(21);
  EXPECT_TRUE(link.GivenUp(now));
  link.SetPatience(absl::ZeroDuration());
  link.OnHeard(kIn, now);
  link.OnHeard(kOut, now);
  now += absl::Seconds(6);
  EXPECT_TRUE(link.GivenUp(now));
}

// An ended stream may come back before the deadline; the deadline counts from what was heard last.
TEST_F(LinkStateTest, TroubleBeginsBeforeSilence) {
  LinkState link(absl::Seconds(5));
  EXPECT_FALSE(link.Troubled(absl::InfiniteFuture()));  // it was never up
  std::optional<std::string> down;
  PeerHello hello;
  hello.node = "b";
  hello.boot = BootId(1);
  for (Direction direction : {Direction::kOutbound, Direction::kInbound}) {
    link.OnHello(direction, hello, 1, absl::FromUnixSeconds(10), &down);
  }
  ASSERT_TRUE(link.TakeUp());
  EXPECT_FALSE(link.Troubled(absl::FromUnixSeconds(10)));
  EXPECT_TRUE(link.Troubled(absl::FromUnixSeconds(11)));
  link.OnHeard(Direction::kOutbound, absl::FromUnixSeconds(12));
  EXPECT_TRUE(link.Troubled(absl::FromUnixSeconds(11)));
  link.OnHeard(Direction::kInbound, absl::FromUnixSeconds(12));
  EXPECT_FALSE(link.Troubled(absl::FromUnixSeconds(11)));
  link.OnStreamEnd(Direction::kInbound);
  EXPECT_TRUE(link.Troubled(absl::FromUnixSeconds(11)));
}

TEST_F(LinkStateTest, AnEndedStreamIsGraced) {
  BringUp();
  link.OnStreamEnd(kIn);
  now += absl::Seconds(5);
  link.OnHeard(kOut, now);
  EXPECT_FALSE(link.Silent(now));
  now += absl::Milliseconds(1);
  EXPECT_EQ(link.Silent(now), kIn);
}

}  // namespace
}  // namespace railsd
