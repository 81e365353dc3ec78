#include "agent/rails/health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

constexpr RailIndex kRail0{0}, kRail1{1};
constexpr PeerIndex kA{0}, kB{1}, kC{2};

// Three peers that two rails reach, and a clock that moves only when told.
class RailHealthTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const PeerIndex peer : {kA, kB, kC}) {
      health_.OnPeerUp(peer, BootId(1));
      for (const RailIndex rail : {kRail0, kRail1}) health_.OnConnected(rail, peer, now_);
    }
  }
  void Flap(RailIndex rail, PeerIndex peer) {
    health_.OnDisconnected(rail, peer, now_);
    health_.OnConnected(rail, peer, now_);
  }
  HealthState State(RailIndex rail, PeerIndex peer) { return health_.PathState(rail, peer, now_); }
  bool MayUse(RailIndex rail, PeerIndex peer) { return health_.MayUse(rail, peer, now_); }
  // How long the path is held back from now on.
  absl::Duration Hold() { return health_.NextChange(now_) - now_; }

  HealthOptions options_;
  RailHealth health_{options_, 2};
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(RailHealthTest, TheFirstConnectionIsUsedAtOnce) {
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp);
  EXPECT_TRUE(MayUse(kRail0, kA));
  EXPECT_TRUE(health_.EndUsable(kRail0));
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 0u);
  EXPECT_EQ(health_.NextChange(now_), absl::InfiniteFuture());
}

TEST_F(RailHealthTest, AFirstFlapHoldsBackShortly) {
  health_.OnDisconnected(kRail0, kA, now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kDown);
  EXPECT_FALSE(MayUse(kRail0, kA));
  EXPECT_TRUE(MayUse(kRail0, kB)) << "another peer's path";
  now_ += absl::Seconds(3);
  health_.OnConnected(kRail0, kA, now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kProbing);
  EXPECT_FALSE(MayUse(kRail0, kA));
  EXPECT_LE(Hold(), absl::Milliseconds(250));
  now_ = health_.NextChange(now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp);
  EXPECT_TRUE(MayUse(kRail0, kA));
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 1u);
}

TEST_F(RailHealthTest, EachFurtherFlapDoublesTheHoldUpToTheCap) {
  absl::Duration expected = options_.first_hold;
  for (int flap = 1; flap <= 20; ++flap) {
    Flap(kRail0, kA);
    EXPECT_EQ(Hold(), expected) << "flap " << flap;
    expected = std::min(options_.max_hold, 2 * expected);
  }
}

TEST_F(RailHealthTest, FailuresDecayAndOneSuccessDoesNotForgetThem) {
  for (int flap = 0; flap < 4; ++flap) Flap(kRail0, kA);
  EXPECT_EQ(Hold(), 8 * options_.first_hold);
  now_ += 2 * options_.half_life;  // good for so long: one of four is left
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp);
  Flap(kRail0, kA);
  EXPECT_EQ(Hold(), 2 * options_.first_hold);
  now_ += 10 * options_.half_life;
  Flap(kRail0, kA);
  EXPECT_EQ(Hold(), options_.first_hold);
}

TEST_F(RailHealthTest, ALinkThatFlapsEverySecondIsLeftAlone) {
  for (int second = 0; second < 60; ++second) {
    health_.OnLink(kRail0, false, "rail0 has no carrier", now_);
    for (const PeerIndex peer : {kA, kB, kC}) health_.OnDisconnected(kRail0, peer, now_);
    now_ += absl::Milliseconds(500);
    health_.OnLink(kRail0, true, "", now_);
    for (const PeerIndex peer : {kA, kB, kC}) health_.OnConnected(kRail0, peer, now_);
    now_ += absl::Milliseconds(500);
    EXPECT_TRUE(second < 3 || State(kRail0, kB) == HealthState::kProbing) << "second " << second;
  }
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 60u) << "one for the rail, not one for each peer";
  EXPECT_TRUE(MayUse(kRail1, kA));
  now_ += options_.max_hold;
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp);
}

TEST_F(RailHealthTest, AHoldNeverStrandsAPeer) {
  Flap(kRail0, kA);
  health_.OnDisconnected(kRail1, kA, now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kProbing);
  EXPECT_TRUE(MayUse(kRail0, kA)) << "there is no other";
  health_.OnConnected(kRail1, kA, now_);
  EXPECT_TRUE(MayUse(kRail0, kA) && MayUse(kRail1, kA)) << "both are held back: both are used";
  health_.SetDrained(kRail1, true);
  EXPECT_TRUE(MayUse(kRail0, kA));
  EXPECT_FALSE(MayUse(kRail1, kA)) << "an operator's word holds whatever happens";
}

TEST_F(RailHealthTest, WhatStallsIsSuspectUntilItMoves) {
  health_.OnStalled(kRail0, kA, true);
  EXPECT_EQ(State(kRail0, kA), HealthState::kSuspect);
  EXPECT_FALSE(MayUse(kRail0, kA));
  health_.OnStalled(kRail1, kA, true);
  EXPECT_TRUE(MayUse(kRail0, kA)) << "the peer is slow on all of them";
  health_.OnStalled(kRail0, kA, false);
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp);
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 0u);
}

TEST_F(RailHealthTest, WhatBreaksToAllPeersTogetherIsThisEnd) {
  health_.OnDisconnected(kRail0, kA, now_);
  health_.OnDisconnected(kRail0, kB, now_);
  EXPECT_TRUE(health_.EndUsable(kRail0)) << "one path still holds";
  now_ += absl::Milliseconds(300);
  health_.OnDisconnected(kRail0, kC, now_);
  EXPECT_FALSE(health_.EndUsable(kRail0));
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 1u);
  EXPECT_THAT(health_.View(kRail0, now_).why, HasSubstr("to all peers broke together"));
  health_.OnConnected(kRail0, kB, now_);
  EXPECT_TRUE(health_.EndUsable(kRail0));
  EXPECT_EQ(Hold(), options_.first_hold);
}

TEST_F(RailHealthTest, WhatBreaksOneAfterTheOtherIsThePeers) {
  for (const PeerIndex peer : {kA, kB, kC}) {
    health_.OnDisconnected(kRail0, peer, now_);
    now_ += absl::Seconds(2);
  }
  EXPECT_TRUE(health_.EndUsable(kRail0));
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 3u);
}

TEST_F(RailHealthTest, APeerThatIsLostIsNoFailure) {
  for (const RailIndex rail : {kRail0, kRail1}) health_.OnDisconnected(rail, kA, now_);
  now_ += absl::Seconds(2);
  health_.OnPeerLost(kA);
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 0u);
  health_.OnPeerUp(kA, BootId(1));  // the same life: a partition
  health_.OnConnected(kRail0, kA, now_);
  EXPECT_TRUE(MayUse(kRail0, kA));
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp);
}

TEST_F(RailHealthTest, PeersThatAreLostTogetherAreNoFailureOfTheRail) {
  for (const PeerIndex peer : {kA, kB, kC}) health_.OnDisconnected(kRail0, peer, now_);
  EXPECT_FALSE(health_.EndUsable(kRail0));
  for (const PeerIndex peer : {kA, kB, kC}) health_.OnPeerLost(peer);
  EXPECT_TRUE(health_.EndUsable(kRail0));
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 0u);
  EXPECT_EQ(health_.View(kRail0, now_).state, HealthState::kUp) << "nobody has anything against it";
}

TEST_F(RailHealthTest, AnotherBootIdIsAFreshStart) {
  for (int flap = 0; flap < 5; ++flap) Flap(kRail0, kA);
  health_.OnPeerLost(kA);
  health_.OnPeerUp(kA, BootId(1));
  health_.OnConnected(kRail0, kA, now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kProbing) << "the same life: nothing is forgotten";
  health_.OnPeerLost(kA);
  health_.OnPeerUp(kA, BootId(2));
  EXPECT_EQ(State(kRail0, kA), HealthState::kDown);
  health_.OnConnected(kRail0, kA, now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp);
}

TEST_F(RailHealthTest, DrainAndUndrainDuringAHold) {
  Flap(kRail0, kA);
  EXPECT_TRUE(health_.SetDrained(kRail0, true));
  EXPECT_FALSE(health_.SetDrained(kRail0, true)) << "it was";
  EXPECT_FALSE(health_.EndUsable(kRail0));
  EXPECT_FALSE(MayUse(kRail0, kB));
  EXPECT_THAT(health_.View(kRail0, now_).why, HasSubstr("drained by an operator"));
  health_.SetDrained(kRail0, false);
  EXPECT_FALSE(MayUse(kRail0, kA)) << "it is still held back";
  EXPECT_TRUE(MayUse(kRail0, kB));
  health_.SetDrained(kRail0, true);
  now_ = health_.NextChange(now_);
  EXPECT_FALSE(MayUse(kRail0, kA));
  health_.SetDrained(kRail0, false);
  EXPECT_TRUE(MayUse(kRail0, kA));
}

TEST_F(RailHealthTest, WhatHappensToADrainedRailIsNoFailure) {
  health_.SetDrained(kRail0, true);
  health_.OnLink(kRail0, false, "rail0 is down", now_);
  for (const PeerIndex peer : {kA, kB, kC}) health_.OnDisconnected(kRail0, peer, now_);
  health_.OnLink(kRail0, true, "", now_);
  for (const PeerIndex peer : {kA, kB, kC}) health_.OnConnected(kRail0, peer, now_);
  health_.SetDrained(kRail0, false);
  EXPECT_TRUE(MayUse(kRail0, kA));
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 0u);
}

TEST_F(RailHealthTest, ThePeersWordCountsForItsEnd) {
  health_.OnPeerSays(kRail0, kA, false, false);
  health_.OnDisconnected(kRail1, kA, now_);
  EXPECT_FALSE(MayUse(kRail0, kA)) << "even when there is no other";
  EXPECT_TRUE(MayUse(kRail0, kB));
  health_.OnPeerSays(kRail0, kA, true, false);
  EXPECT_TRUE(MayUse(kRail0, kA));
}

// An operator drains the peer's end, and then pulls its cable.
TEST_F(RailHealthTest, AnEndThatAPeerHasDrainedIsNoFault) {
  health_.OnPeerSays(kRail0, kA, false, true);
  EXPECT_EQ(State(kRail0, kA), HealthState::kDrainedByPeer);
  EXPECT_FALSE(MayUse(kRail0, kA));
  health_.OnDisconnected(kRail0, kA, now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kDrainedByPeer);
  EXPECT_EQ(health_.View(kRail0, now_).state, HealthState::kUp) << "other peers use it";
  for (const PeerIndex peer : {kB, kC}) health_.OnPeerSays(kRail0, peer, false, true);
  EXPECT_EQ(health_.View(kRail0, now_).state, HealthState::kDrainedByPeer);
  EXPECT_EQ(health_.View(kRail0, now_).why, "every peer has drained its end");
  EXPECT_TRUE(health_.EndUsable(kRail0));
  EXPECT_EQ(health_.View(kRail0, now_).flaps, 0u);
  health_.OnPeerSays(kRail0, kA, true, false);
  EXPECT_EQ(State(kRail0, kA), HealthState::kDown) << "it wants the rail again, and is not connected";
  EXPECT_EQ(health_.View(kRail0, now_).state, HealthState::kDown) << "the drains of others hide no fault";
  health_.OnConnected(kRail0, kA, now_);
  EXPECT_EQ(State(kRail0, kA), HealthState::kUp) << "not held back: it had not failed";
  health_.OnPeerLost(kB);
  EXPECT_EQ(State(kRail0, kB), HealthState::kDown) << "nothing is known of a peer that is lost";
  health_.OnLink(kRail0, false, "rail0 has no carrier", now_);
  EXPECT_EQ(State(kRail0, kC), HealthState::kDown) << "a fault here";
}

TEST_F(RailHealthTest, ALinkThatIsDownIsSaidSo) {
  health_.OnLink(kRail0, false, "rail0 has no carrier", now_);
  EXPECT_FALSE(health_.EndUsable(kRail0));
  EXPECT_FALSE(MayUse(kRail0, kA)) << "before any connection has broken";
  EXPECT_EQ(health_.View(kRail0, now_).state, HealthState::kDown);
  EXPECT_EQ(health_.View(kRail0, now_).why, "rail0 has no carrier");
  for (const PeerIndex peer : {kA, kB, kC}) health_.OnDisconnected(kRail0, peer, now_);
  health_.OnLink(kRail0, true, "", now_);
  EXPECT_FALSE(health_.EndUsable(kRail0)) << "not before a connection proves it";
  health_.OnConnected(kRail0, kB, now_);
  EXPECT_TRUE(health_.EndUsable(kRail0));
}

// Whatever happens, a peer with a connected path over a rail that is wanted at both ends can be sent to.
TEST_F(RailHealthTest, TimeCountsForTheStateInWhichItPassed) {
  const auto spent = [this](RailIndex rail) { return health_.View(rail, now_).spent; };
  const size_t up = static_cast<size_t>(HealthState::kUp), down = static_cast<size_t>(HealthState::kDown);
  const size_t drained = std::size(kAllHealthStates);
  EXPECT_EQ(spent(kRail0)[up], absl::ZeroDuration());
  health_.Account(now_);
  now_ += absl::Seconds(10);
  EXPECT_EQ(spent(kRail0)[up], absl::Seconds(10)) << "up to now, not only to the last call";
  health_.OnLink(kRail0, false, "", now_);
  health_.Account(now_);
  now_ += absl::Seconds(3);
  health_.OnLink(kRail0, true, "", now_);
  health_.SetDrained(kRail1, true);
  health_.Account(now_);
  now_ += absl::Seconds(5);
  EXPECT_EQ(spent(kRail0)[up], absl::Seconds(15));
  EXPECT_EQ(spent(kRail0)[down], absl::Seconds(3));
  EXPECT_EQ(spent(kRail1)[up], absl::Seconds(13));
  EXPECT_EQ(spent(kRail1)[drained], absl::Seconds(5));
}

TEST_F(RailHealthTest, NoHistoryStrandsAPeer) {
  for (const uint64_t seed : testing::Seeds(50)) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    RailHealth health(options_, 3);
    std::vector<bool> up(3, false);
    health.OnPeerUp(kA, BootId(1));
    for (int step = 0; step < 500; ++step) {
      now_ += absl::Milliseconds(random() % 2000);
      const RailIndex rail(static_cast<uint32_t>(random() % 3));
      if (up[rail.value()]) {
        health.OnDisconnected(rail, kA, now_);
      } else {
        health.OnConnected(rail, kA, now_);
      }
      up[rail.value()] = !up[rail.value()];
      health.OnStalled(RailIndex(static_cast<uint32_t>(random() % 3)), kA, random() % 2 == 0);
      bool any_up = false, any_used = false;
      for (uint32_t r = 0; r < 3; ++r) {
        any_up = any_up || up[r];
        any_used = any_used || health.MayUse(RailIndex(r), kA, now_);
        EXPECT_TRUE(up[r] || !health.MayUse(RailIndex(r), kA, now_));
      }
      ASSERT_EQ(any_up, any_used) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace railsd
