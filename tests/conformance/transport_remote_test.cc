// What transports that write into remote memory promise: keys, fences, and zones that close under their writers.
#include <algorithm>

#include "tests/conformance/transport_suite.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;

// Keys that open a whole segment to every peer (counted by the transport) promise less.
bool IsWeak(const RailTransport& transport) { return transport.counters().weak_zones.load() > 0; }

TEST_P(RemoteSuite, AFenceComesAfterEverythingOfItsFlow) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  std::vector<std::unique_ptr<Flow>> flows;
  std::vector<Flow*> pointers;
  for (int i = 0; i < 12; ++i) {
    flows.push_back(MakeFlow(b, 1 + random_() % 400000, 1 + random_() % 5, 1 + random_() % 5));
    pointers.push_back(flows.back().get());
  }
  Open(b, a, 3, pointers);
  std::vector<SendOrder> orders;
  for (uint32_t i = 0; i < flows.size(); ++i) {
    for (uint64_t offset = 0; offset < flows[i]->bytes.size(); offset += 50000) {
      orders.push_back(
          Order(*flows[i], 3, i, offset, std::min<uint64_t>(50000, flows[i]->bytes.size() - offset), orders.size()));
    }
  }
  std::shuffle(orders.begin(), orders.end(), random_);
  ASSERT_EQ(a.transport->Post(orders), orders.size());
  for (uint32_t i = 0; i < flows.size(); ++i) Fence(a, *flows[i], 3, i);
  size_t seen = 0;
  ASSERT_TRUE(Until([&] {
    const std::vector<RailEvent> fences = b.Of(Kind::kFence);
    for (; seen < fences.size(); ++seen) {
      const Flow& flow = *flows[fences[seen].zone.index];
      EXPECT_TRUE(ReadAll(flow.zone) == flow.bytes) << "at its fence, flow " << fences[seen].zone.index;
    }
    return seen == flows.size();
  }));
  for (uint32_t i = 0; i < flows.size(); ++i) ExpectCoveredOnce(b, 3, i, 0);
  ASSERT_TRUE(Until([&] { return a.fences_done == flows.size() && a.Count(Kind::kSendDone) == orders.size(); }));
  EXPECT_EQ(a.transport->counters().tx_fences.load(), flows.size());
  EXPECT_EQ(b.transport->counters().rx_fences.load(), flows.size());
  EXPECT_EQ(a.transport->counters().tx_chunks.load(), orders.size()) << "a fence is no chunk";
}

TEST_P(RemoteSuite, FencesCarryTheirCountAndRound) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 1000);
  auto other = MakeFlow(b, 1000);
  Open(b, a, 5, {other.get(), flow.get()}, /*generation=*/6);
  Fence(a, *flow, 5, 1, 6, /*fences=*/64, /*round=*/15);
  Fence(a, *other, 5, 0, 6, /*fences=*/1, /*round=*/0);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 2; }));
  const std::vector<RailEvent> fences = b.Of(Kind::kFence);
  for (const RailEvent& fence : fences) {
    EXPECT_EQ(fence.peer, Index(a));
    EXPECT_EQ(fence.zone.slot, 5u);
    EXPECT_EQ(fence.zone.generation, 6u);
    EXPECT_EQ(fence.fences, fence.zone.index == 1 ? 64 : 1);
    EXPECT_EQ(fence.round, fence.zone.index == 1 ? 15 : 0);
  }
  EXPECT_NE(fences[0].zone.index, fences[1].zone.index);
}

TEST_P(RemoteSuite, AFenceMayCarryTheLastBytes) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 70000, 3, 4);
  Open(b, a, 1, {flow.get()});
  std::vector<SendOrder> orders{Order(*flow, 1, 0, 0, 40000, 1), Order(*flow, 1, 0, 40000, 30000, 2)};
  orders[1].fences = 1;
  ASSERT_EQ(a.transport->Post(orders), 2u);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1; }));
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kAcknowledged) == 2; }));
}

TEST_P(RemoteSuite, AKeyOpensItsZoneOnly) {
  End &a = Add("a", 1), &b = Add("b", 2), &c = Add("c", 3);
  Meet(a, b);
  Meet(c, b);
  auto mine = MakeFlow(b, 1000);
  auto theirs = MakeFlow(b, 1000);
  Open(b, a, 1, {mine.get()});
  Open(b, c, 2, {theirs.get()});
  struct Case {
    const char* what;
    std::function<void(RemoteZone*)> spoil;
    bool though_weak;
    bool within_segment = false;
  };
  const size_t rail = a.options.rail.value();
  const std::vector<Case> cases{
      {"a key that is none", [&](RemoteZone* r) { r->keys[rail] ^= 0x5a5a5a00; }, true},
      {"an address outside", [&](RemoteZone* r) { r->pieces[0].address += 1 << 20; }, true},
      {"another zone's address", [&](RemoteZone* r) { r->pieces[0].address = theirs->send.remote.pieces[0].address; },
       true},
      {"past the zone's end", [&](RemoteZone* r) { r->pieces[0].address += 1; }, false, true},
      {"another peer's zone", [&](RemoteZone* r) { *r = theirs->send.remote; }, false},
  };
  size_t up = a.Count(Kind::kPeerUp), bad = 0;
  for (const Case& wrong : cases) {
    SCOPED_TRACE(wrong.what);
    if (IsWeak(*b.transport) && !wrong.though_weak) continue;
    if (wrong.within_segment && !world_->ChecksBounds()) continue;
    const RemoteZone good = mine->send.remote;
    wrong.spoil(&mine->send.remote);
    const size_t failed = a.CountDone(SendResult::kRailFailed);
    const SendOrder order = Order(*mine, 1, 0, 0, 1000, 1);
    ASSERT_EQ(a.transport->Post({&order, 1}), 1u);
    ++up;
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == up; })) << "down, and up again";
    EXPECT_EQ(a.CountDone(SendResult::kRailFailed), failed + 1);
    ++bad;
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kBadPeer) == bad; })) << "and b knows why";
    EXPECT_EQ(b.Of(Kind::kBadPeer).back().peer, Index(a));
    EXPECT_EQ(b.transport->counters().protocol_errors.load(), bad);
    mine->send.remote = good;
    // Its zones were bound to the connection that is gone.
    const auto generation = static_cast<uint32_t>(up);
    Open(b, a, 1, {mine.get()}, generation);
  }
  EXPECT_GT(a.transport->counters().endpoint_errors.load(), 0u);
  EXPECT_EQ(c.Count(Kind::kPeerDown), 0u);
  EXPECT_TRUE(ReadAll(mine->zone) == std::string(1000, '\0'));
  EXPECT_TRUE(ReadAll(theirs->zone) == std::string(1000, '\0'));
  SendAll(c, *theirs, 2, 0, 1000);
  SendAll(a, *mine, 1, 0, 1000);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 2000; }));
  EXPECT_TRUE(ReadAll(theirs->zone) == theirs->bytes);
  EXPECT_TRUE(ReadAll(mine->zone) == mine->bytes);
}

TEST_P(RemoteSuite, AFenceForWhatIsNotOpenBreaksTheConnection) {
  End &a = Add("a", 1), &b = Add("b", 2), &c = Add("c", 3);
  Meet(a, b);
  Meet(c, b);
  auto mine = MakeFlow(b, 1000);
  auto theirs = MakeFlow(b, 1000);
  Open(b, a, 1, {mine.get()});
  Open(b, c, 2, {theirs.get()});
  const FenceSlot slot = mine->send.remote.fence;
  const std::vector<FenceSlot> wrong{{slot.slot, static_cast<uint8_t>((slot.generation + 1) % 16)},  // of before
                                     {60000, 0},                                                     // of nobody
                                     theirs->send.remote.fence};                                     // of c
  for (size_t i = 0; i < wrong.size(); ++i) {
    SCOPED_TRACE(i);
    mine->send.remote.fence = wrong[i];
    const size_t up = a.Count(Kind::kPeerUp);
    Fence(a, *mine, 1, 0);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kBadPeer) == i + 1; }));
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == up + 1; })) << "down, and up again";
    EXPECT_EQ(b.Of(Kind::kBadPeer).back().peer, Index(a));
    EXPECT_EQ(b.transport->counters().protocol_errors.load(), i + 1);
  }
  EXPECT_EQ(b.Count(Kind::kFence), 0u);
  EXPECT_EQ(c.Count(Kind::kPeerDown), 0u);
}

TEST_P(RemoteSuite, KeysDieWithTheirZone) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 100000);
  for (uint32_t generation = 1; generation <= 20; ++generation) {
    Open(b, a, 1, {flow.get()}, generation);
    SendAll(a, *flow, 1, 0, 30000);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == generation && a.fences_done == generation; }));
    b.transport->CloseZones(1, generation, /*writers_stopped=*/true);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kZonesClosed) == generation; }));
  }
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u) << "closing what nobody writes to costs nothing";
  if (IsWeak(*b.transport)) return;
  WriteAll(flow->zone, std::string(100000, '\0'));
  const SendOrder late = Order(*flow, 1, 0, 0, 100000, 1);
  ASSERT_EQ(a.transport->Post({&late, 1}), 1u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1; }));
  EXPECT_EQ(a.CountDone(SendResult::kRailFailed), 1u);
  EXPECT_TRUE(ReadAll(flow->zone) == std::string(100000, '\0'));
}

// The peer has not said that it has stopped, and it has not.
TEST_P(RemoteSuite, NothingIsWrittenAfterZonesClosedUnderAWriter) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 16 << 20);
  Open(b, a, 1, {flow.get()});
  std::vector<SendOrder> orders;
  for (uint64_t i = 0; i < 16; ++i) orders.push_back(Order(*flow, 1, 0, i << 20, 1 << 20, i));
  ASSERT_EQ(a.transport->Post(orders), 16u);
  ASSERT_TRUE(Until([&] { return HasBegun(flow->zone); }));
  b.transport->CloseZones(1, 1, /*writers_stopped=*/false);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kZonesClosed) == 1; }));
  EXPECT_EQ(b.Count(Kind::kPeerDown), 1u) << "a key that is gone does not stop the packet that is being written";
  WriteAll(flow->zone, std::string(16 << 20, 'x'));  // the trainer has its buffer again
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 16; }));
  Spin(50);
  const std::string found = ReadAll(flow->zone);
  EXPECT_EQ(std::count(found.begin(), found.end(), 'x'), found.size())
      << "bytes from " << found.find_first_not_of('x') << " to " << found.find_last_not_of('x');
  EXPECT_EQ(a.CountDone(SendResult::kRailFailed) + a.CountDone(SendResult::kAcknowledged), 16u);
  // And the rail works again.
  ASSERT_TRUE(Until([&] {
    return a.Count(Kind::kPeerUp) == a.Count(Kind::kPeerDown) + 1 &&
           b.Count(Kind::kPeerUp) == b.Count(Kind::kPeerDown) + 1;
  }));
  auto next = MakeFlow(b, 500000);
  Open(b, a, 1, {next.get()}, /*generation=*/2);
  SendAll(a, *next, 1, 0, 500000);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 500000; }));
  EXPECT_TRUE(ReadAll(next->zone) == next->bytes);
}

TEST_P(RemoteSuite, ManySetsOpenAtOnceAndInAnyOrder) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  std::vector<std::unique_ptr<Flow>> flows;
  for (uint32_t slot = 1; slot <= 40; ++slot) {
    flows.push_back(MakeFlow(b, 5000, 2, 3));
    Open(b, a, slot, {flows.back().get()});
  }
  for (uint32_t slot = 40; slot >= 1; --slot) SendAll(a, *flows[slot - 1], slot, 0, 2000);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 40 && a.fences_done == 40; }));
  for (uint32_t slot = 1; slot <= 40; ++slot) {
    EXPECT_TRUE(ReadAll(flows[slot - 1]->zone) == flows[slot - 1]->bytes);
    b.transport->CloseZones(slot, 1, true);
  }
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kZonesClosed) == 40; }));
}

}  // namespace
}  // namespace railsd::testing
