// Connections that break in the middle: what arrived is known, what did not may go another way, and nobody can lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/transport/tcp/recount.h"
#include "agent/transport/tcp/tcp_socket.h"
#include "agent/transport/tcp/tcp_transport.h"
#include "tests/support/seeds.h"
#include "tests/support/test_memory.h"
#include "tests/support/until.h"

namespace railsd::tcp {
namespace {

using Kind = RailEvent::Kind;

TEST(RecountTest, SurvivesItsEncoding) {
  for (const auto kind : {Recount::Kind::kAsk, Recount::Kind::kAnswer, Recount::Kind::kUnknown}) {
    const uint64_t frames = kind == Recount::Kind::kAnswer ? 77 : 0;
    const Recount sent{kind, BootId(0xfedcba9876543210), BootId(2), 3, frames};
    Recount back;
    ASSERT_TRUE(DecodeRecount(EncodeRecount(sent), &back));
    EXPECT_EQ(std::tie(back.kind, back.from, back.to, back.generation, back.frames),
              std::tie(sent.kind, sent.from, sent.to, sent.generation, sent.frames));
  }
}

TEST(RecountTest, RefusesWhatItCannotHaveEncoded) {
  const std::string good = EncodeRecount({Recount::Kind::kAsk, BootId(1), BootId(2), 3, 0});
  Recount out;
  for (size_t length = 0; length < good.size(); ++length) EXPECT_FALSE(DecodeRecount(good.substr(0, length), &out));
  EXPECT_FALSE(DecodeRecount(good + "x", &out));
  for (size_t bit = 0; bit < 64; ++bit) {  // kind, layout and magic
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(DecodeRecount(bad, &out), bit == 1) << bit;  // 1 ^ 2: kUnknown
  }
  EXPECT_FALSE(DecodeRecount(EncodeRecount({Recount::Kind::kAsk, BootId(1), BootId(2), 3, 9}), &out));
}

// Carries connections to a port and cuts all of them when so many bytes have gone through.
class CuttingProxy {
 public:
  explicit CuttingProxy(std::string target) : target_(ParseAddress(target).value()) {
    listener_ = Listen(ParseAddress("127.0.0.1").value(), {}).value();
    thread_ = std::thread([this] { Run(); });
  }
  ~CuttingProxy() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return LocalAddressOf(listener_.get())->ToString(); }
  void CutAfter(uint64_t bytes) { left_ = bytes; }
  uint64_t cuts() const { return cuts_; }

 private:
  struct Leg {
    UniqueFd in, out;
  };
  void Run() {
    while (!stop_) {
      std::vector<pollfd> ready{{listener_.get(), POLLIN, 0}};
      for (const Leg& leg : legs_) {
        ready.push_back({leg.in.get(), POLLIN, 0});
        ready.push_back({leg.out.get(), POLLIN, 0});
      }
      if (::poll(ready.data(), ready.size(), 5) <= 0) continue;
      if (ready[0].revents != 0) Accept();
      for (size_t i = 1; i < ready.size(); ++i) {
        Leg& leg = legs_[(i - 1) / 2];
        if (ready[i].revents != 0 && !Carry(i % 2 == 1 ? leg.in : leg.out, i % 2 == 1 ? leg.out : leg.in)) {
          legs_.clear();
          break;
        }
      }
    }
  }
  void Accept() {
    Leg leg;
    leg.in.Reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    int error = 0;
    leg.out = StartConnect(ParseAddress("127.0.0.1").value(), target_, {}, &error);
    if (!leg.in.valid() || !leg.out.valid()) return;
    pollfd ready{leg.out.get(), POLLOUT, 0};
    if (::poll(&ready, 1, 5000) == 1) legs_.push_back(std::move(leg));
  }
  // False: everything is to be cut.
  bool Carry(const UniqueFd& from, const UniqueFd& to) {
    std::array<char, 65536> bytes;
    const ssize_t got = ::recv(from.get(), bytes.data(), std::min<uint64_t>(bytes.size(), left_), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN;
    for (ssize_t sent = 0; sent < got;) {
      const ssize_t n = ::send(to.get(), bytes.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (n < 0 && errno == EAGAIN) {
        pollfd ready{to.get(), POLLOUT, 0};
        ::poll(&ready, 1, 100);
        if (stop_) return false;
        continue;
      }
      if (n <= 0) return false;
      sent += n;
    }
    left_ -= static_cast<uint64_t>(got);
    if (got > 0 && left_ > 0) return true;
    ++cuts_;
    left_ = UINT64_MAX;
    return false;
  }

  SocketAddress target_;
  UniqueFd listener_;
  std::vector<Leg> legs_;
  std::atomic<uint64_t> left_{UINT64_MAX}, cuts_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class TcpRecountTest : public ::testing::Test {
 protected:
  struct End final : SignalSink {
    void Send(PeerIndex, std::string bytes) override { signals.push_back(std::move(bytes)); }
    std::deque<std::string> signals;  // to the other end
    std::vector<RailEvent> events;
    std::unique_ptr<RailTransport> transport;
  };

  void SetUp() override {
    Build(a_, "a", 1);
    Build(b_, "b", 2);
    proxy_ = std::make_unique<CuttingProxy>(b_.transport->LocalAddress());
    a_.transport->SetPeer({kB, "b", BootId(2), proxy_->address()});
    b_.transport->SetPeer({kA, "a", BootId(1), a_.transport->LocalAddress()});
    ASSERT_TRUE(Until([&] { return Count(a_, Kind::kPeerUp) == 1 && Count(b_, Kind::kPeerUp) == 1; }));
    segment_ = testing::MakeSegment(2 * kBytes);
    flow_.memory.Append(segment_, 0, kBytes);
    zone_.Append(segment_, kBytes, kBytes);
    std::mt19937_64 random(7);
    for (char& c : text_) c = static_cast<char>(random());
    testing::WriteAll(flow_.memory, text_);
    auto set = std::make_shared<ReceiveSet>();
    set->peer = kA;
    set->slot = set->generation = 1;
    set->zones = {zone_};
    b_.transport->OpenZones(std::move(set));
  }

  void Build(End& end, const std::string& node, uint64_t boot) {
    TcpOptions options;
    options.node = node;
    options.boot = BootId(boot);
    options.listen_address = "127.0.0.1";
    options.frame_bytes = 64 << 10;
    options.min_back_off = options.max_back_off = absl::Milliseconds(1);
    options.peer_silence = absl::Seconds(2);
    options.answer_patience = answer_patience_;
    options.signals = &end;
    end.transport = CreateTcpTransport(options).value();
  }
  void Poll() {
    for (End* end : {&a_, &b_}) {
      std::array<RailEvent, 64> batch;
      const size_t count = end->transport->Poll(absl::Milliseconds(1), absl::MakeSpan(batch));
      end->events.insert(end->events.end(), batch.begin(), batch.begin() + static_cast<ptrdiff_t>(count));
    }
    if (!carry_) return;
    Carry(a_, b_, kA);
    Carry(b_, a_, kB);
  }
  static void Carry(End& from, End& to, PeerIndex as) {
    while (!from.signals.empty()) {
      to.transport->OnSignal(as, from.signals.front());
      from.signals.pop_front();
    }
  }
  bool Until(const std::function<bool()>& done) {
    return testing::Until(done, [this] { Poll(); });
  }
  static size_t Count(const End& end, Kind kind) {
    return static_cast<size_t>(
        std::count_if(end.events.begin(), end.events.end(), [&](const RailEvent& e) { return e.kind == kind; }));
  }
  void Post(uint64_t offset, uint64_t length) {
    const SendOrder order{&flow_, {1, 1, 0}, offset, length, next_cookie_};
    posted_[next_cookie_++] = {offset, length};
    ASSERT_EQ(a_.transport->Post({&order, 1}), 1u);
  }
  // All of it is under way; then the connection is cut, once some has arrived, and a knows.
  void CutInTheMiddle() {
    carry_ = false;
    proxy_->CutAfter(kBytes / 2);
    Post(0, kBytes);
    ASSERT_TRUE(Until([&] { return Count(a_, Kind::kPeerDown) == 1; }));
    EXPECT_EQ(Count(a_, Kind::kSendDone), 0u) << "what arrived is not known yet";
    EXPECT_EQ(Count(a_, Kind::kPeerUp), 1u) << "nothing is dialled before it is";
    ASSERT_FALSE(a_.signals.empty());
    Recount ask;
    ASSERT_TRUE(DecodeRecount(a_.signals.front(), &ask));
    generation_ = ask.generation;
  }
  void Tell(Recount recount) { a_.transport->OnSignal(kB, EncodeRecount(recount)); }
  void ExpectInDoubt() {
    ASSERT_TRUE(Until([&] { return Count(a_, Kind::kSendDone) == 1; }));
    const auto done =
        std::find_if(a_.events.begin(), a_.events.end(), [](const RailEvent& e) { return e.kind == Kind::kSendDone; });
    EXPECT_EQ(done->result, SendResult::kRailFailed);
    ASSERT_TRUE(Until([&] { return Count(a_, Kind::kPeerUp) == 2; })) << "it connects again all the same";
  }

  absl::Duration answer_patience_ = absl::Seconds(10);
  static constexpr PeerIndex kA{1}, kB{2};
  static constexpr uint64_t kBytes = 4 << 20;
  End a_, b_;
  std::unique_ptr<CuttingProxy> proxy_;
  std::shared_ptr<const Segment> segment_;
  SendFlow flow_{JobTag(1), kB, {}};
  MemoryRanges zone_;
  std::string text_ = std::string(kBytes, '\0');
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> posted_;  // offset and length, by cookie
  uint64_t next_cookie_ = 0;
  uint64_t generation_ = 0;
  bool carry_ = true;
};

// Cut after any number of bytes, again and again: what comes back is posted again, and every byte arrives once.
TEST_F(TcpRecountTest, EveryByteArrivesOnceHoweverOftenTheConnectionIsCut) {
  std::mt19937_64 random = testing::SeededRandom();
  for (uint64_t offset = 0; offset < kBytes; offset += 256 << 10) Post(offset, 256 << 10);
  proxy_->CutAfter(1 + random() % (kBytes / 4));
  uint64_t acknowledged = 0, cuts = 0;
  size_t seen = 0;
  const auto apply = [&](const RailEvent& event) {
    const auto [offset, length] = posted_[event.cookie];
    if (event.result == SendResult::kAcknowledged) {
      acknowledged += length;
    } else {
      ASSERT_EQ(event.result, SendResult::kReturned);
      ASSERT_EQ(event.offset_bytes + event.length_bytes, offset + length);
      ASSERT_GE(event.offset_bytes, offset);
      acknowledged += event.offset_bytes - offset;
      Post(event.offset_bytes, event.length_bytes);
    }
  };
  ASSERT_TRUE(Until([&] {
    for (; seen < a_.events.size(); ++seen) {
      if (a_.events[seen].kind == Kind::kSendDone) apply(RailEvent(a_.events[seen]));
    }
    if (proxy_->cuts() > cuts && ++cuts < 12) proxy_->CutAfter(1 + random() % (kBytes / 4));
    return acknowledged >= kBytes || HasFatalFailure();
  }));
  EXPECT_EQ(acknowledged, kBytes);
  EXPECT_GT(proxy_->cuts(), 0u);
  std::vector<uint8_t> times(kBytes / 1024);
  for (const RailEvent& event : b_.events) {
    if (event.kind != Kind::kReceived) continue;
    ASSERT_EQ(event.offset_bytes % 1024 + event.length_bytes % 1024, 0u);
    for (uint64_t k = 0; k < event.length_bytes / 1024; ++k) ++times[event.offset_bytes / 1024 + k];
  }
  EXPECT_EQ(std::count(times.begin(), times.end(), 1), static_cast<ptrdiff_t>(times.size()));
  EXPECT_TRUE(testing::ReadAll(zone_) == text_);
  EXPECT_EQ(a_.transport->counters().tx_payload_bytes.load(), kBytes);
  EXPECT_EQ(a_.transport->counters().posted_bytes.load(), 0u);
}

TEST_F(TcpRecountTest, ACountThatCannotBeIsAProtocolError) {
  CutInTheMiddle();
  Tell({Recount::Kind::kAnswer, BootId(2), BootId(1), generation_, 1 << 20});
  EXPECT_EQ(a_.transport->counters().protocol_errors.load(), 1u);
  carry_ = true;
  ExpectInDoubt();
  EXPECT_EQ(Count(a_, Kind::kBadPeer), 1u);
}

TEST_F(TcpRecountTest, AReceiverThatHasForgottenLeavesTheOrderInDoubt) {
  CutInTheMiddle();
  Tell({Recount::Kind::kUnknown, BootId(2), BootId(1), generation_, 0});
  carry_ = true;
  ExpectInDoubt();
}

class SilentReceiverTest : public TcpRecountTest {
 protected:
  SilentReceiverTest() { answer_patience_ = absl::Milliseconds(300); }
};

TEST_F(SilentReceiverTest, LeavesTheOrderInDoubt) {
  CutInTheMiddle();
  ExpectInDoubt();
}

TEST_F(TcpRecountTest, WordsOfOthersAndOfOtherConnectionsChangeNothing) {
  CutInTheMiddle();
  const uint64_t refused = a_.transport->counters().refused_connections.load();
  Tell({Recount::Kind::kAnswer, BootId(9), BootId(1), generation_, 1});  // of another life of b
  Tell({Recount::Kind::kAnswer, BootId(2), BootId(9), generation_, 1});  // for another life of a
  a_.transport->OnSignal(PeerIndex(5), EncodeRecount({Recount::Kind::kAnswer, BootId(2), BootId(1), generation_, 1}));
  a_.transport->OnSignal(kB, "nonsense");
  EXPECT_EQ(a_.transport->counters().refused_connections.load(), refused + 4);
  Tell({Recount::Kind::kAnswer, BootId(2), BootId(1), generation_ + 1, 1});
  Poll();
  EXPECT_EQ(Count(a_, Kind::kSendDone), 0u);
  carry_ = true;
  ASSERT_TRUE(Until([&] { return Count(a_, Kind::kSendDone) == 1; }));
}

TEST_F(TcpRecountTest, AnOrderThatIsStoppedInDoubtEndsAtOnce) {
  CutInTheMiddle();
  a_.transport->StopSends(JobTag(1));
  ASSERT_TRUE(Until([&] { return Count(a_, Kind::kSendDone) == 1; }));
  carry_ = true;
  ASSERT_TRUE(Until([&] { return Count(a_, Kind::kPeerUp) == 2; }));
  EXPECT_EQ(Count(a_, Kind::kSendDone), 1u);
}

TEST_F(TcpRecountTest, APeerThatIsRemovedInDoubtLeavesNothing) {
  CutInTheMiddle();
  a_.transport->RemovePeer(kB);
  ASSERT_TRUE(Until([&] { return Count(a_, Kind::kSendDone) == 1; }));
  EXPECT_EQ(a_.transport->counters().posted_bytes.load(), 0u);
}

// The receiver lost the connection and says so; the sender had noticed nothing.
TEST_F(TcpRecountTest, TheReceiversWordEndsTheConnection) {
  Post(0, 1000);  // what comes back proves that the other end has seen the whole pair
  ASSERT_TRUE(Until([&] { return Count(a_, Kind::kSendDone) == 1; }));
  carry_ = false;
  b_.transport->RemovePeer(kA);  // closes its end, and tells
  ASSERT_FALSE(b_.signals.empty());
  Recount told;
  ASSERT_TRUE(DecodeRecount(b_.signals.front(), &told));
  EXPECT_EQ(told.kind, Recount::Kind::kAnswer);
  EXPECT_EQ(told.frames, 1u);
  a_.transport->OnSignal(kB, b_.signals.front());
  std::array<RailEvent, 64> batch;
  const size_t count = a_.transport->Poll(absl::ZeroDuration(), absl::MakeSpan(batch));
  EXPECT_TRUE(std::any_of(batch.begin(), batch.begin() + static_cast<ptrdiff_t>(count),
                          [](const RailEvent& e) { return e.kind == Kind::kPeerDown; }));
}

}  // namespace
}  // namespace railsd::tcp
