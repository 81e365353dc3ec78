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

// Where an event of this kind first stands; the number of events if there is none.
size_t FirstOf(const std::vector<RailEvent> &events, Kind kind) {
  return static_cast<size_t>(
      std::find_if(events.begin(), events.end(), [&](const RailEvent &e) { return e.kind == kind; }) - events.begin());
}

TEST_P(FramedSuite, FramesForZonesThatAreNotOpenAreDrained) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange *kept = OpenNew(b, a, 300000);
  const ZoneRef good = kept->stream.zone;
  Exchange *closed = OpenNew(b, a, 1000);
  Close(b, *closed);
  const std::vector<ZoneRef> wrong{
      closed->stream.zone,               // over
      {0, 0},                            // none
      {60000, 1},                        // never used
      {good.slot, good.generation + 1},  // later
      {good.slot, good.generation + ZoneRef::kShortGenerations},
      {good.slot, 0},
  };
  std::vector<Exchange *> lost;
  std::vector<SendOrder> orders;
  for (const ZoneRef zone : wrong) {
    lost.push_back(MakeExchange(b, 300000));
    Register(a, lost.back()->stream.memory);
    lost.back()->stream.zone = zone;
    orders.push_back(Order(*lost.back(), 0, 300000, 1));
    orders.push_back(Order(*lost.back(), 0, 300000, 1, 255));
    orders.push_back(Order(*lost.back(), 0, 0, 1, 255));
  }
  orders.push_back(Order(*kept, 0, 300000, 2, 255));
  PostAll(a, orders);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == orders.size() && b.Count(Kind::kFence) == 1; }));
  for (const RailEvent &event : a.Of(Kind::kSendDone)) {
    EXPECT_EQ(event.result, event.cookie == 2 ? SendResult::kAcknowledged : SendResult::kZoneClosed) << event.cookie;
  }
  Spin(20);
  EXPECT_EQ(b.Count(Kind::kFence), 1u);
  ExpectArrived(b, *kept);
  // A sender that hears of it in the middle of an order leaves the rest out.
  EXPECT_GT(b.counters().rx_discarded_bytes.load(), 0u);
  EXPECT_LE(b.counters().rx_discarded_bytes.load(), 2 * 300000 * wrong.size());
  EXPECT_EQ(b.counters().protocol_errors.load(), 0u);
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
}

// The peer has not said that it has stopped, and it has not.
TEST_P(TransportSuite, NothingIsWrittenAfterAZoneIsClosedUnderAWriter) {
  End &a = Add("a", 1, Large()), &b = AddMet(a, "b", 2, Large());
  Exchange *exchange = OpenNew(b, a, 16 << 20);
  const size_t orders = SendAll(a, *exchange, 1 << 20);
  ASSERT_TRUE(Until([&] { return HasBegun(exchange->received()); }));
  Close(b, *exchange, /*writers_stopped=*/false);
  WriteAll(exchange->received(), std::string(16 << 20, 'x'));  // the trainer has its buffer again
  const uint64_t landed = b.binds() ? 0 : exchange->zone->landed[0].bytes();
  const size_t fences = b.Count(Kind::kFence);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == orders; }));
  Spin(50);
  const std::string found = ReadAll(exchange->received());
  EXPECT_EQ(std::count(found.begin(), found.end(), 'x'), found.size())
      << "bytes from " << found.find_first_not_of('x') << " to " << found.find_last_not_of('x');
  EXPECT_EQ(b.Count(Kind::kFence), fences) << "nothing is reported after the close";
  if (b.binds()) {
    EXPECT_EQ(b.Count(Kind::kPeerDown), 1u) << "a key that is gone does not stop the packet that is being written";
    EXPECT_EQ(a.CountDone(SendResult::kRailFailed) + a.CountDone(SendResult::kNotSent) +
                  a.CountDone(SendResult::kAcknowledged),
              orders);
  } else {
    EXPECT_EQ(exchange->zone->landed[0].bytes(), landed);
    EXPECT_EQ(a.CountDone(SendResult::kZoneClosed) + a.CountDone(SendResult::kAcknowledged), orders);
    EXPECT_EQ(a.Count(Kind::kPeerDown), 0u) << "the connection is as good as before";
  }
  // And the rail works again.
  ASSERT_TRUE(Until([&] {
    return a.Count(Kind::kPeerUp) == a.Count(Kind::kPeerDown) + 1 &&
           b.Count(Kind::kPeerUp) == b.Count(Kind::kPeerDown) + 1;
  }));
  Exchange *next = OpenNew(b, a, 500000);
  Carry(a, b, *next, 500000);
}

TEST_P(TransportSuite, ManyZonesOpenAtOnceAndInAnyOrder) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  std::vector<Exchange *> exchanges(ZoneRoom(b, 40));
  for (Exchange *&exchange : exchanges) exchange = OpenNew(b, a, 5000, 2, 3);
  for (size_t i = exchanges.size(); i > 0; --i) SendAll(a, *exchanges[i - 1], 2000);
  ASSERT_TRUE(Until(
      [&] { return b.Count(Kind::kFence) == exchanges.size() && a.Count(Kind::kSendDone) == 3 * exchanges.size(); }));
  for (Exchange *exchange : exchanges) {
    ExpectArrived(b, *exchange);
    Close(b, *exchange);
  }
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u) << "closing what nobody writes to costs nothing";
}

TEST_P(TransportSuite, StoppedOrdersAreNeverReceived) {
  End &a = Add("a", 1, Large()), &b = AddMet(a, "b", 2, Large());
  Exchange *stopped = OpenNew(b, a, 16 << 20, 1, 1, /*job=*/1);
  Exchange *other = OpenNew(b, a, 1 << 20, 1, 1, /*job=*/2);
  const size_t orders = SendAll(a, *stopped, 8 << 20);
  SendAll(a, *other, 1 << 20);
  ASSERT_TRUE(Until([&] { return HasBegun(stopped->received()); }));
  a.transport->StopSends(JobTag(1));
  const auto done_of = [&](JobTag job) {
    std::vector<RailEvent> done = a.Of(Kind::kSendDone);
    std::erase_if(done, [&](const RailEvent &event) { return event.job != job; });
    return done;
  };
  ASSERT_TRUE(Until([&] { return done_of(JobTag(1)).size() == orders; }));
  for (const RailEvent &done : done_of(JobTag(1))) {
    // A device that writes by itself may have been faster.
    const bool was_done = a.binds() && done.result == SendResult::kAcknowledged;
    EXPECT_TRUE(was_done || done.result == SendResult::kStopped);
  }
  // The memory is the trainer's again, even to be taken away.
  stopped->stream.memory = MemoryRanges();
  ASSERT_TRUE(Until([&] { return done_of(JobTag(2)).size() == 1 && !b.FencesOf(other->zone->ref).empty(); }));
  Spin(20);
  EXPECT_EQ(a.Count(Kind::kSendDone), orders + 1);
  EXPECT_EQ(done_of(JobTag(2))[0].result, SendResult::kAcknowledged);
  EXPECT_TRUE(a.binds() || b.FencesOf(stopped->zone->ref).empty());
  ExpectArrived(b, *other);
  EXPECT_EQ(a.counters().posted_bytes.load(), 0u);
  EXPECT_EQ(b.counters().protocol_errors.load(), 0u);
}

TEST_P(TransportSuite, OrdersForAPeerThatIsNotUpComeBack) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Exchange *exchange = MakeExchange(b, 100);
  const SendOrder order = Order(*exchange, 0, 100, 42, 17, 3);
  ASSERT_EQ(a.Post({order}), 1u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 1; }));
  EXPECT_EQ(a.events[0].result, SendResult::kNotSent);
  EXPECT_EQ(a.events[0].cookie, 42u);
  EXPECT_EQ(a.events[0].length_bytes, 100u);
  EXPECT_EQ(a.events[0].weight, 17u);
  EXPECT_EQ(a.events[0].round, 3u);
}

TEST_P(TransportSuite, OrdersForAnotherConnectionAreNotSent) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange *exchange = OpenNew(b, a, 1000);
  std::vector<SendOrder> orders(3, Order(*exchange, 0, 1000, 1, 255));
  const uint64_t present = a.connections[Index(b)];
  orders[0].connection = 0;
  orders[1].connection = present - 1;
  orders[2].connection = present + 1;
  ASSERT_EQ(a.transport->Post(orders), 3u);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kNotSent) == 3; }));
  Spin(20);
  EXPECT_EQ(b.Count(Kind::kFence), 0u);
  EXPECT_TRUE(ReadAll(exchange->received()) == std::string(1000, '\0'));
  EXPECT_EQ(a.counters().posted_bytes.load(), 0u);
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
  Carry(a, b, *exchange, 1000);
}

// Every order ends once and before the connection's end is told; what is told not to be sent has not landed and never
// does; what did not arrive goes over the next connection.
TEST_P(TransportSuite, ACutAtAnyMomentLosesNothing) {
  constexpr uint64_t kBytes = 2 << 20, kChunk = 200000;
  End &a = Add("a", 1, Large()), &b = AddMet(a, "b", 2, Large());
  for (uint32_t cut = 0; cut < 16; ++cut) {
    SCOPED_TRACE(cut);
    Exchange *exchange = OpenNew(b, a, kBytes, 3, 4);
    std::vector<SendOrder> orders = Orders(*exchange, kChunk);
    a.events.clear();
    b.events.clear();
    PostAll(a, orders);
    Spin(static_cast<int>(random_() % 24));
    Cut(b, a);
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1; }));
    const auto end = a.events.begin() + static_cast<ptrdiff_t>(FirstOf(a.events, Kind::kPeerDown));
    Spin(10);
    std::map<uint64_t, SendResult> results;
    for (const RailEvent &done : a.Of(Kind::kSendDone)) {
      EXPECT_TRUE(results.emplace(done.cookie, done.result).second) << "order " << done.cookie << " ended twice";
    }
    ASSERT_EQ(results.size(), orders.size());
    EXPECT_EQ(std::count_if(a.events.begin(), end, [](const RailEvent &e) { return e.kind == Kind::kSendDone; }),
              orders.size());
    EXPECT_EQ(a.counters().posted_bytes.load(), 0u);
    const std::string received = ReadAll(exchange->received());
    std::vector<SendOrder> again;
    for (const SendOrder &order : orders) {
      const std::string part = received.substr(order.offset_bytes, order.length_bytes);
      const SendResult result = results.at(order.cookie);
      if (result == SendResult::kAcknowledged) {
        EXPECT_TRUE(part == exchange->bytes.substr(order.offset_bytes, order.length_bytes)) << order.cookie;
        continue;
      }
      EXPECT_TRUE(result == SendResult::kNotSent || result == SendResult::kRailFailed) << static_cast<int>(result);
      const bool touched = part.find_first_not_of('\0') != std::string::npos;
      EXPECT_FALSE(result == SendResult::kNotSent && touched) << order.cookie;
      again.push_back(order);
    }
    EXPECT_TRUE(b.Count(Kind::kFence) == 1 || results.at(orders.size() - 1) != SendResult::kAcknowledged);

    Meet(a, b);
    if (b.binds()) Bind(b, *exchange);
    for (SendOrder &order : again) order.weight = 0;
    again.push_back(Order(*exchange, kBytes, 0, 99, kWholeWeight, 1));
    a.events.clear();
    b.events.clear();
    PostAll(a, again);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1 && a.Count(Kind::kSendDone) == again.size(); }));
    EXPECT_EQ(a.CountDone(SendResult::kAcknowledged), again.size());
    EXPECT_EQ(b.Of(Kind::kFence)[0].round, 1u);
    EXPECT_TRUE(ReadAll(exchange->received()) == exchange->bytes);
    EXPECT_TRUE(b.binds() || exchange->zone->landed[0].bytes() >= kBytes);
    Close(b, *exchange);
  }
}

TEST_P(TransportSuite, FencesAreToldBeforeTheEndOfTheirConnection) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  std::vector<Exchange *> exchanges(ZoneRoom(b, 16));
  for (Exchange *&exchange : exchanges) exchange = OpenNew(b, a, 1000);
  b.batch = 1;
  for (Exchange *exchange : exchanges) SendAll(a, *exchange, 1000);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kAcknowledged) == exchanges.size(); }));
  Cut(a, b);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  EXPECT_EQ(b.Count(Kind::kFence), exchanges.size());
  for (Exchange *exchange : exchanges) ExpectArrived(b, *exchange);
}

TEST_P(TransportSuite, ConnectionsAreNumbered) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  for (size_t i = 1; i <= 3; ++i) {
    Cut(b, a);
    ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == i; }));
    Meet(a, b);
  }
  const std::vector<RailEvent> ups = a.Of(Kind::kPeerUp), downs = a.Of(Kind::kPeerDown), at_b = b.Of(Kind::kPeerUp);
  ASSERT_EQ(ups.size(), 4u);
  ASSERT_EQ(at_b.size(), 4u);
  ASSERT_EQ(downs.size(), 3u);
  for (size_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    EXPECT_GT(ups[i].connection, i == 0 ? 0 : ups[i - 1].connection);
    EXPECT_GT(at_b[i].connection, i == 0 ? 0 : at_b[i - 1].connection);
    EXPECT_TRUE(i == 3 || downs[i].connection == ups[i].connection);
    EXPECT_TRUE(!a.binds() || at_b[i].connection == ups[i].connection) << "both ends number alike";
  }
  Exchange *exchange = OpenNew(b, a, 1000);
  EXPECT_TRUE(!b.binds() || b.Of(Kind::kZoneOpened).back().connection == at_b.back().connection);
  Carry(a, b, *exchange, 1000);
}

TEST_P(TransportSuite, APeerThatDiesFailsItsOrdersAndMayComeBack) {
  End &a = Add("a", 1, Large()), &b = AddMet(a, "b", 2, Large());
  Exchange *exchange = OpenNew(b, a, 24 << 20);
  size_t posted = SendAll(a, *exchange, 8 << 20);
  ASSERT_TRUE(Until([&] { return HasBegun(exchange->received()); }));
  b.transport.reset();
  const SendOrder late = Order(*exchange, 0, 8 << 20, 9);
  ASSERT_TRUE(Until([&] {
    if (a.Count(Kind::kPeerDown) == 1) return true;
    // A device that writes by itself may have done them all before; a silent peer is known by what it does not do.
    if (posted == 3 && a.Count(Kind::kSendDone) == 3) posted += a.Post({late});
    return false;
  }));
  EXPECT_NE(a.Of(Kind::kPeerDown)[0].error_number, 0);
  EXPECT_EQ(a.Of(Kind::kPeerDown)[0].peer, Index(b));
  EXPECT_EQ(a.events.back().kind, Kind::kPeerDown) << "the orders come first";
  EXPECT_EQ(a.Count(Kind::kSendDone), posted);
  EXPECT_LT(a.CountDone(SendResult::kAcknowledged), posted);
  EXPECT_EQ(a.counters().posted_bytes.load(), 0u);

  // Another daemon of that node, with another boot id and address.
  End &again = Add("b", 3, Large());
  Know(again, a);
  a.peers[Index(b)] = {"b", BootId(3)};
  a.transport->SetPeer({Index(b), "b", BootId(3), again.transport->Info().address, {}, /*link=*/3});
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == 2; }));
  EXPECT_GT(a.Of(Kind::kPeerUp)[1].connection, a.Of(Kind::kPeerUp)[0].connection);
  EXPECT_EQ(a.Of(Kind::kPeerUp)[1].cookie, 3u);
  ASSERT_TRUE(Until([&] { return again.Count(Kind::kPeerUp) == 1; }));
  Exchange *next = OpenNew(again, a, 24 << 20);
  next->stream.peer = Index(b);
  const size_t before = a.CountDone(SendResult::kAcknowledged);
  SendAll(a, *next, 8 << 20);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kAcknowledged) == before + 3; }));
  ASSERT_TRUE(Until([&] { return again.Count(Kind::kFence) == 1; }));
  ExpectArrived(again, *next);
}

// Their ends dial: those whose ends are told over the link where to connect do not meet at all.
TEST_P(FramedSuite, AnUnknownOrMistakenPeerIsRefused) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Know(a, b);  // b does not know a
  ASSERT_TRUE(Until([&] { return b.counters().refused_connections.load() > 0; }));
  EXPECT_EQ(a.Count(Kind::kPeerUp), 0u);
  KnowAs(b, a, "a", /*boot=*/77);  // knows an older a
  const uint64_t refused = b.counters().refused_connections.load();
  ASSERT_TRUE(Until([&] { return b.counters().refused_connections.load() > refused; }));
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
  ASSERT_TRUE(Until(
      [&] { return a.counters().refused_connections.load() > 0 && b.counters().refused_connections.load() > 0; }));
  EXPECT_EQ(a.Count(Kind::kPeerUp), 0u);
}

TEST_P(TransportSuite, ANewBootIdReplacesThePeer) {
  End &a = Add("a", 1, Large()), &b = AddMet(a, "b", 2, Large());
  Exchange *exchange = OpenNew(b, a, 8 << 20);
  SendAll(a, *exchange, 8 << 20);
  Poll(a);
  KnowAs(a, b, "b", /*boot=*/99);  // the daemon there is still the old one
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1; }));
  EXPECT_EQ(a.Of(Kind::kPeerDown)[0].cookie, 2u);
  EXPECT_EQ(a.Count(Kind::kSendDone), 1u);
  EXPECT_LT(FirstOf(a.events, Kind::kSendDone), FirstOf(a.events, Kind::kPeerDown));
  EXPECT_TRUE(a.binds() || a.CountDone(SendResult::kAcknowledged) == 0);
  // Over the link nothing for boot 99 reaches boot 2.
  ASSERT_TRUE(Until([&] { return a.binds() || b.counters().refused_connections.load() > 0; }));
  EXPECT_EQ(a.Count(Kind::kPeerUp), 1u);
}

TEST_P(TransportSuite, RemovePeerStopsItsOrders) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2), &c = AddMet(a, "c", 3);
  Exchange *to_b = OpenNew(b, a, 100000);
  Exchange *to_c = OpenNew(c, a, 100000);
  b.polled = false;
  SendAll(a, *to_b, 100000);
  SendAll(a, *to_c, 100000);
  a.transport->RemovePeer(Index(b));
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 2; }));
  for (const RailEvent &done : a.Of(Kind::kSendDone)) {
    const bool was_done = a.binds() && done.result == SendResult::kAcknowledged;
    EXPECT_TRUE(was_done || done.result == (done.peer == Index(b) ? SendResult::kStopped : SendResult::kAcknowledged));
  }
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
  b.polled = true;
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  Meet(a, b);
}

TEST_P(FramedSuite, FramesOutsideTheZoneAreAProtocolError) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2), &c = AddMet(b, "c", 3);
  Exchange *exchange = OpenNew(b, a, 1000);
  Exchange *longer = MakeExchange(b, 2000);
  longer->stream.zone = exchange->stream.zone;
  const std::vector<std::pair<End *, SendOrder>> wrong{
      {&a, Order(*longer, 500, 1000, 1)},       // past the zone's end
      {&a, Order(*longer, 1000, 1, 2)},         // behind it
      {&c, Order(*exchange, 0, 1000, 3)},       // another peer's zone
      {&c, Order(*exchange, 0, 0, 4, 255)},     // its fence
      {&c, Order(*exchange, 0, 1000, 5, 255)},  // both
  };
  uint64_t errors = 0;
  for (const auto &[from, order] : wrong) {
    End &sender = *from;
    const size_t up = sender.Count(Kind::kPeerUp);
    ASSERT_EQ(sender.Post({order}), 1u);
    ++errors;
    ASSERT_TRUE(Until([&] { return sender.Count(Kind::kPeerUp) == up + 1; })) << "down, and up again";
    EXPECT_EQ(b.counters().protocol_errors.load(), errors);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kBadPeer) == errors; }));
    EXPECT_EQ(b.Of(Kind::kBadPeer).back().peer, Index(sender));
  }
  EXPECT_EQ(a.CountDone(SendResult::kRailFailed), 2u);
  EXPECT_EQ(c.CountDone(SendResult::kRailFailed), 3u);
  EXPECT_EQ(b.Count(Kind::kFence), 0u);
  EXPECT_TRUE(ReadAll(exchange->received()) == std::string(1000, '\0'));
  Carry(a, b, *exchange, 1000);
}

}  // namespace
}  // namespace railsd::testing
