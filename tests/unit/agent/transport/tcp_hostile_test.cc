// What no railsd would send, once its connections are there.
#include "tests/unit/agent/transport/tcp_hostile_fixture.h"

namespace railsd::tcp {
namespace {

TEST_F(TcpHostileTest, AGoodFrameLandsAndIsAcknowledged) {
  Build();
  OpenZone();
  Pair pair = Enter(1);
  Send(pair.bulk, Frame(Header(1, 0, 10, 90), {0, FrameStatus::kOk}));
  std::array<std::byte, kAckBytes> bytes;
  ASSERT_TRUE(Until([&] { return Read(pair.small, absl::MakeSpan(bytes)) == kAckBytes; }));
  AckRecord ack;
  ASSERT_TRUE(DecodeAck(bytes.data(), &ack));
  EXPECT_TRUE(ack.cumulative);
  EXPECT_EQ(ack.number, 1u);
  EXPECT_EQ(Count(Kind::kReceived), 1u);
}

TEST_F(TcpHostileTest, BadFramesCloseTheConnection) {
  Build();
  OpenZone();
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  const std::vector<FrameHeader> bad{Header(99, 0, 0, 10),
                                     Header(0, 1, 0, 10),
                                     Header(0, 0, 0, 0),
                                     Header(0, 0, 0, 101),
                                     Header(0, 0, 91, 10),
                                     Header(0, 0, kMax, 10),
                                     Header(0, 0, kMax - 9, 10),
                                     Header(0, 0, 0, kMaxFrameBytes + 1),
                                     Header(0, 0, 0, 0xffffffff),
                                     {0, 0, {1, 1, 1}, 0, 10},
                                     {0, 0, {1, 1, 0xffffffff}, 0, 10},
                                     {0, 0, {2, 1, 0}, 0, 10}};
  uint64_t generation = 1;
  for (FrameHeader header : bad) {
    Pair pair = Enter(generation);
    if (header.generation == 0) header.generation = generation;
    ++generation;
    std::array<std::byte, kHeaderBytes> bytes;
    EncodeHeader(header, bytes.data());
    Send(pair.bulk, bytes);
    ExpectBad(pair);
    EXPECT_EQ(ProtocolErrors(), generation - 1);
  }
  EXPECT_EQ(Count(Kind::kReceived), 0u);
  for (size_t i = 0; i < 8192; ++i) ASSERT_EQ(zone_->base()[i], std::byte(0)) << i;
}

TEST_F(TcpHostileTest, ADuplicateFrameABadTrailerAndGarbageCloseTheConnection) {
  Build();
  OpenZone();
  Pair pair = Enter(1);
  Send(pair.bulk, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  Send(pair.bulk, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  ExpectBad(pair);
  EXPECT_EQ(Count(Kind::kReceived), 1u);
  Pair second = Enter(2);
  Send(second.bulk, Frame(Header(2, 0, 0, 10), {1, FrameStatus::kOk}));
  ExpectBad(second);
  Pair third = Enter(3);
  SendText(third.bulk, std::string(200, '\xf1'));
  ExpectBad(third);
  Pair fourth = Enter(4);
  SendText(fourth.small, "hello?");
  ExpectBad(fourth);
  EXPECT_EQ(ProtocolErrors(), 4u);
  EXPECT_EQ(Count(Kind::kReceived), 1u);
}

TEST_F(TcpHostileTest, APoisonedFrameIsAcknowledgedButNotReceived) {
  Build();
  OpenZone();
  Pair pair = Enter(1);
  Send(pair.bulk, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kPoisoned}));
  Send(pair.bulk, Frame(Header(1, 1, 20, 10), {1, FrameStatus::kOk}));
  ASSERT_TRUE(Until([&] { return Count(Kind::kReceived) == 1; }));
  EXPECT_EQ(events_.back().offset_bytes, 20u);
}

// The two proofs race: what follows one of them waits for the other.
TEST_F(TcpHostileTest, FramesWaitForTheSmallConnection) {
  Build();
  OpenZone();
  UniqueFd bulk = Connect();
  EXPECT_EQ(Greet(bulk, GoodHello(ConnectionKind::kBulk, 1)).refusal, Refusal::kNone);
  Send(bulk, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  for (int i = 0; i < 20; ++i) Poll();
  EXPECT_EQ(Count(Kind::kReceived), 0u);
  const uint64_t calls = transport_->counters().rx_system_calls.load();
  for (int i = 0; i < 20; ++i) Poll();
  EXPECT_EQ(transport_->counters().rx_system_calls.load(), calls) << "it does not spin over them";
  UniqueFd small = Connect();
  EXPECT_EQ(Greet(small, GoodHello(ConnectionKind::kSmall, 1)).refusal, Refusal::kNone);
  EXPECT_TRUE(Until([&] { return Count(Kind::kReceived) == 1; }));
  EXPECT_EQ(ProtocolErrors(), 0u);
}

// The other side: a receiver that acknowledges what it was not sent.
TEST_F(TcpHostileTest, LyingAcknowledgementsEndTheConnection) {
  Build([](TcpOptions* options) { options->min_back_off = options->max_back_off = absl::Milliseconds(1); });
  SendFlow flow{JobTag(1), PeerIndex(4), {}};
  flow.memory.Append(testing::MakeSegment(1000), 0, 1000);
  const std::vector<std::function<AckRecord(uint64_t)>> lies{
      [](uint64_t g) {
        return AckRecord{true, FrameStatus::kOk, g, 2};
      },
      [](uint64_t g) {
        return AckRecord{true, FrameStatus::kOk, g + 1, 1};
      },
      [](uint64_t g) {
        return AckRecord{false, FrameStatus::kZoneClosed, g, 1};
      },
      [](uint64_t g) {
        return AckRecord{true, FrameStatus::kOk, g, std::numeric_limits<uint64_t>::max()};
      },
  };
  size_t round = 0;
  for (const auto& lie : lies) {
    ++round;
    // Two connections of one generation.
    UniqueFd small, bulk;
    std::array<std::byte, kHelloBytes> said_small{}, said_bulk{};
    uint64_t generation = 0;
    ASSERT_TRUE(Until([&] {
      UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!fd.valid()) return false;
      std::array<std::byte, kHelloBytes> bytes;
      size_t have = 0;
      if (!Until([&] {
            const ssize_t got = Read(fd, absl::MakeSpan(bytes).subspan(have));
            if (got == 0) return true;
            if (got > 0) have += static_cast<size_t>(got);
            return have == bytes.size();
          })) {
        return false;
      }
      Hello hello;
      if (have < bytes.size() || !DecodeHello(bytes, &hello)) return false;
      if (hello.generation != generation) {
        small.Reset();
        bulk.Reset();
      }
      generation = hello.generation;
      (hello.kind == ConnectionKind::kBulk ? bulk : small) = std::move(fd);
      (hello.kind == ConnectionKind::kBulk ? said_bulk : said_small) = bytes;
      return bulk.valid() && small.valid();
    }));
    const auto reply = [](const UniqueFd& fd, const std::array<std::byte, kHelloBytes>& said) {
      Answer answer;
      answer.boot = 2;
      answer.node = "evil";
      answer.max_frame_bytes = 4096;
      std::array<std::byte, kAnswerBytes> bytes;
      EncodeAnswer(answer, absl::MakeSpan(bytes));
      answer.mac = AnswerMac(kKey, said, bytes);
      EncodeAnswer(answer, absl::MakeSpan(bytes));
      Send(fd, bytes);
    };
    reply(bulk, said_bulk);
    reply(small, said_small);
    ASSERT_TRUE(Until([&] { return Count(Kind::kPeerUp) == round; }));
    const SendOrder order{&flow, {1, 1, 0}, 0, 1000, 7};
    ASSERT_EQ(transport_->Post({&order, 1}), 1u);
    Poll();
    std::array<std::byte, kAckBytes> ack;
    EncodeAck(lie(generation), ack.data());
    Send(small, ack);
    ASSERT_TRUE(Until([&] { return Count(Kind::kPeerDown) == round; }));
    EXPECT_EQ(Count(Kind::kSendDone), round);
    EXPECT_EQ(Count(Kind::kBadPeer), round);
    EXPECT_EQ(ProtocolErrors(), round);
  }
  for (const RailEvent& event : events_) {
    if (event.kind != Kind::kSendDone) continue;
    EXPECT_EQ(event.result, SendResult::kRailFailed);
  }
}

}  // namespace
}  // namespace railsd::tcp
