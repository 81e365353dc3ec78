// Zones and jobs that end early; peers that come, go and are not who they should be.
#include <algorithm>

#include "tests/conformance/transport_suite.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;

// Frames so large that they are half received for a while.
EndOptions Large() {
  EndOptions options;
  options.frame_bytes = 8 << 20;
  return options;
}

std::vector<RailEvent> DoneOf(const std::vector<RailEvent> &all, JobTag job) {
  std::vector<RailEvent> done;
  for (const RailEvent &event : all) {
    if (event.kind == Kind::kSendDone && event.job == job) done.push_back(event);
  }
  return done;
}

TEST_P(FramedSuite, FramesForUnknownZonesAreDrained) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto lost = MakeFlow(b, 300000);
  auto kept = MakeFlow(b, 300000);
  Open(b, a, 2, {kept.get()});
  const std::vector<SendOrder> orders{Order(*lost, 1, 0, 0, 300000, 1), Order(*kept, 2, 0, 0, 300000, 2),
                                      Order(*kept, 2, 0, 0, 300000, 3, /*generation=*/9)};
  ASSERT_EQ(a.transport->Post(orders), 3u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 3; }));
  for (const RailEvent &event : a.Of(Kind::kSendDone)) {
    EXPECT_EQ(event.result, event.cookie == 2 ? SendResult::kAcknowledged : SendResult::kZoneClosed) << event.cookie;
  }
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 300000; }));
  EXPECT_TRUE(ReadAll(kept->zone) == kept->bytes);
  EXPECT_GT(b.transport->counters().rx_discarded_bytes.load(), 0u);
  EXPECT_EQ(b.transport->counters().protocol_errors.load(), 0u);
}

TEST_P(FramedSuite, AZoneOpenedBetweenTwoPollsIsInTime) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  b.polled = false;
  for (uint32_t slot = 1; slot <= 20; ++slot) {
    auto flow = MakeFlow(b, 1000);
    const SendOrder order = Order(*flow, slot, 0, 0, 1000, slot);
    ASSERT_EQ(a.transport->Post({&order, 1}), 1u);
    // However the frame arrives, the Poll() that meets it first returns without judging it.
    const uint64_t polls = b.transport->counters().polls.load();
    Spin(3);
    Poll(b, absl::Seconds(10));
    ASSERT_EQ(b.transport->counters().polls.load(), polls + 1);
    Open(b, a, slot, {flow.get()});
    b.polled = true;
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == slot; }));
    b.polled = false;
    EXPECT_EQ(a.events.back().result, SendResult::kAcknowledged);
    EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
  }
}

TEST_P(FramedSuite, NothingIsWrittenAfterZonesClosed) {
  End &a = Add("a", 1, Large()), &b = Add("b", 2, Large());
  Meet(a, b);
  auto flow = MakeFlow(b, 8 << 20);
  Open(b, a, 1, {flow.get()});
  const SendOrder order = Order(*flow, 1, 0, 0, 8 << 20, 5);
  ASSERT_EQ(a.transport->Post({&order, 1}), 1u);
  ASSERT_TRUE(Until([&] { return HasBegun(flow->zone); }));
  ASSERT_EQ(b.Count(Kind::kReceived), 0u) << "the frame should be half received";
  b.transport->CloseZones(1, 1, true);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kZonesClosed) == 1; }));
  EXPECT_EQ(b.Of(Kind::kZonesClosed)[0].zone.slot, 1u);
  EXPECT_EQ(b.Of(Kind::kZonesClosed)[0].zone.generation, 1u);
  const std::string then = ReadAll(flow->zone);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 1; }));
  Spin(20);
  EXPECT_EQ(a.CountDone(SendResult::kZoneClosed), 1u);
  EXPECT_TRUE(ReadAll(flow->zone) == then);
  EXPECT_EQ(b.Count(Kind::kReceived), 0u);
  EXPECT_EQ(b.Count(Kind::kZonesClosed), 1u);
  // The connection is as good as before.
  auto next = MakeFlow(b, 500000);
  Open(b, a, 1, {next.get()}, /*generation=*/2);
  const SendOrder again = Order(*next, 1, 0, 0, 500000, 6, /*generation=*/2);
  ASSERT_EQ(a.transport->Post({&again, 1}), 1u);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 500000; }));
  EXPECT_TRUE(ReadAll(next->zone) == next->bytes);
}

TEST_P(TransportSuite, ClosingWhatIsNotOpenIsAnsweredToo) {
  End &a = Add("a", 1);
  a.transport->CloseZones(3, 4, true);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kZonesClosed) == 1; }));
}

TEST_P(TransportSuite, StoppedOrdersAreNeverReceived) {
  End &a = Add("a", 1, Large()), &b = Add("b", 2, Large());
  Meet(a, b);
  auto flow = MakeFlow(b, 16 << 20, 1, 1, /*job=*/1);
  auto other = MakeFlow(b, 1 << 20, 1, 1, /*job=*/2);
  Open(b, a, 1, {flow.get(), other.get()});
  const std::vector<SendOrder> orders{Order(*flow, 1, 0, 0, 8 << 20, 1), Order(*flow, 1, 0, 8 << 20, 8 << 20, 2),
                                      Order(*other, 1, 1, 0, 1 << 20, 3)};
  ASSERT_EQ(a.transport->Post(orders), 3u);
  ASSERT_TRUE(Until([&] { return HasBegun(flow->zone); }));
  ASSERT_EQ(b.Count(Kind::kReceived), 0u) << "the frame should be half received";
  a.transport->StopSends(JobTag(1));
  ASSERT_TRUE(Until([&] { return DoneOf(a.events, JobTag(1)).size() == 2; }));
  for (const RailEvent &done : DoneOf(a.events, JobTag(1))) {
    // A device that writes by itself may have been faster.
    const bool was_done = a.remote() && done.result == SendResult::kAcknowledged;
    EXPECT_TRUE(was_done || done.result == SendResult::kStopped);
  }
  // The memory is the trainer's again, even to be taken away.
  flow->send.memory = MemoryRanges();
  Fence(a, *other, 1, 1);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 3 && b.ReceivedBytes() == 1 << 20; }));
  Spin(20);
  EXPECT_EQ(a.Count(Kind::kSendDone), 3u);
  EXPECT_EQ(DoneOf(a.events, JobTag(2))[0].result, SendResult::kAcknowledged);
  const std::vector<RailEvent> arrived = b.Of(b.remote() ? Kind::kFence : Kind::kReceived);
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].zone.index, 1u);
  EXPECT_TRUE(ReadAll(other->zone) == other->bytes);
  EXPECT_EQ(a.transport->counters().posted_bytes.load(), 0u);
  EXPECT_EQ(b.transport->counters().protocol_errors.load(), 0u);
}

TEST_P(TransportSuite, OrdersForAPeerThatIsNotUpComeBack) {
  End &a = Add("a", 1), &b = Add("b", 2);
  auto flow = MakeFlow(b, 100);
  const SendOrder order = Order(*flow, 1, 0, 0, 100, 42);
  ASSERT_EQ(a.transport->Post({&order, 1}), 1u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 1; }));
  EXPECT_EQ(a.events[0].result, a.remote() ? SendResult::kRailFailed : SendResult::kReturned);
  EXPECT_EQ(a.events[0].cookie, 42u);
  EXPECT_EQ(a.events[0].length_bytes, 100u);
}

TEST_P(TransportSuite, APeerThatDiesFailsItsOrdersAndMayComeBack) {
  End &a = Add("a", 1, Large()), &b = Add("b", 2, Large());
  Meet(a, b);
  auto flow = MakeFlow(b, 24 << 20);
  Open(b, a, 1, {flow.get()});
  std::vector<SendOrder> orders;
  for (uint64_t i = 0; i < 3; ++i) orders.push_back(Order(*flow, 1, 0, i << 23, 8 << 20, i));
  ASSERT_EQ(a.transport->Post(orders), 3u);
  ASSERT_TRUE(Until([&] { return HasBegun(flow->zone); }));
  b.transport.reset();
  size_t posted = 3;
  ASSERT_TRUE(Until([&] {
    if (a.Count(Kind::kPeerDown) == 1) return true;
    // A device that writes by itself may have done them all before; a silent peer is known by what it does not do.
    if (posted == 3 && a.Count(Kind::kSendDone) == 3) posted += a.transport->Post({&orders[2], 1});
    return false;
  }));
  EXPECT_NE(a.Of(Kind::kPeerDown)[0].error_number, 0);
  EXPECT_EQ(a.Of(Kind::kPeerDown)[0].peer, Index(b));
  if (a.remote()) {
    EXPECT_EQ(a.events.back().kind, Kind::kPeerDown) << "the orders come first";
  }

  // Another daemon of that node, with another boot id and address.
  End &again = Add("b", 3, Large());
  Know(again, a);
  a.peers[Index(b)] = {"b", BootId(3)};
  a.transport->SetPeer({Index(b), "b", BootId(3), again.transport->LocalAddress()});
  // At the latest now nobody is left who could say what arrived. Some may have been done before.
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == 2; }));
  EXPECT_EQ(a.Count(Kind::kSendDone), posted);
  EXPECT_LT(a.CountDone(SendResult::kAcknowledged), posted);
  EXPECT_EQ(a.transport->counters().posted_bytes.load(), 0u);
  auto next = MakeFlow(b, 24 << 20);
  Open(again, a, 1, {next.get()});
  for (SendOrder &order : orders) order.flow = &next->send;
  const size_t before = a.CountDone(SendResult::kAcknowledged);
  ASSERT_EQ(a.transport->Post(orders), 3u);
  Fence(a, *next, 1, 0);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kAcknowledged) == before + 3; }));
  ASSERT_TRUE(Until([&] { return again.ReceivedBytes() == 24 << 20; }));
  EXPECT_TRUE(ReadAll(next->zone) == next->bytes);
}

TEST_P(FramedSuite, AnUnknownOrMistakenPeerIsRefused) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Know(a, b);  // b does not know a
  ASSERT_TRUE(Until([&] { return b.transport->counters().refused_connections.load() > 0; }));
  EXPECT_EQ(a.Count(Kind::kPeerUp), 0u);
  KnowAs(b, a, "a", /*boot=*/77);  // knows an older a
  const uint64_t refused = b.transport->counters().refused_connections.load();
  ASSERT_TRUE(Until([&] { return b.transport->counters().refused_connections.load() > refused; }));
  EXPECT_EQ(a.Count(Kind::kPeerUp), 0u);
  EXPECT_EQ(b.Count(Kind::kPeerUp), 0u) << "boot 77 is not there";
  Know(b, a);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == 1 && b.Count(Kind::kPeerUp) == 1; }));
}

TEST_P(TransportSuite, AnotherRailIsRefused) {
  EndOptions other;
  other.rail = RailIndex(1);
  End &a = Add("a", 1), &b = Add("b", 2, other);
  Know(a, b);
  Know(b, a);
  ASSERT_TRUE(Until([&] {
    return a.transport->counters().refused_connections.load() > 0 &&
           b.transport->counters().refused_connections.load() > 0;
  }));
  EXPECT_EQ(a.Count(Kind::kPeerUp), 0u);
}

TEST_P(TransportSuite, ANewBootIdReplacesThePeer) {
  End &a = Add("a", 1, Large()), &b = Add("b", 2, Large());
  Meet(a, b);
  auto flow = MakeFlow(b, 8 << 20);
  Open(b, a, 1, {flow.get()});
  const SendOrder order = Order(*flow, 1, 0, 0, 8 << 20, 1);
  ASSERT_EQ(a.transport->Post({&order, 1}), 1u);
  Poll(a);
  KnowAs(a, b, "b", /*boot=*/99);  // the daemon there is still the old one
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1; }));
  EXPECT_EQ(a.Count(Kind::kSendDone), 1u);
  EXPECT_TRUE(a.remote() || a.CountDone(SendResult::kAcknowledged) == 0);
  // Over the link nothing for boot 99 reaches boot 2.
  ASSERT_TRUE(Until([&] { return a.remote() || b.transport->counters().refused_connections.load() > 0; }));
  EXPECT_EQ(a.Count(Kind::kPeerUp), 1u);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1 || b.Count(Kind::kPeerUp) == 1; }));
}

TEST_P(TransportSuite, RemovePeerStopsItsOrders) {
  End &a = Add("a", 1), &b = Add("b", 2), &c = Add("c", 3);
  Meet(a, b);
  Meet(a, c);
  b.polled = false;
  auto to_b = MakeFlow(b, 100000);
  auto to_c = MakeFlow(c, 100000);
  Open(b, a, 1, {to_b.get()});
  Open(c, a, 1, {to_c.get()});
  const std::vector<SendOrder> orders{Order(*to_b, 1, 0, 0, 100000, 1), Order(*to_c, 1, 0, 0, 100000, 2)};
  ASSERT_EQ(a.transport->Post(orders), 2u);
  a.transport->RemovePeer(Index(b));
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 2; }));
  for (const RailEvent &done : a.Of(Kind::kSendDone)) {
    const bool was_done = a.remote() && done.result == SendResult::kAcknowledged;
    EXPECT_TRUE(was_done || done.result == (done.cookie == 1 ? SendResult::kStopped : SendResult::kAcknowledged));
  }
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
  b.polled = true;
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  Meet(a, b);
}

TEST_P(FramedSuite, FramesOutsideTheZoneAreAProtocolError) {
  End &a = Add("a", 1), &b = Add("b", 2), &c = Add("c", 3);
  Meet(a, b);
  Meet(c, b);
  auto flow = MakeFlow(b, 1000);
  auto longer = MakeFlow(b, 2000);
  Open(b, a, 1, {flow.get()});
  const std::vector<std::pair<End *, SendOrder>> wrong{
      {&a, Order(*longer, 1, 0, 500, 1000, 1)},  // past the zone's end
      {&a, Order(*flow, 1, 1, 0, 1000, 2)},      // no such index
      {&c, Order(*flow, 1, 0, 0, 1000, 3)},      // another peer's zone
  };
  uint64_t errors = 0;
  for (const auto &[from, order] : wrong) {
    const size_t up = from->Count(Kind::kPeerUp);
    ASSERT_EQ(from->transport->Post({&order, 1}), 1u);
    ++errors;
    End &sender = *from;
    ASSERT_TRUE(Until([&] { return sender.Count(Kind::kPeerUp) == up + 1; })) << "down, and up again";
    EXPECT_EQ(b.transport->counters().protocol_errors.load(), errors);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kBadPeer) == errors; }));
    EXPECT_EQ(b.Of(Kind::kBadPeer).back().peer, Index(sender));
  }
  EXPECT_EQ(a.CountDone(SendResult::kReturned), 2u);
  EXPECT_EQ(c.CountDone(SendResult::kReturned), 1u);
  EXPECT_TRUE(ReadAll(flow->zone) == std::string(1000, '\0'));
}

}  // namespace
}  // namespace railsd::testing
