#include "daemon/link/link_state.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

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
  EXPECT_EQ(*down, "node n1 had lost this node");
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

// Two daemons that dial each other as the hub does; 0 has the lower name. Explores every order in which dials open and
// bytes and ends arrive. Optionally one connection breaks.
class TwoEnds {
 public:
  TwoEnds(size_t dials, int breaks) : max_dials_(dials) { first_.breaks = breaks; }

  size_t Explore() {
    Visit(first_);
    return seen_.size();
  }

 private:
  enum End : uint8_t { kNotOpen, kOpen, kClosed, kEnded };  // kClosed: closed here, OnEnd() has not come yet
  struct Connection {
    int dialler = 0;
    std::array<uint64_t, 2> hello = {};  // counts; 0: not sent
    std::array<bool, 2> heard = {};      // has read the other's HELLO
    std::array<End, 2> end = {};
    std::array<bool, 2> cut = {};  // bytes under way to this end are lost; only the end of the connection arrives
  };
  struct State {
    std::vector<Connection> connections;
    std::array<int, 2> present = {-1, -1};
    std::array<uint64_t, 2> hellos = {};
    int breaks = 0;
  };

  static std::string Key(const State& s) {
    std::string key = absl::StrCat(s.breaks, ";", s.present[0], ",", s.present[1]);
    for (const Connection& c : s.connections) {
      absl::StrAppend(&key, ";", c.dialler);
      for (int i = 0; i < 2; ++i) absl::StrAppend(&key, ",", c.hello[i], c.heard[i], c.end[i], c.cut[i]);
    }
    return key;
  }
  static ConnectionOrigin OriginOf(const Connection& c, int who) {
    return {c.dialler == who, c.hello[who], c.hello[1 - who]};
  }
  static void Hello(State* s, Connection* c, int who) { c->hello[who] = ++s->hellos[who]; }

  // Does what the hub does when `who` has read the HELLO of the other end.
  static void Read(State* s, int id, int who) {
    Connection& c = s->connections[id];
    c.heard[who] = true;
    const bool dialled = c.dialler == who;
    int& present = s->present[who];
    ConnectionOrigin fresh = OriginOf(c, who);
    if (!dialled) fresh.own_hello = s->hellos[who] + 1;
    if (present >= 0 && !Replaces(fresh, OriginOf(s->connections[present], who), who == 0)) {
      c.end[who] = kClosed;
      return;
    }
    if (present >= 0) s->connections[present].end[who] = kClosed;
    present = id;
    if (!dialled) Hello(s, &c, who);
  }

  void Visit(const State& s) {
    if (::testing::Test::HasFailure() || !seen_.insert(Key(s)).second) return;
    bool moved = false;
    const auto step = [&](auto change) {
      moved = true;
      State next = s;
      change(&next);
      Visit(next);
    };
    for (int who = 0; who < 2; ++who) {
      bool dials = s.present[who] >= 0;
      for (const Connection& c : s.connections) dials |= c.dialler == who && c.end[who] != kEnded;
      if (!dials && s.connections.size() < max_dials_) {
        step([&](State* n) { n->connections.emplace_back().dialler = who; });
      }
      for (int id = 0; id < static_cast<int>(s.connections.size()); ++id) {
        const Connection& c = s.connections[id];
        const int other = 1 - who;
        if (c.end[who] == kNotOpen && c.dialler == who) {  // both ends open; the dialler speaks
          step([&](State* n) {
            Connection& mine = n->connections[id];
            mine.end = {kOpen, kOpen};
            Hello(n, &mine, who);
          });
        }
        const bool can_read = c.end[who] == kOpen && c.hello[other] > 0 && !c.heard[who];
        if (can_read && !c.cut[who]) step([&](State* n) { Read(n, id, who); });
        // The connection's end: closed here, closed there, or broken. Earlier bytes arrive first, unless they are lost.
        const bool over = c.end[who] == kClosed || (c.end[who] == kOpen && (c.end[other] >= kClosed || c.cut[who]));
        if (over && (!can_read || c.cut[who])) {
          step([&](State* n) {
            n->connections[id].end[who] = kEnded;
            if (n->present[who] == id) n->present[who] = -1;
          });
        }
        if (s.breaks > 0 && who == 0 && c.end[0] == kOpen && c.end[1] == kOpen) {
          for (const auto& cut : {std::array<bool, 2>{true, true}, {true, false}, {false, true}}) {
            step([&](State* n) {
              --n->breaks;
              n->connections[id].cut = cut;
            });
          }
        }
      }
    }
    if (moved) return;
    EXPECT_EQ(s.present[0], s.present[1]) << Key(s);
    EXPECT_TRUE(first_.breaks > 0 || s.present[0] >= 0) << "none is left: " << Key(s);
    for (int id = 0; id < static_cast<int>(s.connections.size()); ++id) {
      EXPECT_EQ(s.connections[id].end[0] == kOpen, id == s.present[0]) << Key(s);
    }
  }

  const size_t max_dials_;
  State first_;
  std::set<std::string> seen_;
};

TEST(ReplacesTest, BothEndsChooseTheSameConnectionHoweverTheyMeet) {
  EXPECT_GT(TwoEnds(2, 0).Explore(), 50u);
  EXPECT_GT(TwoEnds(3, 0).Explore(), 100u);
  EXPECT_GT(TwoEnds(3, 1).Explore(), 1000u);
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
