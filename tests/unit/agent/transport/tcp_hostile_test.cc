// Frames that no railsd would send, on connections that are up.
#include <linux/filter.h>
#include <sys/socket.h>

#include "agent/transport/tcp/stall.h"
#include "tests/unit/agent/transport/tcp_hostile_fixture.h"

namespace railsd::tcp {
namespace {

TEST_F(TcpHostileTest, AGoodFrameLandsAndIsAcknowledged) {
  BuildWithZones();
  const UniqueFd fd = Enter(1);
  Send(fd, Frame(Header(1, 0, 10, 90), {0, FrameStatus::kOk}));
  const AckRecord ack = ReadAck(fd);
  EXPECT_TRUE(ack.cumulative);
  EXPECT_EQ(ack.generation, 1u);
  EXPECT_EQ(ack.number, 1u);
  ASSERT_EQ(zone_->landed[0].runs(), 1u);
  EXPECT_EQ(zone_->landed[0].run(0).begin, 10u);
  EXPECT_EQ(zone_->landed[0].run(0).end, 100u);
}

TEST_F(TcpHostileTest, AFenceIsPublishedAndAcknowledged) {
  BuildWithZones();
  const UniqueFd fd = Enter(1);
  std::vector<std::byte> bytes = Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk});
  for (const FrameHeader& fence : {Fence(1, 1, 255, 9), Fence(1, 2, 1, UINT32_MAX)}) {
    const std::vector<std::byte> encoded = Encoded(fence);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
  }
  const std::vector<std::byte> frame = Frame(Header(1, 3, 10, 10), {3, FrameStatus::kOk});
  bytes.insert(bytes.end(), frame.begin(), frame.end());
  Send(fd, bytes);
  AckRecord ack;
  while (ack.number < 4) ack = ReadAck(fd);
  EXPECT_TRUE(ack.cumulative);
  ASSERT_TRUE(Until([&] { return Count(Kind::kFence) == 2; }));
  std::vector<RailEvent> fences;
  for (const RailEvent& event : events_) {
    if (event.kind == Kind::kFence) fences.push_back(event);
  }
  EXPECT_EQ(fences[0].peer, PeerIndex(4));
  EXPECT_EQ(fences[0].zone, zone_->ref);
  EXPECT_EQ(fences[0].weight, 255);
  EXPECT_EQ(fences[0].round, 9u);
  EXPECT_EQ(fences[1].weight, 1);
  EXPECT_EQ(fences[1].round, UINT32_MAX);
  EXPECT_EQ(Counters().rx_fences.load(), 2u);
  EXPECT_EQ(zone_->landed[0].bytes(), 20u);
}

TEST_F(TcpHostileTest, WhatIsForAZoneThatIsNotOpenIsDrainedAndRefused) {
  BuildWithZones();
  const UniqueFd fd = Enter(1);
  EXPECT_TRUE(zones_.Close(zone_->ref));
  FrameHeader never = Header(1, 2, 0, 10);
  never.zone = {65535, 77};
  Send(fd, Frame(Header(1, 0, 1 << 20, 5000), {0, FrameStatus::kOk}));
  Send(fd, Encoded(Fence(1, 1, 3, 0)));
  Send(fd, Frame(never, {2, FrameStatus::kOk}));
  std::vector<uint64_t> refused;
  for (AckRecord ack; ack.number < 3 || !ack.cumulative;) {
    ack = ReadAck(fd);
    if (ack.cumulative) continue;
    EXPECT_EQ(ack.status, FrameStatus::kZoneClosed);
    refused.push_back(ack.number);
  }
  EXPECT_EQ(refused, (std::vector<uint64_t>{0, 1, 2}));
  EXPECT_EQ(Landed(), 0u);
  EXPECT_EQ(Count(Kind::kFence), 0u);
  EXPECT_EQ(Counters().rx_discarded_bytes.load(), 5010u);
  EXPECT_EQ(ProtocolErrors(), 0u);
}

// A frame that has begun to land does not count once the gate is closed, and nothing more of it lands.
TEST_F(TcpHostileTest, AZoneThatIsClosedInTheMiddleOfAFrameRefusesIt) {
  BuildWithZones();
  const UniqueFd fd = Enter(1);
  const std::vector<std::byte> frame = Frame(Header(1, 0, 0, 100), {0, FrameStatus::kOk});
  Send(fd, absl::MakeConstSpan(frame).first(kHeaderBytes + 50));
  ASSERT_TRUE(Until([&] { return segment_->base()[1049] == std::byte('x'); }));
  EXPECT_TRUE(zones_.Close(zone_->ref)) << "nobody is inside between two receives";
  Send(fd, absl::MakeConstSpan(frame).subspan(kHeaderBytes + 50));
  const AckRecord ack = ReadAck(fd);
  EXPECT_FALSE(ack.cumulative);
  EXPECT_EQ(ack.status, FrameStatus::kZoneClosed);
  EXPECT_EQ(segment_->base()[1050], std::byte(0));
  EXPECT_EQ(zone_->landed[0].bytes(), 0u);
}

TEST_F(TcpHostileTest, BadFramesCloseTheConnection) {
  BuildWithZones();
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  std::vector<FrameHeader> bad{Header(99, 0, 0, 10),        Header(0, 1, 0, 10),
                               Header(0, 0, 0, 0),          Header(0, 0, 0, 101),
                               Header(0, 0, 91, 10),        Header(0, 0, kMax, 10),
                               Header(0, 0, kMax - 9, 10),  Header(0, 0, 0, kMaxFrameBytes + 1),
                               Header(0, 0, 0, 0xffffffff), Fence(0, 1, 1, 0),
                               Fence(99, 0, 1, 0)};
  for (FrameHeader header : {Header(0, 0, 0, 10), Fence(0, 0, 1, 0)}) {
    header.zone = other_->ref;
    bad.push_back(header);
  }
  uint64_t generation = 1;
  for (FrameHeader header : bad) {
    const UniqueFd fd = Enter(generation);
    if (header.generation == 0) header.generation = generation;
    ++generation;
    Send(fd, Encoded(header));
    ExpectBad(fd);
    EXPECT_EQ(ProtocolErrors(), generation - 1);
  }
  EXPECT_EQ(Landed(), 0u);
  EXPECT_EQ(Count(Kind::kFence), 0u);
  for (size_t i = 0; i < 8192; ++i) ASSERT_EQ(segment_->base()[i], std::byte(0)) << i;
}

TEST_F(TcpHostileTest, ADuplicateFrameABadTrailerAndGarbageCloseTheConnection) {
  BuildWithZones();
  const UniqueFd first = Enter(1);
  Send(first, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  Send(first, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  ExpectBad(first);
  EXPECT_EQ(Landed(), 1u);
  const UniqueFd second = Enter(2);
  Send(second, Frame(Header(2, 0, 0, 10), {1, FrameStatus::kOk}));
  ExpectBad(second);
  const UniqueFd third = Enter(3);
  SendText(third, std::string(200, '\xf1'));
  ExpectBad(third);
  EXPECT_EQ(ProtocolErrors(), 3u);
  EXPECT_EQ(Landed(), 1u);
}

TEST_F(TcpHostileTest, APoisonedFrameIsAcknowledgedButNotReceived) {
  BuildWithZones();
  const UniqueFd fd = Enter(1);
  Send(fd, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kPoisoned}));
  Send(fd, Frame(Header(1, 1, 20, 10), {1, FrameStatus::kOk}));
  AckRecord ack;
  while (ack.number < 2) ack = ReadAck(fd);
  EXPECT_TRUE(ack.cumulative);
  ASSERT_EQ(zone_->landed[0].runs(), 1u);
  EXPECT_EQ(zone_->landed[0].run(0).begin, 20u);
}

// A sender that does not read what is acknowledged is not listened to.
TEST_F(TcpHostileTest, WhoReadsNoAcknowledgementsIsNotReceivedFrom) {
  Build([](TcpOptions* options) { options->send_buffer_bytes = 4096; });
  OpenZones();
  UniqueFd fd;
  {
    int error = 0;
    SocketTuning tuning;
    tuning.receive_buffer_bytes = 4096;
    fd = StartConnect(ParseAddress("127.0.0.1").value(), ParseAddress(transport_->Info().address).value(), tuning,
                      &error);
    ASSERT_EQ(error, 0);
    pollfd ready{fd.get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&ready, 1, 10000), 1);
  }
  ASSERT_EQ(Greet(fd, GoodHello(1)).refusal, Refusal::kNone);
  // Until both directions are full; each frame is refused, which takes a record of its own.
  zones_.Close(zone_->ref);
  uint64_t number = 0;
  std::vector<std::byte> unsent;
  int blocked = 0;
  while (blocked < 50) {
    if (unsent.empty()) {
      unsent = Encoded(Fence(1, number, 1, 0));
      ++number;
    }
    const ssize_t sent = ::send(fd.get(), unsent.data(), unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) unsent.erase(unsent.begin(), unsent.begin() + sent);
    blocked = sent > 0 ? 0 : blocked + 1;
    if (sent <= 0 || number % 64 == 0) Poll();
  }
  const uint64_t calls = Counters().rx_system_calls.load();
  for (int i = 0; i < 20; ++i) Poll();
  EXPECT_EQ(Counters().rx_system_calls.load(), calls);
  // And goes on when they are read.
  uint64_t acknowledged = 0;
  std::vector<std::byte> have;
  ASSERT_TRUE(Until([&] {
    std::array<std::byte, 65536> bytes;
    const ssize_t got = Read(fd, absl::MakeSpan(bytes));
    if (got > 0) have.insert(have.end(), bytes.begin(), bytes.begin() + got);
    for (; have.size() >= kAckBytes; have.erase(have.begin(), have.begin() + kAckBytes)) {
      AckRecord ack;
      EXPECT_TRUE(DecodeAck(have.data(), &ack));
      if (ack.cumulative) acknowledged = ack.number;
    }
    return acknowledged >= number - 1;
  }));
  EXPECT_EQ(ProtocolErrors(), 0u);
}

// The other side: a receiver that acknowledges what it was not sent.
TEST_F(TcpHostileTest, LyingAcknowledgementsEndTheConnection) {
  Build([](TcpOptions* options) { options->min_back_off = options->max_back_off = absl::Milliseconds(1); });
  SendStream stream{.job = JobTag(1), .peer = PeerIndex(4), .memory = {}, .zone = {1, 1}};
  testing::Append(&stream.memory, testing::MakeSegment(1000), 0, 1000);
  const std::vector<std::function<AckRecord(uint64_t)>> lies{
      [](uint64_t g) {
        return AckRecord{true, FrameStatus::kOk, g, 3};
      },
      [](uint64_t g) {
        return AckRecord{true, FrameStatus::kOk, g + 1, 1};
      },
      [](uint64_t g) {
        return AckRecord{false, FrameStatus::kZoneClosed, g, 2};
      },
      [](uint64_t g) {
        return AckRecord{true, FrameStatus::kOk, g, std::numeric_limits<uint64_t>::max()};
      },
  };
  size_t round = 0;
  for (const auto& lie : lies) {
    ++round;
    UniqueFd fd;
    std::array<std::byte, kHelloBytes> said;
    ASSERT_NO_FATAL_FAILURE(TakeDial(&fd, &said));
    Hello hello;
    ASSERT_TRUE(DecodeHello(said, &hello));
    AnswerDial(fd, said);
    ASSERT_TRUE(Until([&] { return Count(Kind::kPeerUp) == round; }));
    const SendOrder order{
        .stream = &stream, .length_bytes = 1000, .cookie = 7, .connection = hello.generation, .weight = 1};
    ASSERT_EQ(transport_->Post({&order, 1}), 1u);
    Poll();
    std::array<std::byte, kAckBytes> ack;
    EncodeAck(lie(hello.generation), ack.data());
    Send(fd, ack);
    ASSERT_TRUE(Until([&] { return Count(Kind::kPeerDown) == round; }));
    EXPECT_EQ(Count(Kind::kSendDone), round);
    EXPECT_EQ(Count(Kind::kBadPeer), round);
    EXPECT_EQ(ProtocolErrors(), round);
    EXPECT_EQ(events_.back().kind, Kind::kPeerDown);
    EXPECT_EQ(events_.back().connection, hello.generation);
  }
  for (const RailEvent& event : events_) {
    if (event.kind != Kind::kSendDone) continue;
    EXPECT_EQ(event.result, SendResult::kRailFailed);
  }
}

// The network swallows what acknowledges a frame, and nothing else happens at the receiver: one Poll() has to look at
// the connection by itself, long before its time is over.
TEST_F(TcpHostileTest, AReceiverThatIsIdleFindsTheBlackHoleBehindItsAcknowledgements) {
  Build([](TcpOptions* options) {
    options->stall = absl::Milliseconds(100);
    options->handshake_time = absl::Minutes(1);  // the victim's own dial is not answered
  });
  OpenZones();
  const UniqueFd fd = Enter(1);
  for (int i = 0; i < 20; ++i) Poll();
  Send(fd, Frame(Header(1, 0, 0, 50), {0, FrameStatus::kOk}));
  ConnectionInfo info;
  ASSERT_TRUE(testing::Until([&] { return ReadConnectionInfo(fd.get(), &info) && info.unacknowledged_segments == 0; }));
  sock_filter drop_all{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &drop_all};
  ASSERT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
  std::array<RailEvent, 16> batch;
  EXPECT_EQ(transport_->Poll(absl::Seconds(2), absl::MakeSpan(batch)), 0u);
  EXPECT_EQ(Landed(), 1u);
  // The connection is gone: a second frame is not received any more.
  ASSERT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_DETACH_FILTER, &drop_all, sizeof(drop_all)), 0);
  Send(fd, Frame(Header(1, 1, 50, 50), {1, FrameStatus::kOk}));
  std::array<std::byte, 4096> bytes;
  EXPECT_TRUE(Until([&] { return Landed() == 2 || Read(fd, absl::MakeSpan(bytes)) == 0; }));
  EXPECT_EQ(Landed(), 1u);
}

}  // namespace
}  // namespace railsd::tcp
