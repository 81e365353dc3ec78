// Raw sockets that send a live transport what no railsd would.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "agent/transport/tcp/tcp_transport.h"
#include "tests/support/test_memory.h"

namespace railsd::tcp {
namespace {

using Kind = RailEvent::Kind;

class TcpHostileTest : public ::testing::Test {
 protected:
  void Build(const std::function<void(TcpOptions*)>& change = [](TcpOptions*) {}) {
    TcpOptions options;
    options.node = "victim";
    options.boot = BootId(1);
    options.listen_address = "127.0.0.1";
    options.on_notice = [this](const std::string& text) { notices_.push_back(text); };
    change(&options);
    transport_ = CreateTcpTransport(options).value();
    // The raw peer listens too, so that the victim has somewhere to dial.
    listener_ = Listen(ParseAddress("127.0.0.1").value(), {}).value();
    transport_->SetPeer({PeerIndex(4), "evil", BootId(2), LocalAddressOf(listener_.get())->ToString()});
  }
  void Poll() {
    std::array<RailEvent, 16> batch;
    const size_t count = transport_->Poll(absl::Milliseconds(1), absl::MakeSpan(batch));
    events_.insert(events_.end(), batch.begin(), batch.begin() + static_cast<ptrdiff_t>(count));
  }
  bool Until(const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!done()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      Poll();
    }
    return true;
  }
  size_t Count(Kind kind) const {
    return static_cast<size_t>(
        std::count_if(events_.begin(), events_.end(), [&](const RailEvent& e) { return e.kind == kind; }));
  }
  uint64_t ProtocolErrors() const { return transport_->counters().protocol_errors.load(); }

  UniqueFd Connect() {
    int error = 0;
    UniqueFd fd =
        StartConnect(ParseAddress("127.0.0.1").value(), ParseAddress(transport_->LocalAddress()).value(), {}, &error);
    EXPECT_EQ(error, 0);
    pollfd ready{fd.get(), POLLOUT, 0};
    EXPECT_EQ(::poll(&ready, 1, 10000), 1);
    return fd;
  }
  // Everything is small enough for a fresh socket's buffer.
  static void Send(const UniqueFd& fd, absl::Span<const std::byte> bytes) {
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  static void SendText(const UniqueFd& fd, const std::string& text) {
    Send(fd, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }
  // Reads what is there; -1 nothing yet, 0 closed.
  static ssize_t Read(const UniqueFd& fd, absl::Span<std::byte> out) {
    const ssize_t got = ::recv(fd.get(), out.data(), out.size(), MSG_DONTWAIT);
    return got < 0 && errno == ECONNRESET ? 0 : got;
  }
  bool IsClosed(const UniqueFd& fd) {
    return Until([&] {
      std::array<std::byte, 4096> bytes;
      return Read(fd, absl::MakeSpan(bytes)) == 0;
    });
  }
  static Hello GoodHello(ConnectionKind kind, uint64_t generation) {
    Hello hello;
    hello.kind = kind;
    hello.boot = 2;
    hello.expected_boot = 1;
    hello.generation = generation;
    hello.node = "evil";
    hello.expected_node = "victim";
    return hello;
  }
  Answer Greet(const UniqueFd& fd, const Hello& hello) {
    std::array<std::byte, kHelloBytes> bytes;
    EncodeHello(hello, absl::MakeSpan(bytes));
    Send(fd, bytes);
    std::array<std::byte, kAnswerBytes> in{};
    size_t have = 0;
    EXPECT_TRUE(Until([&] {
      const ssize_t got = Read(fd, absl::MakeSpan(in).subspan(have));
      if (got > 0) have += static_cast<size_t>(got);
      return have == in.size();
    }));
    Answer answer;
    EXPECT_TRUE(DecodeAnswer(in, &answer));
    return answer;
  }
  struct Pair {
    UniqueFd bulk, small;
    uint64_t generation;
  };
  Pair Enter(uint64_t generation) {
    Pair pair{Connect(), Connect(), generation};
    EXPECT_EQ(Greet(pair.bulk, GoodHello(ConnectionKind::kBulk, generation)).refusal, Refusal::kNone);
    EXPECT_EQ(Greet(pair.small, GoodHello(ConnectionKind::kSmall, generation)).refusal, Refusal::kNone);
    return pair;
  }
  void OpenZone() {
    zone_ = testing::MakeSegment(8192);
    auto set = std::make_shared<ReceiveSet>();
    set->peer = PeerIndex(4);
    set->slot = 1;
    set->generation = 1;
    set->zones.emplace_back().Append(zone_, 1000, 100);
    auto other = std::make_shared<ReceiveSet>();
    other->peer = PeerIndex(5);
    other->slot = 2;
    other->generation = 1;
    other->zones = set->zones;
    transport_->OpenZones(set);
    transport_->OpenZones(other);
  }
  static std::vector<std::byte> Frame(const FrameHeader& header, FrameTrailer trailer) {
    std::vector<std::byte> bytes(kHeaderBytes + header.length_bytes + kTrailerBytes, std::byte('x'));
    EncodeHeader(header, bytes.data());
    EncodeTrailer(trailer, bytes.data() + kHeaderBytes + header.length_bytes);
    return bytes;
  }
  static FrameHeader Header(uint64_t generation, uint64_t number, uint64_t offset, uint32_t length) {
    return {generation, number, {1, 1, 0}, offset, length};
  }
  // The victim closes the connection, counts it, and says who it was.
  void ExpectBad(Pair& pair) {
    EXPECT_TRUE(IsClosed(pair.bulk));
    EXPECT_TRUE(Until([&] { return Count(Kind::kBadPeer) == ProtocolErrors(); }));
    EXPECT_EQ(events_.back().peer, PeerIndex(4));
  }

  std::vector<std::string> notices_;
  std::unique_ptr<RailTransport> transport_;
  UniqueFd listener_;
  std::shared_ptr<const Segment> zone_;
  std::vector<RailEvent> events_;
};

TEST_F(TcpHostileTest, WhatIsNoHelloIsClosedAndCounted) {
  Build();
  UniqueFd fd = Connect();
  SendText(fd, std::string(kHelloBytes, 'G'));
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_EQ(ProtocolErrors(), 1u);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_THAT(notices_[0], ::testing::HasSubstr("is no HELLO"));
}

TEST_F(TcpHostileTest, ATruncatedHelloRunsOutOfTime) {
  Build([](TcpOptions* options) { options->handshake_time = absl::Milliseconds(30); });
  UniqueFd fd = Connect();
  std::array<std::byte, kHelloBytes> bytes;
  EncodeHello(GoodHello(ConnectionKind::kBulk, 1), absl::MakeSpan(bytes));
  Send(fd, absl::MakeSpan(bytes).first(kHelloBytes - 1));
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_GE(transport_->counters().refused_connections.load(), 1u);
}

TEST_F(TcpHostileTest, HalfAPairRunsOutOfTime) {
  Build([](TcpOptions* options) { options->handshake_time = absl::Milliseconds(30); });
  UniqueFd fd = Connect();
  EXPECT_EQ(Greet(fd, GoodHello(ConnectionKind::kBulk, 1)).refusal, Refusal::kNone);
  EXPECT_TRUE(IsClosed(fd));
}

TEST_F(TcpHostileTest, RefusalsSayWhy) {
  Build();
  const auto refusal = [&](const std::function<void(Hello*)>& change) {
    Hello hello = GoodHello(ConnectionKind::kBulk, 1);
    change(&hello);
    UniqueFd fd = Connect();
    const Answer answer = Greet(fd, hello);
    EXPECT_TRUE(IsClosed(fd));
    EXPECT_EQ(answer.node, "victim");
    return answer.refusal;
  };
  EXPECT_EQ(refusal([](Hello* h) { h->version_min = h->version_max = 2; }), Refusal::kWrongVersion);
  EXPECT_EQ(refusal([](Hello* h) { h->node = "stranger"; }), Refusal::kUnknownNode);
  EXPECT_EQ(refusal([](Hello* h) { h->boot = 3; }), Refusal::kWrongBoot);
  EXPECT_EQ(refusal([](Hello* h) { h->expected_boot = 3; }), Refusal::kNotMe);
  EXPECT_EQ(refusal([](Hello* h) { h->expected_node = "other"; }), Refusal::kNotMe);
  EXPECT_EQ(refusal([](Hello* h) { h->rail = 1; }), Refusal::kWrongRail);
  EXPECT_EQ(transport_->counters().refused_connections.load(), 6u);
  ASSERT_FALSE(notices_.empty());
  EXPECT_THAT(notices_[0], ::testing::AllOf(::testing::HasSubstr("victim"), ::testing::HasSubstr("evil")));
}

TEST_F(TcpHostileTest, TheSameHalfTwiceOrAnOldGenerationIsRefused) {
  Build();
  Pair pair = Enter(5);
  UniqueFd again = Connect();
  EXPECT_EQ(Greet(again, GoodHello(ConnectionKind::kBulk, 5)).refusal, Refusal::kStale);
  UniqueFd old = Connect();
  EXPECT_EQ(Greet(old, GoodHello(ConnectionKind::kSmall, 4)).refusal, Refusal::kStale);
  UniqueFd newer = Connect();
  EXPECT_EQ(Greet(newer, GoodHello(ConnectionKind::kSmall, 6)).refusal, Refusal::kNone);
  EXPECT_TRUE(IsClosed(pair.bulk)) << "replaced";
}

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

TEST_F(TcpHostileTest, FramesBeforeTheSmallConnectionAreAProtocolError) {
  Build();
  OpenZone();
  UniqueFd bulk = Connect();
  EXPECT_EQ(Greet(bulk, GoodHello(ConnectionKind::kBulk, 1)).refusal, Refusal::kNone);
  Send(bulk, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  EXPECT_TRUE(IsClosed(bulk));
  EXPECT_EQ(ProtocolErrors(), 1u);
}

// Its other half was refused, or the network failed under it: nobody is to blame.
TEST_F(TcpHostileTest, AHalfPairThatIsGivenUpIsNone) {
  Build();
  UniqueFd bulk = Connect();
  EXPECT_EQ(Greet(bulk, GoodHello(ConnectionKind::kBulk, 1)).refusal, Refusal::kNone);
  bulk.Reset();
  for (int i = 0; i < 20; ++i) Poll();
  const UniqueFd small = Connect();
  EXPECT_EQ(Greet(small, GoodHello(ConnectionKind::kSmall, 1)).refusal, Refusal::kStale) << "the pair is over";
  EXPECT_EQ(ProtocolErrors(), 0u);
  EXPECT_EQ(Count(Kind::kBadPeer), 0u);
}

TEST_F(TcpHostileTest, AFloodOfIdleConnectionsIsBounded) {
  Build([](TcpOptions* options) { options->max_half_open = 8; });
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(Connect());
    Poll();
  }
  ASSERT_TRUE(Until([&] { return transport_->counters().refused_connections.load() >= 92; }));
  EXPECT_EQ(transport_->counters().refused_connections.load(), 92u);
  Pair pair = Enter(1);  // an honest peer still gets in
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
      return bulk.valid() && small.valid();
    }));
    Answer answer;
    answer.boot = 2;
    answer.node = "evil";
    answer.max_frame_bytes = 4096;
    std::array<std::byte, kAnswerBytes> bytes;
    EncodeAnswer(answer, absl::MakeSpan(bytes));
    Send(bulk, bytes);
    Send(small, bytes);
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
