// How the connections of a rail share its thread: how long one turn is, and whose turn is next.
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "agent/transport/tcp/tcp_context.h"
#include "agent/transport/tcp/tcp_receiver.h"
#include "agent/transport/tcp/tcp_sender.h"
#include "tests/unit/agent/transport/tcp_hostile_fixture.h"

namespace railsd::tcp {
namespace {

constexpr uint64_t kBudget = 2 << 20;

// One peer's two halves by themselves, at one end of a pair of sockets.
class TcpTurnTest : public TcpHostileTest {
 protected:
  void SetUp() override {
    OpenZones();
    std::array<int, 2> fds;
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
    ours_.Reset(fds[0]);
    theirs_.Reset(fds[1]);
    TcpOptions options;
    options.zones = &zones_;
    options.frame_bytes = 1 << 20;
    context_ = std::make_unique<Context>(options);
    receiver_ = std::make_unique<TcpReceiver>(context_.get(), PeerIndex(4), 1);
  }
  TcpReceiver::Outcome Receive() {
    int error_number = 0;
    return receiver_->Receive(ours_.get(), kBudget, &error_number);
  }

  UniqueFd ours_, theirs_;
  std::unique_ptr<Context> context_;
  std::unique_ptr<TcpReceiver> receiver_;
};

TEST_F(TcpTurnTest, ATurnOfFencesEndsAfter64) {
  for (uint64_t number = 0; number < 100; ++number) Send(theirs_, Encoded(Fence(1, number, 1, 0)));
  EXPECT_EQ(Receive(), TcpReceiver::Outcome::kMore);
  EXPECT_EQ(context_->counters.rx_fences.load(), 64u);
  EXPECT_EQ(Receive(), TcpReceiver::Outcome::kDrained);
  EXPECT_EQ(context_->counters.rx_fences.load(), 100u);
}

// Each frame takes 4 KiB of the 2 MiB.
TEST_F(TcpTurnTest, ATurnOfTinyFramesEndsAfter512) {
  std::vector<std::byte> bytes;
  for (uint64_t number = 0; number < 1000; ++number) {
    const std::vector<std::byte> frame = Frame(Header(1, number, 0, 1), {number, FrameStatus::kOk});
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  Send(theirs_, bytes);
  EXPECT_EQ(Receive(), TcpReceiver::Outcome::kMore);
  const uint64_t landed = context_->counters.rx_chunks.load();
  EXPECT_LE(landed, 512u);
  EXPECT_GE(landed, 500u);
  EXPECT_EQ(Receive(), TcpReceiver::Outcome::kDrained);
  EXPECT_EQ(context_->counters.rx_chunks.load(), 1000u);
}

// The pattern that is quadratic if landed bytes are kept as sorted intervals: every second byte,
// from the last to the first.
TEST_F(TcpTurnTest, ScatteredBytesCostTheEngineNothing) {
  constexpr uint64_t kFrames = 20'000;
  constexpr size_t kTogether = 500;
  auto zone = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
  zone->peer = PeerIndex(4);
  testing::Append(&zone->memory, testing::MakeSegment(2 * kFrames), 0, 2 * kFrames);
  zones_.Open(zone);
  const auto frame = [&](uint64_t number) {
    FrameHeader header = Header(1, number, 2 * (kFrames - 1 - number), 1);
    header.zone = zone->ref;
    return Frame(header, {number, FrameStatus::kOk});
  };
  for (uint64_t number = 0; number < kFrames;) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < kTogether; ++i) {
      const std::vector<std::byte> next = frame(number++);
      bytes.insert(bytes.end(), next.begin(), next.end());
    }
    Send(theirs_, bytes);
    ASSERT_EQ(Receive(), TcpReceiver::Outcome::kDrained);
    ASSERT_EQ(receiver_->SendAcks(ours_.get()), 0);
  }
  EXPECT_EQ(context_->counters.rx_chunks.load(), kFrames);
  EXPECT_EQ(zone->landed[0].bytes(), kFrames);
  EXPECT_EQ(zone->landed[0].runs(), Landing::kMaxRuns) << "what a frame is compared with";
  EXPECT_EQ(context_->events.pushed(), 0u);
}

TEST_F(TcpTurnTest, ATurnOfTinyOrdersEndsAfter512) {
  TcpSender sender(context_.get());
  sender.Start(1, kMaxFrameBytes);
  SendStream stream{.job = JobTag(1), .peer = PeerIndex(4), .memory = {}, .zone = zone_->ref};
  testing::Append(&stream.memory, segment_, 0, 100);
  for (uint64_t i = 0; i < 1000; ++i) {
    context_->events.HoldOrder();
    sender.Add({.stream = &stream, .length_bytes = 1, .cookie = i});
  }
  int error_number = 0;
  EXPECT_EQ(sender.Send(ours_.get(), kBudget, &error_number), TcpSender::Outcome::kMore);
  EXPECT_EQ(context_->counters.tx_frames.load(), 512u);
  EXPECT_EQ(sender.Send(ours_.get(), kBudget, &error_number), TcpSender::Outcome::kIdle);
  EXPECT_EQ(context_->counters.tx_frames.load(), 1000u);
  sender.StopAll();
}

TEST_F(TcpTurnTest, AcknowledgementsAreDueAfter4FramesOr1MiB) {
  constexpr uint32_t kPart = 64 << 10;
  auto zone = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
  zone->peer = PeerIndex(4);
  testing::Append(&zone->memory, testing::MakeSegment(1 << 20), 0, 1 << 20);
  zones_.Open(zone);
  uint64_t number = 0;
  const auto receive = [&](uint32_t length) {
    FrameHeader header = Header(1, number, 0, length);
    header.zone = zone->ref;
    const std::vector<std::byte> frame = Frame(header, {number++, FrameStatus::kOk});
    for (size_t at = 0; at < frame.size(); at += kPart) {
      Send(theirs_, absl::MakeConstSpan(frame).subspan(at, kPart));
      EXPECT_EQ(Receive(), TcpReceiver::Outcome::kDrained);
    }
  };
  const auto acknowledge = [&] {
    EXPECT_EQ(receiver_->SendAcks(ours_.get()), 0);
    EXPECT_FALSE(receiver_->AcksAreDue());
  };
  receive(1 << 20);
  EXPECT_TRUE(receiver_->AcksAreDue());
  acknowledge();
  receive(1 << 19);
  EXPECT_FALSE(receiver_->AcksAreDue());
  receive(1 << 19);
  EXPECT_TRUE(receiver_->AcksAreDue());
  acknowledge();
  for (int i = 0; i < 3; ++i) receive(100);
  EXPECT_FALSE(receiver_->AcksAreDue());
  receive(100);
  EXPECT_TRUE(receiver_->AcksAreDue());
}

// Two peers of one rail: "evil", who never rests, and "good", PeerIndex(5), whose zone other_ is.
class TcpTwoPeersTest : public TcpHostileTest {
 protected:
  void Begin(const std::function<void(TcpOptions*)>& change = [](TcpOptions*) {}) {
    Build(change);
    OpenZones();
    good_listener_ = Listen(ParseAddress("127.0.0.1").value(), {}).value();
    transport_->SetPeer({PeerIndex(5), "good", BootId(3), LocalAddressOf(good_listener_.get())->ToString(), kKey});
    evil_ = Enter(1);
    good_ = Connect();
    Hello hello = GoodHello(1);
    hello.node = "good";
    hello.boot = 3;
    ASSERT_EQ(Greet(good_, hello).refusal, Refusal::kNone);
    for (int i = 0; i < 20; ++i) Poll();  // both are attached
  }
  // Fills the socket of "evil" with frames from `next`, and lets the rail's thread take one turn of each connection.
  void Turn(const std::function<std::vector<std::byte>()>& next) {
    std::array<std::byte, 65536> acks;
    while (Read(evil_, absl::MakeSpan(acks)) > 0) {
    }
    for (;;) {
      while (unsent_.size() < (256 << 10)) {
        const std::vector<std::byte> more = next();
        unsent_.insert(unsent_.end(), more.begin(), more.end());
      }
      const ssize_t sent = ::send(evil_.get(), unsent_.data(), unsent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent <= 0) break;
      unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
    }
    std::array<RailEvent, 256> batch;
    transport_->Poll(absl::ZeroDuration(), absl::MakeSpan(batch));
  }
  std::vector<std::byte> GoodFrame(uint64_t number) const {
    FrameHeader header = Header(1, number, 0, 30);
    header.zone = other_->ref;
    return Frame(header, {number, FrameStatus::kOk});
  }

  UniqueFd good_listener_, evil_, good_;
  uint64_t number_ = 0;  // of the next frame of "evil"

 private:
  std::vector<std::byte> unsent_;
};

// The room for events is what one peer uses up in a turn.
TEST_F(TcpTwoPeersTest, OnePeersFencesDoNotKeepAnotherPeersFramesOut) {
  Begin([](TcpOptions* options) { options->max_receive_events = 4; });
  const auto fence = [&] { return Encoded(Fence(1, number_++, 1, 0)); };
  for (int i = 0; i < 20; ++i) Turn(fence);
  Send(good_, GoodFrame(0));
  for (int i = 0; i < 10; ++i) Turn(fence);
  EXPECT_EQ(Landed(), 1u);
}

// Three frames are not enough to be acknowledged at once, and the rail's thread is never idle.
TEST_F(TcpTwoPeersTest, OnePeersFramesDoNotKeepAnotherPeersAcknowledgementsBack) {
  Begin();
  const auto frame = [&] {
    FrameHeader header = Header(1, number_, 0, 64 << 10);
    header.zone = {65535, 77};
    return Frame(header, {number_++, FrameStatus::kOk});
  };
  for (int i = 0; i < 5; ++i) Turn(frame);
  for (uint64_t number = 0; number < 3; ++number) Send(good_, GoodFrame(number));
  std::array<std::byte, kAckBytes> bytes;
  ssize_t got = -1;
  for (int i = 0; i < 50 && got < 0; ++i) {
    Turn(frame);
    got = Read(good_, absl::MakeSpan(bytes));
  }
  ASSERT_EQ(got, static_cast<ssize_t>(kAckBytes));
  AckRecord ack;
  ASSERT_TRUE(DecodeAck(bytes.data(), &ack));
  EXPECT_EQ(ack.number, 3u);
}

}  // namespace
}  // namespace railsd::tcp
