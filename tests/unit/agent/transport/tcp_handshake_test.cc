// What no railsd would send before that: refused, counted, and without harm to whoever is there.
#include "agent/transport/tcp/recount.h"
#include "tests/unit/agent/transport/tcp_hostile_fixture.h"

namespace railsd::tcp {
namespace {

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
  Build([](TcpOptions* options) { options->handshake_time = absl::Seconds(1); });
  UniqueFd fd = Connect();
  std::array<std::byte, kHelloBytes> bytes;
  EncodeHello(GoodHello(ConnectionKind::kBulk, 1), absl::MakeSpan(bytes));
  Send(fd, absl::MakeSpan(bytes).first(kHelloBytes - 1));
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_GE(transport_->counters().refused_connections.load(), 1u);
}

TEST_F(TcpHostileTest, HalfAPairRunsOutOfTime) {
  Build([](TcpOptions* options) { options->handshake_time = absl::Seconds(1); });
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
  EXPECT_EQ(refusal([](Hello* h) { h->version_min = h->version_max = kProtocolVersion + 1; }), Refusal::kWrongVersion);
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

TEST_F(TcpHostileTest, AForgedProofIsRefusedAndCounted) {
  Build();
  OpenZone();
  Pair honest = Enter(1);
  uint64_t generation = 2;
  for (const DataKey& guess : {DataKey{}, DataKey{1, 2, 4}}) {
    UniqueFd fd = Connect();
    const Spoken spoken = Speak(fd, GoodHello(ConnectionKind::kBulk, generation++));
    ASSERT_EQ(spoken.answer.refusal, Refusal::kNone);
    Send(fd, spoken.ProofWith(guess));
    EXPECT_TRUE(IsClosed(fd));
  }
  UniqueFd garbage = Connect();
  Speak(garbage, GoodHello(ConnectionKind::kBulk, generation++));
  SendText(garbage, std::string(kProofBytes, 'p'));
  EXPECT_TRUE(IsClosed(garbage));
  EXPECT_EQ(Refused(), 3u);
  EXPECT_EQ(ProtocolErrors(), 3u);
  EXPECT_THAT(notices_, ::testing::Contains(::testing::HasSubstr("says that it is evil and did not prove it")));
  // Whoever is there goes on as if nothing had been: no newer generation was believed.
  Send(honest.bulk, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  EXPECT_TRUE(Until([&] { return Count(Kind::kReceived) == 1; }));
  EXPECT_EQ(Count(Kind::kBadPeer), 0u);
}

// All that an honest caller ever sent, sent again by somebody who has recorded it.
TEST_F(TcpHostileTest, AReplayedHandshakeIsRefused) {
  Build();
  std::vector<std::byte> hello, proof;
  {
    UniqueFd bulk = Connect();
    const Spoken spoken = Speak(bulk, GoodHello(ConnectionKind::kBulk, 7));
    hello.assign(spoken.hello.begin(), spoken.hello.end());
    proof = spoken.ProofWith(kKey);
  }
  for (int i = 0; i < 20; ++i) Poll();
  // The generation was never attached, so nothing but the nonce stands against it.
  UniqueFd again = Connect();
  Send(again, hello);
  Send(again, proof);
  EXPECT_TRUE(IsClosed(again));
  EXPECT_EQ(Refused(), 1u);
  EXPECT_EQ(ProtocolErrors(), 1u);
  EXPECT_EQ(Enter(7).generation, 7u);
}

TEST_F(TcpHostileTest, AProofIsForItsOwnConnection) {
  Build();
  UniqueFd bulk = Connect();
  UniqueFd small = Connect();
  const Spoken of_bulk = Speak(bulk, GoodHello(ConnectionKind::kBulk, 1));
  const Spoken of_small = Speak(small, GoodHello(ConnectionKind::kSmall, 1));
  Send(bulk, of_small.ProofWith(kKey));
  Send(small, of_bulk.ProofWith(kKey));
  EXPECT_TRUE(IsClosed(bulk));
  EXPECT_TRUE(IsClosed(small));
  EXPECT_EQ(Refused(), 2u);
}

TEST_F(TcpHostileTest, ATruncatedProofRunsOutOfTime) {
  Build([](TcpOptions* options) { options->handshake_time = absl::Seconds(1); });
  UniqueFd fd = Connect();
  const Spoken spoken = Speak(fd, GoodHello(ConnectionKind::kBulk, 1));
  const std::vector<std::byte> proof = spoken.ProofWith(kKey);
  Send(fd, absl::MakeConstSpan(proof).first(kProofBytes - 1));
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_GE(Refused(), 1u);
}

// The caller's network broke after its proof was sent and before it came: it asks, and what it is told must stay true.
TEST_F(TcpHostileTest, AProofAfterTheQuestionComesTooLate) {
  struct Sink final : SignalSink {
    void Send(PeerIndex, std::string bytes) override { sent.push_back(std::move(bytes)); }
    std::vector<std::string> sent;
  } sink;
  Build([&](TcpOptions* options) { options->signals = &sink; });
  UniqueFd bulk = Connect();
  const Spoken spoken = Speak(bulk, GoodHello(ConnectionKind::kBulk, 7));
  ASSERT_EQ(spoken.answer.refusal, Refusal::kNone);
  transport_->OnSignal(PeerIndex(4), EncodeRecount({Recount::Kind::kAsk, BootId(2), BootId(1), 7, 0}));
  ASSERT_EQ(sink.sent.size(), 1u);
  Recount told;
  ASSERT_TRUE(DecodeRecount(sink.sent[0], &told));
  EXPECT_EQ(told.kind, Recount::Kind::kAnswer);
  EXPECT_EQ(told.generation, 7u);
  EXPECT_EQ(told.frames, 0u);
  Send(bulk, spoken.ProofWith(kKey));
  EXPECT_TRUE(IsClosed(bulk));
  EXPECT_EQ(Refused(), 1u);
  EXPECT_EQ(Enter(8).generation, 8u);
  // Half a pair is answered for, too.
  UniqueFd half = Connect();
  Greet(half, GoodHello(ConnectionKind::kBulk, 9));
  for (int i = 0; i < 20; ++i) Poll();
  transport_->OnSignal(PeerIndex(4), EncodeRecount({Recount::Kind::kAsk, BootId(2), BootId(1), 9, 0}));
  ASSERT_TRUE(DecodeRecount(sink.sent.back(), &told));
  EXPECT_EQ(told.kind, Recount::Kind::kAnswer);
  EXPECT_EQ(told.generation, 9u);
  EXPECT_EQ(told.frames, 0u);
  EXPECT_TRUE(IsClosed(half));
}

// The other side of it: what answers at the peer's address does not have the key.
TEST_F(TcpHostileTest, AnAnswerThatProvesNothingIsNotBelieved) {
  Build();
  UniqueFd fd;
  std::array<std::byte, kHelloBytes> hello;
  ASSERT_NO_FATAL_FAILURE(TakeDial(&fd, &hello));
  Answer answer;
  answer.boot = 2;
  answer.node = "evil";
  answer.max_frame_bytes = 4096;
  std::array<std::byte, kAnswerBytes> bytes;
  EncodeAnswer(answer, absl::MakeSpan(bytes));
  answer.mac = AnswerMac({}, hello, bytes);
  EncodeAnswer(answer, absl::MakeSpan(bytes));
  Send(fd, bytes);
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_EQ(ProtocolErrors(), 1u);
  EXPECT_THAT(notices_, ::testing::Contains(::testing::HasSubstr("did not prove that it is that node")));
  EXPECT_EQ(Count(Kind::kPeerUp), 0u);
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

TEST_F(TcpHostileTest, AFloodDoesNotPushOutWhoSpeaks) {
  Build([](TcpOptions* options) {
    options->max_half_open = 8;
    options->handshake_time = absl::Minutes(1);
  });
  UniqueFd bulk = Connect();
  const Spoken of_bulk = Speak(bulk, GoodHello(ConnectionKind::kBulk, 1));
  UniqueFd small = Connect();
  std::array<std::byte, kHelloBytes> hello;
  EncodeHello(GoodHello(ConnectionKind::kSmall, 1), absl::MakeSpan(hello));
  Send(small, hello);  // not looked at before the flood has come
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(Connect());
  ASSERT_TRUE(Until([&] { return Refused() >= 44; }));
  Spoken of_small;
  of_small.hello = hello;
  ASSERT_TRUE(Until([&] { return Read(small, absl::MakeSpan(of_small.in)) == static_cast<ssize_t>(kAnswerBytes); }));
  Send(bulk, of_bulk.ProofWith(kKey));
  Send(small, of_small.ProofWith(kKey));
  OpenZone();
  Send(bulk, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  EXPECT_TRUE(Until([&] { return Count(Kind::kReceived) == 1; }));
}

TEST_F(TcpHostileTest, AFloodOfIdleConnectionsIsBounded) {
  std::shared_ptr<LimitCounters> refused;
  Build([&](TcpOptions* options) {
    refused = options->refused;
    options->max_half_open = 8;
    options->handshake_time = absl::Minutes(1);
  });
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(Connect());
    Poll();
  }
  ASSERT_TRUE(Until([&] { return transport_->counters().refused_connections.load() >= 92; }));
  EXPECT_EQ(transport_->counters().refused_connections.load(), 92u);
  EXPECT_EQ(refused->Read(Limit::kHalfOpen), 92u);
  Pair pair = Enter(1);  // an honest peer still gets in
}

}  // namespace
}  // namespace railsd::tcp
