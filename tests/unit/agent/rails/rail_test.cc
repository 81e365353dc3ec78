#include "agent/rails/rail.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "agent/transport/fake/fake_fabric.h"
#include "agent/transport/tcp/tcp_transport.h"
#include "tests/support/test_memory.h"

namespace railsd {
namespace {

using testing::MakeSegment;
using testing::RandomBytes;
using testing::ReadAll;
using testing::Scatter;
using testing::WriteAll;

// Two nodes with one rail each, driven from this thread as the engine would.
class RailTest : public ::testing::Test {
 protected:
  struct Node {
    std::unique_ptr<ZoneTable> zones;
    std::unique_ptr<WakeEvent> wake;
    std::unique_ptr<Rail> rail;
    std::string address;
    uint64_t connection = 0;  // the present one
    std::vector<RailEvent> events;
  };

  virtual std::unique_ptr<RailTransport> MakeTransport(const FakeTransportOptions& options) {
    return fabric_.Create(options);
  }
  Node MakeNode(const std::string& name, uint64_t boot, size_t commands, size_t events, FakeTransportOptions options) {
    Node node;
    options.node = name;
    options.boot = BootId(boot);
    node.zones = std::make_unique<ZoneTable>();
    options.zones = node.zones.get();
    node.wake = std::make_unique<WakeEvent>(WakeEvent::Create().value());
    std::unique_ptr<RailTransport> transport = MakeTransport(options);
    node.address = transport->Info().address;
    node.rail = std::make_unique<Rail>(RailIndex(0), std::move(transport), node.wake.get(), commands, events);
    return node;
  }
  void Build(size_t commands, size_t events, FakeTransportOptions options = {}) {
    a_ = MakeNode("a", 1, commands, events, options);
    b_ = MakeNode("b", 2, commands, events, options);
    a_.rail->Start();
    b_.rail->Start();
  }
  static void Take(Node& node) {
    std::array<RailEvent, 7> batch;
    for (size_t n; (n = node.rail->TakeEvents(absl::MakeSpan(batch))) > 0;) {
      node.events.insert(node.events.end(), batch.begin(), batch.begin() + static_cast<ptrdiff_t>(n));
    }
  }
  // Sleeps as the engine does until `done`, or fails after a generous deadline.
  void Until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (;;) {
      Take(a_);
      Take(b_);
      if (done()) return;
      ASSERT_LT(std::chrono::steady_clock::now(), deadline) << "nothing happened for 30 s";
      a_.wake->BeginSleep();
      b_.wake->BeginSleep();
      const size_t seen = a_.events.size() + b_.events.size();
      Take(a_);
      Take(b_);
      pollfd fds[2] = {{a_.wake->fd(), POLLIN, 0}, {b_.wake->fd(), POLLIN, 0}};
      if (seen == a_.events.size() + b_.events.size()) ::poll(fds, 2, 1000);
      a_.wake->EndSleep();
      b_.wake->EndSleep();
    }
  }
  void Command(Node& node, RailCommand command) {
    Until([&] { return node.rail->TryCommand(command); });
    node.rail->Flush();
  }
  void Meet() {
    Command(a_, SetPeer(RailPeer{PeerIndex(5), "b", BootId(2), b_.address}));
    Command(b_, SetPeer(RailPeer{PeerIndex(6), "a", BootId(1), a_.address}));
    Until([&] { return Count(a_, RailEvent::Kind::kPeerUp) == 1 && Count(b_, RailEvent::Kind::kPeerUp) == 1; });
    for (const RailEvent& event : a_.events) {
      if (event.kind == RailEvent::Kind::kPeerUp) a_.connection = event.connection;
    }
  }
  static RailCommand SetPeer(RailPeer peer) {
    RailCommand command;
    command.kind = RailCommand::Kind::kSetPeer;
    command.set_peer = std::make_shared<const RailPeer>(std::move(peer));
    return command;
  }
  // Opens a zone at `node` for what comes from the other one.
  static ZoneRef Open(Node& node, MemoryRanges memory) {
    auto zone = std::make_shared<ReceiveZone>(1);
    zone->peer = PeerIndex(6);
    zone->memory = std::move(memory);
    node.zones->Open(zone);
    return zone->ref;
  }
  // A command that a transport answers though it binds nothing.
  static RailCommand Close(uint16_t slot) {
    RailCommand command;
    command.kind = RailCommand::Kind::kCloseZone;
    command.ref = {slot, 1};
    return command;
  }
  static RailCommand Post(const Node& node, const SendStream& stream, uint64_t offset, uint64_t length,
                          uint64_t cookie) {
    RailCommand command;
    command.kind = RailCommand::Kind::kPost;
    command.order = {&stream, offset, length, cookie, node.connection};
    return command;
  }
  static size_t Count(const Node& node, RailEvent::Kind kind) {
    return static_cast<size_t>(
        std::count_if(node.events.begin(), node.events.end(), [&](const RailEvent& e) { return e.kind == kind; }));
  }

  FakeFabric fabric_;
  Node a_, b_;
};

// Over both transports: the thread's wakes and waits are theirs.
class RailOverTransportTest : public RailTest, public ::testing::WithParamInterface<bool> {
 protected:
  std::unique_ptr<RailTransport> MakeTransport(const FakeTransportOptions& options) override {
    if (!GetParam()) return RailTest::MakeTransport(options);
    TcpOptions tcp;
    tcp.node = options.node;
    tcp.boot = options.boot;
    tcp.listen_address = "127.0.0.1";
    tcp.zones = options.zones;
    tcp.frame_bytes = 1000;
    tcp.max_posted_orders = options.max_posted_orders;
    return CreateTcpTransport(std::move(tcp)).value();
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, RailOverTransportTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "Fake"; });

TEST_P(RailOverTransportTest, MovesBytesThroughTinyQueues) {
  // Commands, orders and events all outnumber what any queue holds.
  FakeTransportOptions options;
  options.max_posted_orders = 4;
  Build(/*commands=*/3, /*events=*/2, options);
  Meet();
  std::mt19937_64 random(1);
  constexpr uint64_t kBytes = 300000;
  SendStream stream{JobTag(1), PeerIndex(5), Scatter(MakeSegment(kBytes), 0, kBytes, 50, random), {}};
  const MemoryRanges zone = Scatter(MakeSegment(kBytes), 0, kBytes, 20, random);
  const std::string bytes = RandomBytes(kBytes, random);
  WriteAll(stream.memory, bytes);
  stream.zone = Open(b_, zone);
  for (uint64_t offset = 0; offset < kBytes; offset += 3000) {
    RailCommand post = Post(a_, stream, offset, 3000, offset);
    post.order.weight = 2;  // each with a fence, so that events outnumber the queue at both ends
    Command(a_, post);
  }
  Until([&] { return Count(a_, RailEvent::Kind::kSendDone) == kBytes / 3000; });
  Until([&] { return Count(b_, RailEvent::Kind::kFence) == kBytes / 3000; });
  EXPECT_EQ(ReadAll(zone), bytes);
  uint64_t next = 0;
  for (const RailEvent& event : a_.events) {
    if (event.kind != RailEvent::Kind::kSendDone) continue;
    EXPECT_EQ(event.result, SendResult::kAcknowledged);
    EXPECT_EQ(event.cookie, next);
    next += 3000;
  }
  EXPECT_EQ(a_.rail->event_depth(), 0u);
  EXPECT_EQ(a_.rail->command_depth(), 0u);
}

// The engine opens a zone and only then lets the peer know: no frame for it may be taken for one of a closed zone.
TEST_P(RailOverTransportTest, AZoneOpenedBeforeItsPeerWasToldIsNeverRefused) {
  Build(/*commands=*/64, /*events=*/64);
  Meet();
  SendStream stream{JobTag(1), PeerIndex(5), {}, {}};
  stream.memory.Append(MakeSegment(64), 0, 64);
  MemoryRanges zone;
  zone.Append(MakeSegment(64), 0, 64);
  for (uint64_t round = 1; round <= 500; ++round) {
    stream.zone = Open(b_, zone);
    ASSERT_TRUE(a_.rail->TryCommand(Post(a_, stream, 0, 64, round)));
    a_.rail->Flush();
    Until([&] { return Count(a_, RailEvent::Kind::kSendDone) == round; });
    ASSERT_EQ(a_.events.back().result, SendResult::kAcknowledged) << "zone " << round;
    ASSERT_TRUE(b_.zones->Close(stream.zone));
    b_.zones->Release(stream.zone);
  }
}

TEST_F(RailTest, AFullTransportDoesNotHoldUpReceiving) {
  FakeTransportOptions options;
  options.max_posted_orders = 2;
  options.traits.binds_zones = true;
  Build(/*commands=*/8, /*events=*/64, options);
  Meet();
  fabric_.SetStepBytes(b_.address, 0);
  SendStream stream{JobTag(1), PeerIndex(5), {}, {}};
  stream.memory.Append(MakeSegment(64), 0, 64);
  for (uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(a_.rail->TryCommand(Post(a_, stream, 0, 64, i)));
  a_.rail->Flush();
  Command(a_, Close(9));
  Until([&] { return Count(a_, RailEvent::Kind::kZoneClosed) == 1; });
  EXPECT_EQ(Count(a_, RailEvent::Kind::kSendDone), 0u);
  a_.rail.reset();  // a stream outlives the orders that name it
}

TEST_F(RailTest, StopAfterPostsStopsThemAll) {
  FakeTransportOptions options;
  options.max_posted_orders = 64;
  Build(/*commands=*/64, /*events=*/64, options);
  Meet();
  fabric_.SetStepBytes(b_.address, 0);
  SendStream stream{JobTag(3), PeerIndex(5), {}, {}};
  stream.memory.Append(MakeSegment(64), 0, 64);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(a_.rail->TryCommand(Post(a_, stream, 0, 64, i)));
  RailCommand stop;
  stop.kind = RailCommand::Kind::kStopSends;
  stop.job = JobTag(3);
  Command(a_, stop);
  Until([&] { return Count(a_, RailEvent::Kind::kSendDone) == 20; });
  for (const RailEvent& event : a_.events) {
    if (event.kind != RailEvent::Kind::kSendDone) continue;
    EXPECT_EQ(event.result, SendResult::kStopped);
  }
}

TEST_F(RailTest, RefusesCommandsWhenFull) {
  a_ = MakeNode("a", 1, 4, 4, {});  // its thread never starts
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(a_.rail->TryCommand(RailCommand{}));
  EXPECT_FALSE(a_.rail->TryCommand(RailCommand{}));
  EXPECT_EQ(a_.rail->command_depth(), 4u);
  EXPECT_TRUE(a_.rail->TryCommand(Close(1)));
}

}  // namespace
}  // namespace railsd
