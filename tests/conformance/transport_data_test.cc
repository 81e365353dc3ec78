// Bytes, fences, events and queues.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/conformance/transport_suite.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;

TEST_P(TransportSuite, BytesOfAllSizesArriveRight) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  uint64_t total = 0, fences = 0;
  size_t orders = 0;
  for (const uint64_t size : {1, 2, 63, 64, 4095, 4096, 4097, 65536, 65537, 1000003, 12345678}) {
    SCOPED_TRACE(size);
    Exchange* exchange = OpenNew(b, a, size, 1 + random_() % 20, 1 + random_() % 30);
    orders += SendAll(a, *exchange, 1 << 20);
    total += size;
    ++fences;
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == fences && a.Count(Kind::kSendDone) == orders; }));
    ExpectArrived(b, *exchange);
    Close(b, *exchange);
  }
  Spin(50);
  EXPECT_EQ(a.CountDone(SendResult::kAcknowledged), orders);
  EXPECT_EQ(a.Count(Kind::kSendDone), orders);
  EXPECT_EQ(a.counters().tx_payload_bytes.load(), total);
  EXPECT_EQ(a.counters().tx_chunks.load(), orders);
  EXPECT_EQ(a.counters().tx_fences.load(), fences);
  EXPECT_EQ(a.counters().posted_bytes.load(), 0u);
  EXPECT_EQ(b.counters().rx_payload_bytes.load(), b.binds() ? 0 : total);
  EXPECT_EQ(b.counters().rx_fences.load(), fences);
  EXPECT_EQ(b.counters().protocol_errors.load(), 0u);
}

TEST_P(TransportSuite, ThousandsOfTinyRangesAtBothEnds) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 700001, 9000, 7000);
  SendAll(a, *exchange, 250000);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 3 && b.Count(Kind::kFence) == 1; }));
  ExpectArrived(b, *exchange);
}

TEST_P(TransportSuite, ManyTinyOrders) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 60000, 100, 1);
  const size_t orders = SendAll(a, *exchange, 7);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == orders && b.Count(Kind::kFence) == 1; }));
  ExpectArrived(b, *exchange);
  std::set<uint64_t> cookies;
  for (const RailEvent& event : a.Of(Kind::kSendDone)) {
    EXPECT_TRUE(cookies.insert(event.cookie).second);
    EXPECT_EQ(event.result, SendResult::kAcknowledged);
    EXPECT_EQ(event.job, JobTag(1));
    EXPECT_EQ(event.peer, Index(b));
  }
}

TEST_P(TransportSuite, PiecesInAnyOrderLandWhereTheyBelong) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 900000, 7, 11);
  std::vector<SendOrder> orders = Orders(*exchange, 40000);
  std::shuffle(orders.begin(), orders.end(), random_);
  for (SendOrder& order : orders) order.weight = 0;
  orders.back().weight = 200;
  PostAll(a, orders);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1 && a.Count(Kind::kSendDone) == orders.size(); }));
  ExpectArrived(b, *exchange);
  PostAll(a, {Order(*exchange, 0, 0, 0, kWholeWeight - 200)});
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 2; }));
  EXPECT_EQ(b.Of(Kind::kFence)[0].weight + b.Of(Kind::kFence)[1].weight, kWholeWeight);
}

TEST_P(TransportSuite, BothWaysAtOnce) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* there = OpenNew(b, a, 5000000, 3, 5);
  Exchange* back = OpenNew(a, b, 4000000, 7, 2);
  SendAll(a, *there, 300000);
  SendAll(b, *back, 300000);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1 && a.Count(Kind::kFence) == 1; }));
  ExpectArrived(b, *there);
  ExpectArrived(a, *back);
}

TEST_P(TransportSuite, ThreePeersAtOnce) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2), &c = AddMet(b, "c", 3);
  Meet(a, c);
  struct Way {
    End *from, *to;
    Exchange* exchange;
  };
  std::vector<Way> ways;
  for (End* from : {&a, &b, &c}) {
    for (End* to : {&a, &b, &c}) {
      if (from != to) ways.push_back({from, to, OpenNew(*to, *from, 2000000, 4, 6)});
    }
  }
  for (const Way& way : ways) SendAll(*way.from, *way.exchange, 500000);
  ASSERT_TRUE(Until([&] {
    return std::all_of(ends_.begin(), ends_.end(), [](const auto& end) {
      return end->Count(Kind::kFence) == 2 && end->Count(Kind::kSendDone) == 8;
    });
  }));
  for (const Way& way : ways) ExpectArrived(*way.to, *way.exchange);
}

TEST_P(TransportSuite, AFenceComesAfterEverythingOfItsExchange) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  std::vector<Exchange*> exchanges(ZoneRoom(b, 12));
  std::map<ZoneRef, Exchange*> by_zone;
  std::vector<SendOrder> orders;
  for (Exchange*& exchange : exchanges) {
    exchange = OpenNew(b, a, 1 + random_() % 400000, 1 + random_() % 5, 1 + random_() % 5);
    by_zone[exchange->zone->ref] = exchange;
    for (SendOrder order : Orders(*exchange, 50000)) {
      order.weight = 0;
      orders.push_back(order);
    }
  }
  std::shuffle(orders.begin(), orders.end(), random_);
  const size_t chunks = orders.size();
  for (Exchange* exchange : exchanges) orders.push_back(Order(*exchange, exchange->bytes.size(), 0, 0, kWholeWeight));
  PostAll(a, orders);
  size_t seen = 0;
  ASSERT_TRUE(Until([&] {
    const std::vector<RailEvent> fences = b.Of(Kind::kFence);
    for (; seen < fences.size(); ++seen) ExpectArrived(b, *by_zone.at(fences[seen].zone));
    return seen == exchanges.size();
  }));
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == orders.size(); }));
  for (const Exchange* exchange : exchanges) ExpectArrived(b, *exchange);
  EXPECT_EQ(a.counters().tx_fences.load(), exchanges.size());
  EXPECT_EQ(b.counters().rx_fences.load(), exchanges.size());
  EXPECT_EQ(a.counters().tx_chunks.load(), chunks) << "a fence is no chunk";
}

// With bytes and alone; of the same exchange again once the fence before is acknowledged.
TEST_P(TransportSuite, FencesCarryTheirWeightAndRound) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* first = OpenNew(b, a, 1000);
  Close(b, *first);  // slots and generations differ
  Exchange* exchange = OpenNew(b, a, 70000, 3, 4);
  const uint32_t last_round = std::min(b.transport->Info().max_rounds, 70000u) - 1;
  const std::vector<SendOrder> orders{
      Order(*exchange, 0, 40000, 1, 64, 0),         Order(*exchange, 40000, 0, 2, 1, 0),
      Order(*exchange, 40000, 29999, 3, 255, 5),    Order(*exchange, 69999, 0, 4, 255, last_round),
      Order(*exchange, 69999, 1, 5, 7, last_round),
  };
  for (size_t i = 0; i < orders.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_EQ(a.Post({orders[i]}), 1u);
    ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == i + 1 && a.Count(Kind::kSendDone) == i + 1; }));
    const RailEvent fence = b.Of(Kind::kFence).back(), done = a.Of(Kind::kSendDone).back();
    EXPECT_EQ(fence.peer, Index(a));
    EXPECT_EQ(fence.zone, exchange->zone->ref);
    EXPECT_EQ(fence.weight, orders[i].weight);
    EXPECT_EQ(fence.round, orders[i].round);
    EXPECT_EQ(done.result, SendResult::kAcknowledged);
    EXPECT_EQ(done.cookie, orders[i].cookie);
    EXPECT_EQ(done.length_bytes, orders[i].length_bytes);
    EXPECT_EQ(done.weight, orders[i].weight);
    EXPECT_EQ(done.round, orders[i].round);
    const uint64_t sent = orders[i].offset_bytes + orders[i].length_bytes;
    EXPECT_TRUE(ReadAll(exchange->received()).substr(0, sent) == exchange->bytes.substr(0, sent));
  }
  EXPECT_EQ(a.counters().tx_chunks.load(), 3u);
  EXPECT_EQ(a.counters().tx_fences.load(), 5u);
}

TEST_P(TransportSuite, PostTakesWhatFits) {
  EndOptions small;
  small.max_posted_orders = 10;
  End &a = Add("a", 1, small), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenNew(b, a, 1600);
  b.polled = false;
  const std::vector<SendOrder> orders = Orders(*exchange, 100);
  const std::vector<SendOrder> rest(orders.begin() + 10, orders.end());
  EXPECT_EQ(a.Post(orders), 10u);
  EXPECT_EQ(a.Post(rest), 0u);
  EXPECT_EQ(a.counters().posted_bytes.load(), 1000u);
  b.polled = true;
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 10; }));
  EXPECT_EQ(a.Post(rest), 6u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 16 && b.Count(Kind::kFence) == 1; }));
  ExpectArrived(b, *exchange);
}

TEST_P(TransportSuite, OneEventAtATimeLosesNone) {
  EndOptions options;
  options.frame_bytes = 1000;
  End &a = Add("a", 1, options), &b = AddMet(a, "b", 2, options);
  a.batch = b.batch = 1;
  Exchange* exchange = OpenNew(b, a, 200000, 3, 3);
  SendAll(a, *exchange, 2000);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 1 && a.Count(Kind::kSendDone) == 100; }));
  ExpectArrived(b, *exchange);
}

TEST_P(FramedSuite, ReceivingPausesWhileEventsAreNotTaken) {
  EndOptions options;
  options.max_receive_events = 8;
  End &a = Add("a", 1, options), &b = AddMet(a, "b", 2, options);
  std::vector<Exchange*> exchanges(100);
  for (Exchange*& exchange : exchanges) {
    exchange = OpenNew(b, a, 100);
    SendAll(a, *exchange, 100);
  }
  b.batch = 1;
  for (int i = 0; i < 200 && b.events.size() < 30; ++i) {
    PollAll();
    // At most what was taken, what the limit lets wait, and no more.
    ASSERT_LE(b.counters().rx_fences.load(), b.Count(Kind::kFence) + 8);
  }
  b.batch = 64;
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == 100 && a.Count(Kind::kSendDone) == 100; }));
  for (const Exchange* exchange : exchanges) ExpectArrived(b, *exchange);
}

TEST_P(TransportSuite, WakeEndsAWaitThatHasNotBegun) {
  End& a = Add("a", 1);
  a.transport->Wake();
  Poll(a, absl::Hours(1));
  EXPECT_TRUE(a.events.empty());
  a.transport->Wake();
  EXPECT_EQ(a.transport->Poll(absl::Hours(1), {}), 0u);
}

// A fence behind it would say that its bytes have arrived.
TEST_P(FramedSuite, ABadPageOfTheSenderFailsThatOrderAndFencesBehindIt) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  EndOptions options;
  options.frame_bytes = 16 * page;
  End &a = Add("a", 1, options), &b = AddMet(a, "b", 2, options);
  auto segment = MakeSegment(64 * page);
  Exchange* exchange = MakeExchange(b, 64 * page);
  exchange->stream.memory = MemoryRanges();
  testing::Append(&exchange->stream.memory, segment, 0, 64 * page);
  WriteAll(exchange->stream.memory, exchange->bytes);
  ASSERT_EQ(::mprotect(segment->base() + 37 * page, page, PROT_NONE), 0);
  Open(b, a, *exchange);
  std::vector<SendOrder> orders = Orders(*exchange, 16 * page);
  orders[2].weight = 9;  // goes with its bytes
  PostAll(a, orders);
  Exchange* other = OpenNew(b, a, 100000);
  PostAll(a, {Order(*exchange, 0, page, 4, 1), Order(*exchange, 0, page, 5), Order(*other, 0, 100000, 6, 255)});
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 7 && b.Count(Kind::kFence) == 1; }));
  const std::set<uint64_t> failed{2, 3, 4};  // a bad page, and fences behind it
  for (const RailEvent& event : a.Of(Kind::kSendDone)) {
    EXPECT_EQ(event.result, failed.contains(event.cookie) ? SendResult::kMemoryFault : SendResult::kAcknowledged)
        << event.cookie;
  }
  Spin(20);
  ASSERT_EQ(b.Count(Kind::kFence), 1u);
  ExpectArrived(b, *other);
  EXPECT_TRUE(ReadAll(exchange->received()).substr(0, 32 * page) == exchange->bytes.substr(0, 32 * page));
  EXPECT_EQ(b.counters().protocol_errors.load(), 0u);
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
}

TEST_P(FramedSuite, ABadPageOfTheReceiverFailsThatZoneOnly) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  EndOptions options;
  options.frame_bytes = 16 * page;
  End &a = Add("a", 1, options), &b = AddMet(a, "b", 2, options);
  Exchange* bad = MakeExchange(b, 16 * page);
  auto segment = MakeSegment(16 * page);
  bad->zone->memory = MemoryRanges();
  testing::Append(&bad->zone->memory, segment, 0, 16 * page);
  ASSERT_EQ(::mprotect(segment->base() + 5 * page, page, PROT_NONE), 0);
  Open(b, a, *bad);
  Exchange* good = OpenNew(b, a, 100000);
  PostAll(a, {Order(*bad, 0, 16 * page, 0, 100), Order(*bad, 0, 0, 0, 155), Order(*good, 0, 100000, 1, 255)});
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 3 && b.Count(Kind::kFence) == 1; }));
  for (const RailEvent& event : a.Of(Kind::kSendDone)) {
    EXPECT_EQ(event.result, event.cookie == 0 ? SendResult::kZoneClosed : SendResult::kAcknowledged) << event.cookie;
  }
  ASSERT_EQ(b.Count(Kind::kReceiveFault), 1u);
  EXPECT_EQ(b.Of(Kind::kReceiveFault)[0].zone, bad->zone->ref);
  EXPECT_EQ(b.Of(Kind::kReceiveFault)[0].peer, Index(a));
  EXPECT_EQ(b.Of(Kind::kReceiveFault)[0].error_number, 0) << "an errno here says that a flush failed";
  ExpectArrived(b, *good);
}

}  // namespace
}  // namespace railsd::testing
