// Connections that break at any byte: which orders come back how, and what the receiver takes of what came.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/seeds.h"
#include "tests/unit/agent/transport/tcp_hostile_fixture.h"

namespace railsd::tcp {
namespace {

// The victim receives: two frames, with a fence behind each, are cut after every byte.
TEST_F(TcpHostileTest, OnlyWholeFramesAndFencesCountWhereverTheyAreCut) {
  BuildWithZones();
  constexpr uint32_t kFirst = 40, kSecond = 30;
  // Where what has landed and what was published change.
  constexpr size_t kFirstLands = kHeaderBytes + kFirst + kTrailerBytes;
  constexpr size_t kFirstFence = kFirstLands + kHeaderBytes;
  constexpr size_t kSecondLands = kFirstFence + kHeaderBytes + kSecond + kTrailerBytes;
  constexpr size_t kSecondFence = kSecondLands + kHeaderBytes;
  uint64_t landed = 0, fences = 0;
  for (size_t cut = 0; cut <= kSecondFence; ++cut) {
    const uint64_t generation = cut + 1;
    std::vector<std::byte> bytes;
    const auto add = [&](const std::vector<std::byte>& more) { bytes.insert(bytes.end(), more.begin(), more.end()); };
    add(Frame(Header(generation, 0, 0, kFirst), {0, FrameStatus::kOk}));
    add(Encoded(Fence(generation, 1, 100, 0)));
    add(Frame(Header(generation, 2, kFirst, kSecond), {2, FrameStatus::kOk}));
    add(Encoded(Fence(generation, 3, 155, 0)));
    const UniqueFd fd = Enter(generation);
    Send(fd, absl::MakeConstSpan(bytes).first(cut));
    ASSERT_EQ(::shutdown(fd.get(), SHUT_WR), 0);
    ASSERT_TRUE(IsClosed(fd));
    landed += (cut >= kFirstLands ? kFirst : 0) + (cut >= kSecondLands ? kSecond : 0);
    fences += (cut >= kFirstFence ? 1 : 0) + (cut >= kSecondFence ? 1 : 0);
    EXPECT_EQ(zone_->landed[0].bytes(), landed) << cut;
    EXPECT_EQ(Counters().rx_fences.load(), fences) << cut;
  }
  ASSERT_TRUE(Until([&] { return Count(Kind::kFence) == fences; }));
  EXPECT_EQ(ProtocolErrors(), 0u);
  EXPECT_EQ(Count(Kind::kZoneClosed), 0u);
  EXPECT_TRUE(zones_.Close(zone_->ref)) << "nobody was left inside";
}

// The victim sends: what is acknowledged is cut after every byte. The fourth order is longer than all that may be under
// way, so nothing of the fifth is handed to a socket.
TEST_F(TcpHostileTest, OrdersComeBackByWhatWasAcknowledgedWhereverThatIsCut) {
  Build([](TcpOptions* options) { options->min_back_off = options->max_back_off = absl::Milliseconds(1); });
  SendStream stream{.job = JobTag(1), .peer = PeerIndex(4), .memory = {}, .zone = {1, 1}};
  const auto segment = testing::MakeSegment(1 << 20);
  for (int i = 0; i < 64; ++i) testing::Append(&stream.memory, segment, 0, 1 << 20);
  std::vector<SendOrder> orders{
      {.stream = &stream, .length_bytes = 1000, .cookie = 0, .weight = 1},
      {.stream = &stream, .length_bytes = 1000, .cookie = 1},
      {.stream = &stream, .cookie = 2, .weight = 2},
      {.stream = &stream, .length_bytes = 64 << 20, .cookie = 3},
      {.stream = &stream, .length_bytes = 1000, .cookie = 4, .weight = 3},
  };
  constexpr size_t kRecords = 4;
  for (size_t cut = 0; cut <= kRecords * kAckBytes; ++cut) {
    events_.clear();
    UniqueFd fd;
    std::array<std::byte, kHelloBytes> said;
    ASSERT_NO_FATAL_FAILURE(TakeDial(&fd, &said));
    Hello hello;
    ASSERT_TRUE(DecodeHello(said, &hello));
    AnswerDial(fd, said);
    ASSERT_TRUE(Until([&] { return Count(Kind::kPeerUp) == 1; }));
    EXPECT_EQ(events_.back().connection, hello.generation);
    for (SendOrder& order : orders) order.connection = hello.generation;
    ASSERT_EQ(transport_->Post(orders), orders.size());
    Poll();
    std::array<std::byte, kRecords * kAckBytes> acks;
    EncodeAck({true, FrameStatus::kOk, hello.generation, 1}, acks.data());  // the bytes of the first order
    EncodeAck({false, FrameStatus::kZoneClosed, hello.generation, 2}, acks.data() + kAckBytes);
    EncodeAck({true, FrameStatus::kOk, hello.generation, 3}, acks.data() + 2 * kAckBytes);
    EncodeAck({true, FrameStatus::kOk, hello.generation, 4}, acks.data() + 3 * kAckBytes);
    Send(fd, absl::MakeConstSpan(acks).first(cut));
    ASSERT_EQ(::shutdown(fd.get(), SHUT_WR), 0);
    ASSERT_TRUE(Until([&] { return Count(Kind::kPeerDown) == 1; }));
    EXPECT_EQ(events_.back().kind, Kind::kPeerDown) << "after all orders";
    EXPECT_EQ(events_.back().connection, hello.generation);
    std::map<uint64_t, SendResult> results;
    for (const RailEvent& event : events_) {
      if (event.kind == Kind::kSendDone) results[event.cookie] = event.result;
    }
    const size_t whole = cut / kAckBytes;
    const std::map<uint64_t, SendResult> expected{{0, whole >= 3 ? SendResult::kAcknowledged : SendResult::kRailFailed},
                                                  {1, whole >= 3 ? SendResult::kZoneClosed : SendResult::kRailFailed},
                                                  {2, whole >= 4 ? SendResult::kAcknowledged : SendResult::kRailFailed},
                                                  {3, SendResult::kRailFailed},
                                                  {4, SendResult::kNotSent}};
    EXPECT_EQ(results, expected) << cut;
    EXPECT_EQ(Counters().posted_bytes.load(), 0u);
  }
  EXPECT_EQ(ProtocolErrors(), 0u);
}

// Carries connections to a port and cuts all of them when so many bytes have gone through.
class CuttingProxy {
 public:
  explicit CuttingProxy(const std::string& target) : target_(ParseAddress(target).value()) {
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

class TcpCutTest : public ::testing::Test {
 protected:
  static constexpr PeerIndex kA{1}, kB{2};
  static constexpr uint64_t kBytes = 4 << 20;
  static constexpr uint64_t kOrderBytes = 256 << 10;
  struct End {
    ZoneTable zones;
    std::unique_ptr<RailTransport> transport;
  };

  void SetUp() override {
    Build(a_, "a", 1);
    Build(b_, "b", 2);
    proxy_ = std::make_unique<CuttingProxy>(b_.transport->Info().address);
    a_.transport->SetPeer({kB, "b", BootId(2), proxy_->address()});
    b_.transport->SetPeer({kA, "a", BootId(1), a_.transport->Info().address});
    segment_ = testing::MakeSegment(2 * kBytes);
    zone_->peer = kA;
    testing::Append(&zone_->memory, segment_, kBytes, kBytes);
    b_.zones.Open(zone_);
    stream_.zone = zone_->ref;
    testing::Append(&stream_.memory, segment_, 0, kBytes);
    std::mt19937_64 random(7);
    testing::WriteAll(stream_.memory, testing::RandomBytes(kBytes, random));
    ASSERT_TRUE(Until([&] { return up_; }));
  }
  static void Build(End& end, const std::string& node, uint64_t boot) {
    TcpOptions options;
    options.node = node;
    options.boot = BootId(boot);
    options.zones = &end.zones;
    options.listen_address = "127.0.0.1";
    options.frame_bytes = 64 << 10;
    options.min_back_off = options.max_back_off = absl::Milliseconds(1);
    end.transport = CreateTcpTransport(options).value();
  }
  template <typename Take>
  static void PollEnd(End& end, const Take& take) {
    std::array<RailEvent, 64> batch;
    const size_t count = end.transport->Poll(absl::Milliseconds(1), absl::MakeSpan(batch));
    for (size_t i = 0; i < count; ++i) take(batch[i]);
  }
  void Poll() {
    PollEnd(b_, [&](const RailEvent& event) { AtReceiver(event); });
    PollEnd(a_, [&](const RailEvent& event) { AtSender(event); });
  }
  bool Until(const std::function<bool()>& done) {
    return testing::Until(done, [this] { Poll(); });
  }
  // Each attempt is a round of its own, so that its fence can be told from those of others.
  void Post(uint64_t offset) {
    const uint32_t attempt = next_attempt_++;
    under_way_[attempt] = offset;
    const SendOrder order{.stream = &stream_,
                          .offset_bytes = offset,
                          .length_bytes = kOrderBytes,
                          .cookie = attempt,
                          .connection = connection_,
                          .weight = 1,
                          .round = attempt};
    ASSERT_EQ(a_.transport->Post({&order, 1}), 1u);
  }
  void AtReceiver(const RailEvent& event) {
    if (event.kind != Kind::kFence) return;
    EXPECT_EQ(event.zone, zone_->ref);
    fenced_.insert(event.round);
    const uint64_t offset = offset_of_[event.round];
    EXPECT_EQ(std::memcmp(segment_->base() + offset, segment_->base() + kBytes + offset, kOrderBytes), 0)
        << "a fence before its bytes";
  }
  void AtSender(const RailEvent& event) {
    if (event.kind == Kind::kPeerUp || event.kind == Kind::kPeerDown) {
      up_ = event.kind == Kind::kPeerUp;
      if (up_) {
        EXPECT_GT(event.connection, connection_) << "numbers rise";
      } else {
        EXPECT_EQ(event.connection, connection_);
        EXPECT_TRUE(under_way_.empty()) << "orders come back before";
        for (const uint64_t offset : lost_) offsets_.push_back(offset);
        lost_.clear();
      }
      connection_ = event.connection;
    }
    if (event.kind != Kind::kSendDone) return;
    const auto attempt = static_cast<uint32_t>(event.cookie);
    const uint64_t offset = under_way_.at(attempt);
    under_way_.erase(attempt);
    results_[attempt] = event.result;
    if (event.result != SendResult::kAcknowledged) lost_.push_back(offset);
  }
  void PostAll() {
    while (up_ && !offsets_.empty()) {
      offset_of_[next_attempt_] = offsets_.back();
      Post(offsets_.back());
      offsets_.pop_back();
    }
  }

  End a_, b_;
  std::unique_ptr<CuttingProxy> proxy_;
  std::shared_ptr<const Segment> segment_;
  SendStream stream_{.job = JobTag(1), .peer = kB, .memory = {}, .zone = {}};
  std::shared_ptr<ReceiveZone> zone_ = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
  bool up_ = false;
  uint64_t connection_ = 0;
  uint32_t next_attempt_ = 0;
  std::vector<uint64_t> offsets_, lost_;                // to be posted; back from a connection that is about to end
  std::map<uint32_t, uint64_t> offset_of_, under_way_;  // offsets by attempt
  std::map<uint32_t, SendResult> results_;
  std::set<uint32_t> fenced_;
};

// Cut after any number of bytes, again and again, with all that did not arrive posted again.
TEST_F(TcpCutTest, WhatIsAcknowledgedHasArrivedAndWhatWasNotSentHasNot) {
  std::mt19937_64 random = testing::SeededRandom();
  constexpr uint64_t kCuts = 16;
  for (uint64_t cuts = 0; cuts < kCuts; ++cuts) {
    testing::WriteAll(zone_->memory, std::string(kBytes, '\0'));
    for (uint64_t offset = 0; offset < kBytes; offset += kOrderBytes) offsets_.push_back(offset);
    proxy_->CutAfter(1 + random() % (kBytes + 4096));
    ASSERT_TRUE(Until([&] {
      PostAll();
      return offsets_.empty() && lost_.empty() && under_way_.empty() && up_;
    }));
  }
  proxy_->CutAfter(UINT64_MAX);
  EXPECT_GT(proxy_->cuts(), 0u);
  std::map<SendResult, uint64_t> counts;
  for (const auto& [attempt, result] : results_) {
    ++counts[result];
    if (result == SendResult::kRailFailed) continue;  // the fence has come or not
    EXPECT_EQ(fenced_.contains(attempt), result == SendResult::kAcknowledged) << attempt;
  }
  EXPECT_EQ(counts[SendResult::kAcknowledged], kCuts * kBytes / kOrderBytes);
  EXPECT_GT(counts[SendResult::kRailFailed], 0u);
  EXPECT_EQ(results_.size(),
            counts[SendResult::kAcknowledged] + counts[SendResult::kRailFailed] + counts[SendResult::kNotSent]);
  EXPECT_EQ(a_.transport->Info().counters->posted_bytes.load(), 0u);
  EXPECT_EQ(a_.transport->Info().counters->protocol_errors.load(), 0u);
  EXPECT_EQ(b_.transport->Info().counters->protocol_errors.load(), 0u);
}

// The kernel of a peer whose interface was switched off cannot say that its connections have ended.
TEST_F(TcpCutTest, APeerThatHasLostItsLinkIsDialledAnew) {
  const uint64_t before = connection_;
  const RailCounters& counters = *a_.transport->Info().counters;
  RailPeer peer{kB, "b", BootId(2), proxy_->address()};
  a_.transport->SetPeer(peer);
  EXPECT_EQ(counters.disconnects.load(), 0u) << "nothing is new";
  offsets_ = {0, kOrderBytes};
  PostAll();
  peer.ended = before;
  a_.transport->SetPeer(peer);
  a_.transport->SetPeer(peer);
  ASSERT_TRUE(Until([&] { return up_ && connection_ > before; }));
  EXPECT_EQ(counters.disconnects.load(), 1u);
  ASSERT_TRUE(Until([&] {
    PostAll();
    return offsets_.empty() && under_way_.empty() && lost_.empty();
  }));
}

}  // namespace
}  // namespace railsd::tcp
