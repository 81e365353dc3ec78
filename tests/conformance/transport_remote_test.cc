// Promises of transports that bind zones: keys, their bounds, and the connections that they belong to.
#include <algorithm>
#include <cerrno>

#include "tests/conformance/transport_suite.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;

// Keys that open a whole segment to every peer (counted by the transport) promise less.
bool IsWeak(RailTransport& transport) { return transport.Info().counters->weak_zones.load() > 0; }

TEST_P(RemoteSuite, AKeyOpensItsZoneOnly) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2), &c = AddMet(b, "c", 3);
  Exchange* mine = OpenNew(b, a, 1000);
  Exchange* theirs = OpenNew(b, c, 1000);
  struct Case {
    const char* what;
    std::function<void(RemoteZone*)> spoil;
    bool though_weak;
    bool within_segment = false;
  };
  const size_t rail = a.options.rail.value();
  const RemoteZone& other = theirs->stream.remote;
  const std::vector<Case> cases{
      {"a key that is none", [&](RemoteZone* r) { r->keys[rail][0] ^= 0x5a5a5a00; }, true},
      {"an address outside", [&](RemoteZone* r) { r->pieces[0].address += 1 << 20; }, true},
      {"another zone's address", [&](RemoteZone* r) { r->pieces[0].address = other.pieces[0].address; }, true},
      {"past the zone's end", [&](RemoteZone* r) { r->pieces[0].address += 1; }, false, true},
      {"another peer's zone", [&](RemoteZone* r) { *r = other; }, false},
  };
  size_t up = a.Count(Kind::kPeerUp), bad = 0;
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.what);
    if (IsWeak(*b.transport) && !wrong.though_weak) continue;
    if (wrong.within_segment && !world_->ChecksBounds()) continue;
    wrong.spoil(&mine->stream.remote);
    const size_t failed = a.CountDone(SendResult::kRailFailed);
    const SendOrder order = Order(*mine, 0, 1000, 1, 255);
    ASSERT_EQ(a.Post({order}), 1u);
    ++up;
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == up; })) << "down, and up again";
    EXPECT_EQ(a.CountDone(SendResult::kRailFailed), failed + 1);
    ++bad;
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kBadPeer) == bad && b.Count(Kind::kPeerUp) == up + 1; }));
    EXPECT_EQ(b.Of(Kind::kBadPeer).back().peer, Index(a));
    EXPECT_EQ(b.counters().protocol_errors.load(), bad);
    Bind(b, *mine);  // the keys were good for the connection that is gone
  }
  EXPECT_GT(a.counters().endpoint_errors.load(), 0u);
  EXPECT_EQ(c.Count(Kind::kPeerDown), 0u);
  EXPECT_EQ(b.Count(Kind::kFence), 0u);
  EXPECT_TRUE(ReadAll(mine->received()) == std::string(1000, '\0'));
  EXPECT_TRUE(ReadAll(theirs->received()) == std::string(1000, '\0'));
  SendAll(c, *theirs, 1000);
  SendAll(a, *mine, 1000);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 2; }));
  ExpectArrived(b, *theirs);
  ExpectArrived(b, *mine);
}

TEST_P(RemoteSuite, AFenceForWhatWasNeverOpenBreaksTheConnection) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2), &c = AddMet(b, "c", 3);
  Exchange* mine = OpenNew(b, a, 1000);
  Exchange* theirs = OpenNew(b, c, 1000);
  const ZoneRef good = mine->stream.zone;
  const std::vector<ZoneRef> wrong{{good.slot, good.generation + 1}, {0, 0}, {60000, 0}, theirs->stream.zone};
  for (size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(i);
    mine->stream.zone = wrong[i];
    const size_t up = a.Count(Kind::kPeerUp);
    const SendOrder fence = Order(*mine, 0, 0, 1, 255);
    ASSERT_EQ(a.Post({fence}), 1u);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kBadPeer) == i + 1; }));
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == up + 1; })) << "down, and up again";
    EXPECT_EQ(b.Of(Kind::kBadPeer).back().peer, Index(a));
    EXPECT_EQ(b.counters().protocol_errors.load(), i + 1);
  }
  EXPECT_EQ(b.Count(Kind::kFence), 0u);
  EXPECT_EQ(c.Count(Kind::kPeerDown), 0u);
}

// It may have been under way when the zone was closed.
TEST_P(RemoteSuite, AFenceForAClosedZoneIsIgnored) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* closed = OpenNew(b, a, 1000);
  Exchange* open = OpenNew(b, a, 1000);
  Close(b, *closed);
  PostAll(a, {Order(*closed, 0, 0, 1, 255), Order(*open, 0, 1000, 2, 255)});
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1 && a.Count(Kind::kSendDone) == 2; }));
  Spin(20);
  ExpectArrived(b, *open);
  EXPECT_EQ(b.Count(Kind::kFence), 1u);
  EXPECT_EQ(a.CountDone(SendResult::kAcknowledged), 2u);
  EXPECT_EQ(b.counters().protocol_errors.load(), 0u);
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
}

TEST_P(RemoteSuite, KeysDieWithTheirZone) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = MakeExchange(b, 100000);
  for (size_t times = 1; times <= 20; ++times) {
    Open(b, a, *exchange);
    SendAll(a, *exchange, 30000);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == times && a.Count(Kind::kSendDone) == 4 * times; }));
    Close(b, *exchange);
  }
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u) << "closing what nobody writes to costs nothing";
  if (IsWeak(*b.transport)) return;
  WriteAll(exchange->received(), std::string(100000, '\0'));
  const SendOrder late = Order(*exchange, 0, 100000, 1);
  ASSERT_EQ(a.Post({late}), 1u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1; }));
  EXPECT_EQ(a.CountDone(SendResult::kRailFailed), 1u);
  EXPECT_TRUE(ReadAll(exchange->received()) == std::string(100000, '\0'));
}

TEST_P(RemoteSuite, KeysDieWithTheirConnection) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 1000);
  Cut(a, b);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  Unbind(b, *exchange);
  // Without a connection there is nothing to bind them to.
  b.binder()->Bind(exchange->zone);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kZoneOpened) == 2; }));
  EXPECT_EQ(b.Of(Kind::kZoneOpened)[1].error_number, ENOTCONN);
  Unbind(b, *exchange);
  Meet(a, b);
  if (!IsWeak(*b.transport)) {
    const SendOrder late = Order(*exchange, 0, 1000, 1);
    ASSERT_EQ(a.Post({late}), 1u);
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1; }));
    EXPECT_EQ(a.CountDone(SendResult::kRailFailed), 1u);
    EXPECT_TRUE(ReadAll(exchange->received()) == std::string(1000, '\0'));
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerUp) == b.Count(Kind::kPeerDown) + 1; }));
  }
  Bind(b, *exchange);
  Carry(a, b, *exchange, 1000);
  Close(b, *exchange);
}

TEST_P(RemoteSuite, AZoneIsBoundOnce) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 1000);
  b.binder()->Bind(exchange->zone);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kZoneOpened) == 2; }));
  EXPECT_EQ(b.Of(Kind::kZoneOpened)[1].error_number, EEXIST);
  Carry(a, b, *exchange, 1000);  // with the keys that it has
}

// The binding is gone with its connection; the engine closes it all the same.
TEST_P(RemoteSuite, ClosingAZoneWhoseConnectionIsGoneIsAnswered) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 1000);
  Cut(a, b);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  Close(b, *exchange, /*writers_stopped=*/false);
}

}  // namespace
}  // namespace railsd::testing
