#include "agent/rail/rail.h"

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
    std::unique_ptr<WakeEvent> wake;
    std::unique_ptr<Rail> rail;
    std::string address;
    std::vector<RailEvent> events;
  };

  virtual std::unique_ptr<RailTransport> MakeTransport(const FakeTransportOptions& options) {
    return fabric_.Create(options);
  }
  Node MakeNode(const std::string& name, uint64_t boot, size_t commands, size_t events, FakeTransportOptions options) {
    Node node;
    options.node = name;
    options.boot = BootId(boot);
    node.wake = std::make_unique<WakeEvent>(WakeEvent::Create().value());
    node.rail = std::make_unique<Rail>(RailIndex(0), MakeTransport(options), node.wake.get(), commands, events);
    node.address = node.rail->LocalAddress();
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
  }
  static RailCommand SetPeer(RailPeer peer) {
    RailCommand command;
    command.kind = RailCommand::Kind::kSetPeer;
    command.set_peer = std::make_shared<const RailPeer>(std::move(peer));
    return command;
  }
  static RailCommand Open(uint32_t slot, MemoryRanges zone) {
    auto set = std::make_shared<ReceiveSet>();
    set->peer = PeerIndex(6);
    set->slot = slot;
    set->generation = 1;
    set->zones.push_back(std::move(zone));
    RailCommand command;
    command.kind = RailCommand::Kind::kOpenZones;
    command.zones = std::move(set);
    return command;
  }
  static RailCommand Close(uint32_t slot) {
    RailCommand command;
    command.kind = RailCommand::Kind::kCloseZones;
    command.slot = slot;
    command.generation = 1;
    command.awaited = true;
    return command;
  }
  static RailCommand Post(const SendFlow& flow, uint32_t slot, uint64_t offset, uint64_t length, uint64_t cookie) {
    RailCommand command;
    command.kind = RailCommand::Kind::kPost;
    command.order = {&flow, {slot, 1, 0}, offset, length, cookie};
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
    tcp.frame_bytes = options.frame_bytes;
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
  options.frame_bytes = 1000;
  Build(/*commands=*/3, /*events=*/2, options);
  Meet();
  std::mt19937_64 random(1);
  constexpr uint64_t kBytes = 300000;
  SendFlow flow{JobTag(1), PeerIndex(5), Scatter(MakeSegment(kBytes), 0, kBytes, 50, random)};
  const MemoryRanges zone = Scatter(MakeSegment(kBytes), 0, kBytes, 20, random);
  const std::string bytes = RandomBytes(kBytes, random);
  WriteAll(flow.memory, bytes);
  Command(b_, Open(1, zone));
  for (uint64_t offset = 0; offset < kBytes; offset += 3000) Command(a_, Post(flow, 1, offset, 3000, offset));
  Until([&] { return Count(a_, RailEvent::Kind::kSendDone) == kBytes / 3000; });
  Until([&] { return Count(b_, RailEvent::Kind::kReceived) == kBytes / 1000; });
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

// The engine opens the zones and only then lets the peer know; the frame may still reach a rail that is in the middle
// of a Poll(). No such frame may be taken for one of a closed zone.
TEST_P(RailOverTransportTest, AZoneOpenedBeforeItsPeerWasToldIsNeverRefused) {
  Build(/*commands=*/64, /*events=*/64);
  Meet();
  SendFlow flow{JobTag(1), PeerIndex(5), {}};
  flow.memory.Append(MakeSegment(64), 0, 64);
  MemoryRanges zone;
  zone.Append(MakeSegment(64), 0, 64);
  for (uint32_t slot = 1; slot <= 500; ++slot) {
    ASSERT_TRUE(b_.rail->TryCommand(Open(slot, zone)));
    if (slot % 2 == 0) b_.rail->Flush();  // even without a wake
    ASSERT_TRUE(a_.rail->TryCommand(Post(flow, slot, 0, 64, slot)));
    a_.rail->Flush();
    Until([&] { return Count(a_, RailEvent::Kind::kSendDone) == slot; });
    ASSERT_EQ(a_.events.back().result, SendResult::kAcknowledged) << "slot " << slot;
    Command(b_, Close(slot));
    Until([&] { return Count(b_, RailEvent::Kind::kZonesClosed) == slot; });
  }
}

TEST_F(RailTest, AFullTransportDoesNotHoldUpReceiving) {
  FakeTransportOptions options;
  options.max_posted_orders = 2;
  Build(/*commands=*/8, /*events=*/64, options);
  Meet();
  fabric_.SetStepBytes(b_.address, 0);
  SendFlow flow{JobTag(1), PeerIndex(5), {}};
  flow.memory.Append(MakeSegment(64), 0, 64);
  for (uint64_t i = 0; i < 6; ++i) ASSERT_TRUE(a_.rail->TryCommand(Post(flow, 1, 0, 64, i)));
  a_.rail->Flush();
  RailCommand close = Close(9);
  Command(a_, close);
  Until([&] { return Count(a_, RailEvent::Kind::kZonesClosed) == 1; });
  EXPECT_EQ(Count(a_, RailEvent::Kind::kSendDone), 0u);
  a_.rail.reset();  // a flow outlives the orders that name it
}

// The engine is not woken for closes that nobody awaits, unless they would fill its queue.
TEST_F(RailTest, ClosesThatNobodyAwaitsDoNotStick) {
  Build(/*commands=*/64, /*events=*/4);
  for (uint32_t slot = 1; slot <= 10; ++slot) {
    RailCommand close = Close(slot);
    close.awaited = false;
    Command(a_, close);
  }
  Until([&] { return Count(a_, RailEvent::Kind::kZonesClosed) >= 6; });
  Command(a_, Close(11));
  Until([&] { return Count(a_, RailEvent::Kind::kZonesClosed) == 11; });
}

TEST_F(RailTest, StopAfterPostsStopsThemAll) {
  FakeTransportOptions options;
  options.max_posted_orders = 64;
  Build(/*commands=*/64, /*events=*/64, options);
  Meet();
  fabric_.SetStepBytes(b_.address, 0);
  SendFlow flow{JobTag(3), PeerIndex(5), {}};
  flow.memory.Append(MakeSegment(64), 0, 64);
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(a_.rail->TryCommand(Post(flow, 1, 0, 64, i)));
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
