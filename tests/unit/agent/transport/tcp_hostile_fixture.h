// A live transport, "victim", and raw sockets that play its peer, "evil".
#ifndef RAILSD_TESTS_UNIT_AGENT_TRANSPORT_TCP_HOSTILE_FIXTURE_H_
#define RAILSD_TESTS_UNIT_AGENT_TRANSPORT_TCP_HOSTILE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "agent/transport/tcp/tcp_transport.h"
#include "tests/support/test_memory.h"
#include "tests/support/until.h"

namespace railsd::tcp {

using Kind = RailEvent::Kind;

inline constexpr DataKey kKey = {1, 2, 3};

class TcpHostileTest : public ::testing::Test {
 protected:
  void Build(const std::function<void(TcpOptions*)>& change = [](TcpOptions*) {}) {
    TcpOptions options;
    options.node = "victim";
    options.boot = BootId(1);
    options.zones = &zones_;
    options.listen_address = "127.0.0.1";
    options.on_notice = [this](const std::string& text) { notices_.push_back(text); };
    change(&options);
    transport_ = CreateTcpTransport(options).value();
    // The raw peer listens too, so that the victim has somewhere to dial.
    listener_ = Listen(ParseAddress("127.0.0.1").value(), {}).value();
    transport_->SetPeer({PeerIndex(4), "evil", BootId(2), LocalAddressOf(listener_.get())->ToString(), kKey});
  }
  void BuildWithZones() {
    Build();
    OpenZones();
  }
  void Poll() {
    std::array<RailEvent, 16> batch;
    const size_t count = transport_->Poll(absl::Milliseconds(1), absl::MakeSpan(batch));
    events_.insert(events_.end(), batch.begin(), batch.begin() + static_cast<ptrdiff_t>(count));
  }
  bool Until(const std::function<bool()>& done) {
    return testing::Until(done, [this] { Poll(); });
  }
  size_t Count(Kind kind) const {
    return static_cast<size_t>(
        std::count_if(events_.begin(), events_.end(), [&](const RailEvent& e) { return e.kind == kind; }));
  }
  const RailCounters& Counters() const { return *transport_->Info().counters; }
  uint64_t ProtocolErrors() const { return Counters().protocol_errors.load(); }
  uint64_t Refused() const { return Counters().refused_connections.load(); }
  uint64_t Landed() const { return Counters().rx_chunks.load(); }

  // Takes the victim's dial and reads its HELLO.
  void TakeDial(UniqueFd* fd, std::array<std::byte, kHelloBytes>* hello) {
    ASSERT_TRUE(Until([&] {
      *fd = UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      return fd->valid();
    }));
    size_t have = 0;
    ASSERT_TRUE(Until([&] {
      const ssize_t got = Read(*fd, absl::MakeSpan(*hello).subspan(have));
      if (got > 0) have += static_cast<size_t>(got);
      return have == hello->size();
    }));
  }
  UniqueFd Connect() {
    int error = 0;
    UniqueFd fd =
        StartConnect(ParseAddress("127.0.0.1").value(), ParseAddress(transport_->Info().address).value(), {}, &error);
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
  static Hello GoodHello(uint64_t generation) {
    Hello hello;
    hello.boot = 2;
    hello.expected_boot = 1;
    hello.generation = generation;
    hello.node = "evil";
    hello.expected_node = "victim";
    return hello;
  }
  // A HELLO and its answer, as they were on the wire.
  struct Spoken {
    std::array<std::byte, kHelloBytes> hello{};
    std::array<std::byte, kAnswerBytes> in{};
    Answer answer;
    std::vector<std::byte> ProofWith(const DataKey& key) const {
      std::vector<std::byte> out(kProofBytes);
      EncodeProof({ProofMac(key, hello, in)}, absl::MakeSpan(out));
      return out;
    }
  };
  Spoken Speak(const UniqueFd& fd, const Hello& hello) {
    Spoken spoken;
    EncodeHello(hello, absl::MakeSpan(spoken.hello));
    Send(fd, spoken.hello);
    size_t have = 0;
    EXPECT_TRUE(Until([&] {
      const ssize_t got = Read(fd, absl::MakeSpan(spoken.in).subspan(have));
      if (got > 0) have += static_cast<size_t>(got);
      return have == spoken.in.size();
    }));
    EXPECT_TRUE(DecodeAnswer(spoken.in, &spoken.answer));
    return spoken;
  }
  // The whole handshake, unless it is refused.
  Answer Greet(const UniqueFd& fd, const Hello& hello) {
    const Spoken spoken = Speak(fd, hello);
    if (spoken.answer.refusal == Refusal::kNone) Send(fd, spoken.ProofWith(kKey));
    return spoken.answer;
  }
  // Answers a dial as the peer would.
  void AnswerDial(const UniqueFd& fd, const std::array<std::byte, kHelloBytes>& hello, const DataKey& key = kKey,
                  uint64_t features = 0, uint32_t max_frame_bytes = kLeastMaxFrameBytes) {
    Answer answer;
    answer.boot = 2;
    answer.node = "evil";
    answer.max_frame_bytes = max_frame_bytes;
    answer.features = features;
    std::array<std::byte, kAnswerBytes> bytes;
    EncodeAnswer(answer, absl::MakeSpan(bytes));
    answer.mac = AnswerMac(key, hello, bytes);
    EncodeAnswer(answer, absl::MakeSpan(bytes));
    Send(fd, bytes);
  }
  UniqueFd Enter(uint64_t generation) {
    UniqueFd fd = Connect();
    EXPECT_EQ(Greet(fd, GoodHello(generation)).refusal, Refusal::kNone);
    return fd;
  }
  // A stream of 100 bytes at 1,000 of segment_; zone_ of the peer, other_ of somebody else.
  void OpenZones() {
    segment_ = testing::MakeSegment(8192);
    const auto open = [&](PeerIndex peer) {
      auto zone = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
      zone->peer = peer;
      testing::Append(&zone->memory, segment_, 1000, 100);
      zones_.Open(zone);
      return zone;
    };
    zone_ = open(PeerIndex(4));
    other_ = open(PeerIndex(5));
  }
  static std::vector<std::byte> Frame(const FrameHeader& header, FrameTrailer trailer) {
    std::vector<std::byte> bytes(kHeaderBytes + header.length_bytes + kTrailerBytes, std::byte('x'));
    EncodeHeader(header, bytes.data());
    EncodeTrailer(trailer, bytes.data() + kHeaderBytes + header.length_bytes);
    return bytes;
  }
  FrameHeader Header(uint64_t generation, uint64_t number, uint64_t offset, uint32_t length) const {
    return {
        .generation = generation, .number = number, .zone = zone_->ref, .offset_bytes = offset, .length_bytes = length};
  }
  FrameHeader Fence(uint64_t generation, uint64_t number, uint8_t weight, uint32_t round) const {
    return {.generation = generation, .number = number, .zone = zone_->ref, .round = round, .weight = weight};
  }
  static std::vector<std::byte> Encoded(const FrameHeader& header) {
    std::vector<std::byte> bytes(kHeaderBytes);
    EncodeHeader(header, bytes.data());
    return bytes;
  }
  // The next acknowledgement.
  AckRecord ReadAck(const UniqueFd& fd) {
    std::array<std::byte, kAckBytes> bytes;
    AckRecord ack;
    EXPECT_TRUE(Until([&] { return Read(fd, absl::MakeSpan(bytes)) == kAckBytes; }));
    EXPECT_TRUE(DecodeAck(bytes.data(), &ack));
    return ack;
  }
  // The victim closes the connection, counts it, and says who it was.
  void ExpectBad(const UniqueFd& fd) {
    EXPECT_TRUE(IsClosed(fd));
    EXPECT_TRUE(Until([&] { return Count(Kind::kBadPeer) == ProtocolErrors(); }));
    EXPECT_EQ(events_.back().peer, PeerIndex(4));
  }

  ZoneTable zones_;
  std::vector<std::string> notices_;
  std::unique_ptr<RailTransport> transport_;
  UniqueFd listener_;
  std::shared_ptr<const Segment> segment_;
  std::shared_ptr<ReceiveZone> zone_, other_;
  std::vector<RailEvent> events_;
};

}  // namespace railsd::tcp

#endif  // RAILSD_TESTS_UNIT_AGENT_TRANSPORT_TCP_HOSTILE_FIXTURE_H_
