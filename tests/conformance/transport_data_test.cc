// Bytes, events and queues.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "tests/conformance/transport_suite.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;

TEST_P(TransportSuite, BytesOfAllSizesArriveRight) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  std::vector<std::unique_ptr<Flow>> flows;
  std::vector<Flow*> pointers;
  for (const uint64_t size : {1, 2, 63, 64, 4095, 4096, 4097, 65536, 65537, 1000003, 12345678}) {
    flows.push_back(MakeFlow(b, size, 1 + random_() % 20, 1 + random_() % 30));
    pointers.push_back(flows.back().get());
  }
  Open(b, a, 7, pointers);
  for (uint32_t i = 0; i < flows.size(); ++i) SendAll(a, *flows[i], 7, i, 1 << 20);
  uint64_t total = 0;
  size_t orders = 0;
  for (const auto& flow : flows) total += flow->bytes.size();
  for (const auto& flow : flows) orders += (flow->bytes.size() + (1 << 20) - 1) >> 20;
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() >= total && a.Count(Kind::kSendDone) >= orders; }));
  Spin(50);
  EXPECT_EQ(a.CountDone(SendResult::kAcknowledged), orders);
  EXPECT_EQ(a.Count(Kind::kSendDone), orders);
  if (!b.remote()) {
    size_t last = 0;
    for (const RailEvent& event : b.Of(Kind::kReceived)) last += event.last;
    EXPECT_EQ(last, 1u) << "one frame completes the set";
    EXPECT_TRUE(b.Of(Kind::kReceived).back().last);
  }
  for (uint32_t i = 0; i < flows.size(); ++i) {
    EXPECT_TRUE(ReadAll(flows[i]->zone) == flows[i]->bytes) << "flow " << i;
    ExpectCoveredOnce(b, 7, i, flows[i]->bytes.size());
  }
  EXPECT_EQ(a.transport->counters().tx_payload_bytes.load(), total);
  EXPECT_EQ(a.transport->counters().tx_chunks.load(), orders);
  EXPECT_EQ(a.transport->counters().posted_bytes.load(), 0u);
  EXPECT_EQ(b.transport->counters().rx_payload_bytes.load(), b.remote() ? 0 : total);
  EXPECT_EQ(b.transport->counters().rx_fences.load(), b.remote() ? flows.size() : 0);
  EXPECT_EQ(b.transport->counters().protocol_errors.load(), 0u);
}

TEST_P(TransportSuite, ThousandsOfTinyRangesAtBothEnds) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 700001, 9000, 7000);
  Open(b, a, 1, {flow.get()});
  SendAll(a, *flow, 1, 0, 250000);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 3; }));
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 700001; }));
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
  ExpectCoveredOnce(b, 1, 0, 700001);
}

TEST_P(TransportSuite, ManyTinyOrders) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto flow = MakeFlow(b, 60000, 100, 1);
  Open(b, a, 1, {flow.get()});
  SendAll(a, *flow, 1, 0, 7);
  const size_t orders = (60000 + 6) / 7;
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == orders && b.ReceivedBytes() == 60000; }));
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
  ExpectCoveredOnce(b, 1, 0, 60000);
  std::set<uint64_t> cookies;
  for (const RailEvent& event : a.Of(Kind::kSendDone)) {
    EXPECT_TRUE(cookies.insert(event.cookie).second);
    EXPECT_EQ(event.result, SendResult::kAcknowledged);
    EXPECT_EQ(event.job, JobTag(1));
  }
}

TEST_P(TransportSuite, BothWaysAtOnce) {
  End &a = Add("a", 1), &b = Add("b", 2);
  Meet(a, b);
  auto there = MakeFlow(b, 5000000, 3, 5);
  auto back = MakeFlow(a, 4000000, 7, 2);
  Open(b, a, 1, {there.get()});
  Open(a, b, 1, {back.get()});
  SendAll(a, *there, 1, 0, 300000);
  SendAll(b, *back, 1, 0, 300000);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 5000000 && a.ReceivedBytes() == 4000000; }));
  EXPECT_TRUE(ReadAll(there->zone) == there->bytes);
  EXPECT_TRUE(ReadAll(back->zone) == back->bytes);
}

TEST_P(TransportSuite, ThreePeersAtOnce) {
  End &a = Add("a", 1), &b = Add("b", 2), &c = Add("c", 3);
  Meet(a, b);
  Meet(b, c);
  Meet(a, c);
  std::vector<End*> ends{&a, &b, &c};
  std::vector<std::unique_ptr<Flow>> flows;
  for (End* from : ends) {
    for (End* to : ends) {
      if (from == to) continue;
      flows.push_back(MakeFlow(*to, 2000000, 4, 6));
      Open(*to, *from, static_cast<uint32_t>(from->options.boot.value()), {flows.back().get()});
    }
  }
  size_t i = 0;
  for (End* from : ends) {
    for (End* to : ends) {
      if (from != to) SendAll(*from, *flows[i++], static_cast<uint32_t>(from->options.boot.value()), 0, 500000);
    }
  }
  ASSERT_TRUE(Until([&] {
    return std::all_of(ends.begin(), ends.end(),
                       [](End* end) { return end->ReceivedBytes() == 4000000 && end->Count(Kind::kSendDone) == 8; });
  }));
  for (const auto& flow : flows) EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
}

TEST_P(TransportSuite, PostTakesWhatFits) {
  EndOptions small;
  small.max_posted_orders = 10;
  End &a = Add("a", 1, small), &b = Add("b", 2);
  Meet(a, b);
  b.polled = false;
  auto flow = MakeFlow(b, 1600);
  Open(b, a, 1, {flow.get()});
  std::vector<SendOrder> orders;
  for (uint64_t i = 0; i < 16; ++i) orders.push_back(Order(*flow, 1, 0, i * 100, 100, i));
  EXPECT_EQ(a.transport->Post(orders), 10u);
  EXPECT_EQ(a.transport->Post({&orders[10], 6}), 0u);
  EXPECT_EQ(a.transport->counters().posted_bytes.load(), 1000u);
  b.polled = true;
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 10; }));
  EXPECT_EQ(a.transport->Post({&orders[10], 6}), 6u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 16; }));
  Fence(a, *flow, 1, 0);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 1600; }));
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
}

TEST_P(TransportSuite, OneEventAtATimeLosesNone) {
  EndOptions options;
  options.frame_bytes = 1000;
  End &a = Add("a", 1, options), &b = Add("b", 2, options);
  Meet(a, b);
  a.batch = b.batch = 1;
  auto flow = MakeFlow(b, 200000, 3, 3);
  Open(b, a, 1, {flow.get()});
  SendAll(a, *flow, 1, 0, 2000);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 200000 && a.Count(Kind::kSendDone) == 100; }));
  ExpectCoveredOnce(b, 1, 0, 200000);
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
}

TEST_P(FramedSuite, ReceivingPausesWhileEventsAreNotTaken) {
  EndOptions options;
  options.frame_bytes = 100;
  options.max_receive_events = 8;
  End &a = Add("a", 1, options), &b = Add("b", 2, options);
  Meet(a, b);
  auto flow = MakeFlow(b, 10000);
  Open(b, a, 1, {flow.get()});
  SendAll(a, *flow, 1, 0, 100);
  b.batch = 1;
  for (int i = 0; i < 200 && b.events.size() < 30; ++i) {
    PollAll();
    // At most what was taken, what the limit lets wait, and no more.
    ASSERT_LE(b.transport->counters().rx_chunks.load(), b.Count(Kind::kReceived) + 8);
  }
  b.batch = 64;
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 10000 && a.Count(Kind::kSendDone) == 100; }));
  EXPECT_TRUE(ReadAll(flow->zone) == flow->bytes);
}

TEST_P(TransportSuite, WakeEndsAWaitThatHasNotBegun) {
  End& a = Add("a", 1);
  a.transport->Wake();
  Poll(a, absl::Hours(1));
  EXPECT_TRUE(a.events.empty());
  a.transport->Wake();
  EXPECT_EQ(a.transport->Poll(absl::Hours(1), {}), 0u);
}

TEST_P(FramedSuite, ABadPageOfTheSenderFailsThatOrderOnly) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  EndOptions options;
  options.frame_bytes = 16 * page;
  End &a = Add("a", 1, options), &b = Add("b", 2, options);
  Meet(a, b);
  auto segment = MakeSegment(64 * page);
  auto flow = MakeFlow(b, 64 * page);
  flow->send.memory = MemoryRanges();
  flow->send.memory.Append(segment, 0, 64 * page);
  WriteAll(flow->send.memory, flow->bytes);
  ASSERT_EQ(::mprotect(segment->base() + 37 * page, page, PROT_NONE), 0);
  Open(b, a, 1, {flow.get()});
  std::vector<SendOrder> orders;
  for (uint64_t i = 0; i < 4; ++i) orders.push_back(Order(*flow, 1, 0, i * 16 * page, 16 * page, i));
  ASSERT_EQ(a.transport->Post(orders), 4u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 4 && b.ReceivedBytes() == 48 * page; }));
  for (const RailEvent& event : a.Of(Kind::kSendDone)) {
    EXPECT_EQ(event.result, event.cookie == 2 ? SendResult::kMemoryFault : SendResult::kAcknowledged) << event.cookie;
  }
  for (const RailEvent& event : b.Of(Kind::kReceived)) EXPECT_NE(event.offset_bytes, 32 * page);
  EXPECT_EQ(ReadAll(flow->zone).substr(0, 32 * page), flow->bytes.substr(0, 32 * page));
  EXPECT_EQ(ReadAll(flow->zone).substr(48 * page), flow->bytes.substr(48 * page));
  EXPECT_EQ(b.transport->counters().protocol_errors.load(), 0u);
  EXPECT_EQ(a.Count(Kind::kPeerDown), 0u);
}

TEST_P(FramedSuite, ABadPageOfTheReceiverFailsThatZoneOnly) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  EndOptions options;
  options.frame_bytes = 16 * page;
  End &a = Add("a", 1, options), &b = Add("b", 2, options);
  Meet(a, b);
  auto bad = MakeFlow(b, 16 * page);
  auto good = MakeFlow(b, 100000);
  auto segment = MakeSegment(16 * page);
  bad->zone = MemoryRanges();
  bad->zone.Append(segment, 0, 16 * page);
  ASSERT_EQ(::mprotect(segment->base() + 5 * page, page, PROT_NONE), 0);
  Open(b, a, 1, {bad.get(), good.get()});
  const std::vector<SendOrder> orders{Order(*bad, 1, 0, 0, 16 * page, 0), Order(*good, 1, 1, 0, 100000, 1)};
  ASSERT_EQ(a.transport->Post(orders), 2u);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kSendDone) == 2; }));
  EXPECT_EQ(a.CountDone(SendResult::kAcknowledged), 1u);
  EXPECT_EQ(a.CountDone(SendResult::kZoneClosed), 1u);
  ASSERT_TRUE(Until([&] { return b.ReceivedBytes() == 100000; }));
  ASSERT_EQ(b.Count(Kind::kReceiveFault), 1u);
  EXPECT_EQ(b.Of(Kind::kReceiveFault)[0].zone.index, 0u);
  EXPECT_EQ(b.Of(Kind::kReceiveFault)[0].peer, Index(a));
  EXPECT_TRUE(ReadAll(good->zone) == good->bytes);
}

}  // namespace
}  // namespace railsd::testing
