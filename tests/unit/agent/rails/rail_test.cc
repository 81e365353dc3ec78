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

#include "agent/transport/tcp/tcp_transport.h"
#include "tests/support/fake/fake_fabric.h"
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
    std::unique_ptr<RailBoard> board;
    std::unique_ptr<Rail> rail;
    std::string address;
    uint64_t connection = 0;  // the present one
    std::vector<RailEvent> events;
  };

  virtual std::unique_ptr<RailTransport> MakeTransport(const FakeTransportOptions& options) {
    return fabric_.Create(options);
  }
  Node MakeNode(const std::string& name, uint64_t boot, size_t commands, size_t events) {
    Node node;
    FakeTransportOptions options = options_;
    options.node = name;
    options.boot = BootId(boot);
    node.zones = std::make_unique<ZoneTable>();
    options.zones = node.zones.get();
    node.wake = std::make_unique<WakeEvent>(WakeEvent::Create().value());
    std::unique_ptr<RailTransport> transport = MakeTransport(options);
    node.address = transport->Info().address;
    node.board = std::make_unique<RailBoard>(1);
    node.rail = std::make_unique<Rail>(RailIndex(0), std::move(transport), scheduler_, node.board.get(),
                                       node.wake.get(), commands, events);
    return node;
  }
  void Build(size_t commands, size_t events) {
    a_ = MakeNode("a", 1, commands, events);
    b_ = MakeNode("b", 2, commands, events);
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
    auto zone = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
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
  static MemoryRanges OneRange(uint64_t bytes) {
    MemoryRanges memory;
    testing::Append(&memory, MakeSegment(bytes), 0, bytes);
    return memory;
  }
  static std::unique_ptr<SendStream> MakeStream(JobTag job, MemoryRanges memory) {
    auto stream = std::make_unique<SendStream>();
    stream->job = job;
    stream->peer = PeerIndex(5);
    stream->memory = std::move(memory);
    return stream;
  }
  static RailCommand Of(RailCommand::Kind kind, const SendStream& stream) {
    RailCommand command;
    command.kind = kind;
    command.give.stream = &stream;
    command.job = stream.job;
    return command;
  }
  static RailCommand Give(const Node& node, const SendStream& stream, uint64_t offset, uint64_t length,
                          uint8_t weight) {
    RailCommand command = Of(RailCommand::Kind::kGive, stream);
    command.give.connection = node.connection;
    command.give.offset_bytes = offset;
    command.give.length_bytes = length;
    command.give.weight = weight;
    stream.unposted_bytes[0].fetch_add(length);
    return command;
  }
  static size_t Count(const Node& node, RailEvent::Kind kind) {
    return static_cast<size_t>(
        std::count_if(node.events.begin(), node.events.end(), [&](const RailEvent& e) { return e.kind == kind; }));
  }

  template <typename Value>
  static uint64_t Sum(const Node& node, RailEvent::Kind kind, Value RailEvent::*value) {
    uint64_t sum = 0;
    for (const RailEvent& event : node.events) sum += event.kind == kind ? event.*value : Value{0};
    return sum;
  }

  static uint64_t CarriedBytes(const Node& node) {
    return Sum(node, RailEvent::Kind::kCarried, &RailEvent::length_bytes) +
           Sum(node, RailEvent::Kind::kFenceDone, &RailEvent::length_bytes);
  }

  FakeFabric fabric_;
  FakeTransportOptions options_;
  SchedulerOptions scheduler_{.speed_bytes_per_s = 1e9};
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
  // Commands, chunks and events all outnumber what any queue holds.
  scheduler_.chunk_bytes = 1000;
  options_.max_posted_orders = 4;
  Build(/*commands=*/3, /*events=*/2);
  Meet();
  std::mt19937_64 random(1);
  constexpr uint64_t kBytes = 30000, kPieces = 10, kStreams = 10;
  std::vector<std::unique_ptr<SendStream>> streams;
  std::vector<MemoryRanges> zones;
  std::vector<std::string> bytes;
  for (uint64_t i = 0; i < kStreams; ++i) {
    streams.push_back(MakeStream(JobTag(i), Scatter(MakeSegment(kBytes), 0, kBytes, 20, random)));
    zones.push_back(Scatter(MakeSegment(kBytes), 0, kBytes, 10, random));
    bytes.push_back(RandomBytes(kBytes, random));
    WriteAll(streams[i]->memory, bytes[i]);
    streams[i]->zone = Open(b_, zones[i]);
  }
  for (uint64_t piece = 0; piece < kPieces; ++piece) {
    const uint64_t length = kBytes / kPieces;
    for (const auto& stream : streams) Command(a_, Give(a_, *stream, piece * length, length, 2));
  }
  Until([&] { return Sum(a_, RailEvent::Kind::kFenceDone, &RailEvent::weight) == 2 * kPieces * kStreams; });
  Until([&] { return Sum(b_, RailEvent::Kind::kFence, &RailEvent::weight) == 2 * kPieces * kStreams; });
  Until([&] {
    return Sum(a_, RailEvent::Kind::kFenceDone, &RailEvent::settled) +
               Sum(a_, RailEvent::Kind::kSettled, &RailEvent::settled) ==
           kPieces * kStreams;
  });
  for (uint64_t i = 0; i < kStreams; ++i) {
    EXPECT_EQ(ReadAll(zones[i]), bytes[i]);
    EXPECT_EQ(streams[i]->unposted_bytes[0].load(), 0u);
  }
  EXPECT_EQ(CarriedBytes(a_), kBytes * kStreams);
  EXPECT_EQ(Count(a_, RailEvent::Kind::kReturned), 0u);
  EXPECT_EQ((*a_.board)[0].done_bytes.load(), kBytes * kStreams);
  Until([&] { return a_.rail->event_depth() == 0; });  // a stretch may be told after the last fence
  EXPECT_EQ(a_.rail->command_depth(), 0u);
}

// The engine opens a zone and only then lets the peer know: no frame for it may be taken for one of a closed zone.
TEST_P(RailOverTransportTest, AZoneOpenedBeforeItsPeerWasToldIsNeverRefused) {
  Build(/*commands=*/64, /*events=*/64);
  Meet();
  const MemoryRanges zone = OneRange(64);
  const auto stream = MakeStream(JobTag(1), OneRange(64));
  for (uint64_t round = 1; round <= 500; ++round) {
    stream->zone = Open(b_, zone);
    ASSERT_TRUE(a_.rail->TryCommand(Give(a_, *stream, 0, 64, kWholeWeight)));
    a_.rail->Flush();
    Until(
        [&] { return Count(a_, RailEvent::Kind::kFenceDone) == round || Count(a_, RailEvent::Kind::kSendFault) > 0; });
    ASSERT_EQ(Count(a_, RailEvent::Kind::kSendFault), 0u) << "zone " << round;
    ASSERT_TRUE(b_.zones->Close(stream->zone));
    b_.zones->Release(stream->zone);
  }
}

TEST_P(RailOverTransportTest, ReleaseGivesBackWhatIsNotPosted) {
  scheduler_.chunk_bytes = 1000;
  options_.max_posted_orders = 2;
  Build(/*commands=*/8, /*events=*/64);
  Meet();
  constexpr uint64_t kBytes = 4 << 20;
  const auto stream = MakeStream(JobTag(1), OneRange(kBytes));
  stream->zone = Open(b_, OneRange(kBytes));
  Command(a_, Give(a_, *stream, 0, kBytes, 200));
  RailCommand release = Of(RailCommand::Kind::kRelease, *stream);
  release.release_bytes = kBytes / 2;
  Command(a_, release);
  Until([&] {
    return Count(a_, RailEvent::Kind::kReleased) == 1 && Count(a_, RailEvent::Kind::kFenceDone) == 1 &&
           Count(b_, RailEvent::Kind::kFence) == 1;
  });
  const uint64_t returned = Sum(a_, RailEvent::Kind::kReturned, &RailEvent::length_bytes);
  EXPECT_EQ(CarriedBytes(a_) + returned, kBytes);
  EXPECT_LE(returned, kBytes / 2);
  EXPECT_EQ(
      Sum(a_, RailEvent::Kind::kReturned, &RailEvent::weight) + Sum(b_, RailEvent::Kind::kFence, &RailEvent::weight),
      200u);
}

TEST_F(RailTest, AFullTransportDoesNotHoldUpReceiving) {
  options_.max_posted_orders = 2;
  options_.traits.binds_zones = true;
  scheduler_.chunk_bytes = 64;
  Build(/*commands=*/8, /*events=*/64);
  Meet();
  fabric_.SetStepBytes(b_.address, 0);
  const auto stream = MakeStream(JobTag(1), OneRange(6 * 64));
  ASSERT_TRUE(a_.rail->TryCommand(Give(a_, *stream, 0, 6 * 64, kWholeWeight)));
  a_.rail->Flush();
  Command(a_, Close(9));
  Until([&] { return Count(a_, RailEvent::Kind::kZoneClosed) == 1; });
  EXPECT_EQ(CarriedBytes(a_), 0u);
  a_.rail.reset();  // a stream outlives the orders that name it
}

class RailStopTest : public RailTest, public ::testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(PostedOrders, RailStopTest, ::testing::Values(2, 64));

TEST_P(RailStopTest, StopSendsEndsPostedOrdersAndThoseTheTransportHasNotTaken) {
  scheduler_.chunk_bytes = 64;
  options_.max_posted_orders = GetParam();
  Build(/*commands=*/64, /*events=*/64);
  Meet();
  fabric_.SetStepBytes(b_.address, 0);
  const auto stream = MakeStream(JobTag(3), OneRange(20 * 64));
  for (uint64_t i = 0; i < 20; ++i) ASSERT_TRUE(a_.rail->TryCommand(Give(a_, *stream, i * 64, 64, 1)));
  a_.rail->Flush();
  Until([&] { return (*a_.board)[0].in_flight_bytes.load() == 20 * 64; });
  Command(a_, Of(RailCommand::Kind::kStopSends, *stream));
  const auto settled = [&] { return Sum(a_, RailEvent::Kind::kSettled, &RailEvent::settled); };
  Until([&] { return settled() == 20; });
  EXPECT_EQ(Count(a_, RailEvent::Kind::kSendFault), 1u);
  for (const RailEvent& event : a_.events) {
    if (event.kind == RailEvent::Kind::kSendFault) {
      EXPECT_EQ(event.result, SendResult::kStopped);
    }
  }
  EXPECT_EQ(CarriedBytes(a_), 0u);
  EXPECT_EQ((*a_.board)[0].done_bytes.load(), 20u * 64);
}

TEST_F(RailTest, DropEndsWhatIsNotPosted) {
  scheduler_.chunk_bytes = 64;
  options_.max_posted_orders = 2;
  Build(/*commands=*/8, /*events=*/64);
  Meet();
  fabric_.SetStepBytes(b_.address, 0);
  const auto stream = MakeStream(JobTag(3), OneRange(20 * 64));
  Command(a_, Give(a_, *stream, 0, 20 * 64, kWholeWeight));
  Command(a_, Of(RailCommand::Kind::kDrop, *stream));
  Command(a_, Of(RailCommand::Kind::kStopSends, *stream));
  Until([&] { return Sum(a_, RailEvent::Kind::kSettled, &RailEvent::settled) == 1; });
  EXPECT_EQ((*a_.board)[0].done_bytes.load(), 20u * 64);
  EXPECT_EQ(stream->unposted_bytes[0].load(), 0u);
}

TEST_F(RailTest, RefusesCommandsWhenFull) {
  a_ = MakeNode("a", 1, 4, 4);  // its thread never starts
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(a_.rail->TryCommand(RailCommand{}));
  EXPECT_FALSE(a_.rail->TryCommand(RailCommand{}));
  EXPECT_EQ(a_.rail->command_depth(), 4u);
  EXPECT_TRUE(a_.rail->TryCommand(Close(1)));
}

}  // namespace
}  // namespace railsd
