// Handshakes that no railsd would make: refused, counted, and without harm to living connections.
#include "absl/strings/str_cat.h"
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
  EXPECT_THAT(notices_[0], ::testing::HasSubstr("sent no HELLO"));
}

TEST_F(TcpHostileTest, ATruncatedHelloRunsOutOfTime) {
  Build([](TcpOptions* options) { options->handshake_time = absl::Seconds(1); });
  UniqueFd fd = Connect();
  std::array<std::byte, kHelloBytes> bytes;
  EncodeHello(GoodHello(1), absl::MakeSpan(bytes));
  Send(fd, absl::MakeSpan(bytes).first(kHelloBytes - 1));
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_GE(Refused(), 1u);
}

TEST_F(TcpHostileTest, RefusalsSayWhy) {
  Build();
  const auto refusal = [&](const std::function<void(Hello*)>& change) {
    Hello hello = GoodHello(1);
    change(&hello);
    UniqueFd fd = Connect();
    const Answer answer = Greet(fd, hello);
    EXPECT_TRUE(IsClosed(fd));
    EXPECT_EQ(answer.node, "victim");
    return answer.refusal;
  };
  EXPECT_EQ(refusal([](Hello* h) { h->version_min = h->version_max = kProtocolVersion + 1; }), Refusal::kWrongVersion);
  EXPECT_EQ(refusal([](Hello* h) { h->version_min = h->version_max = kProtocolVersion - 1; }), Refusal::kWrongVersion);
  EXPECT_EQ(refusal([](Hello* h) { h->node = "stranger"; }), Refusal::kUnknownNode);
  EXPECT_EQ(refusal([](Hello* h) { h->boot = 3; }), Refusal::kWrongBoot);
  EXPECT_EQ(refusal([](Hello* h) { h->expected_boot = 3; }), Refusal::kNotMe);
  EXPECT_EQ(refusal([](Hello* h) { h->expected_node = "other"; }), Refusal::kNotMe);
  EXPECT_EQ(refusal([](Hello* h) { h->rail = 1; }), Refusal::kWrongRail);
  EXPECT_EQ(Refused(), 7u);
  ASSERT_FALSE(notices_.empty());
  EXPECT_THAT(notices_[0], ::testing::AllOf(::testing::HasSubstr("victim"), ::testing::HasSubstr("evil")));
}

TEST_F(TcpHostileTest, AGenerationThatIsNotNewIsRefused) {
  Build();
  UniqueFd present = Enter(5);
  for (const uint64_t generation : {5, 4, 0}) {
    UniqueFd late = Connect();
    EXPECT_EQ(Greet(late, GoodHello(generation)).refusal, Refusal::kStale) << generation;
  }
  UniqueFd newer = Enter(6);
  EXPECT_TRUE(IsClosed(present)) << "replaced";
  newer.Reset();
  for (int i = 0; i < 20; ++i) Poll();
  UniqueFd again = Connect();
  EXPECT_EQ(Greet(again, GoodHello(6)).refusal, Refusal::kStale) << "it is over";
  EXPECT_EQ(Refused(), 4u);
  EXPECT_EQ(Count(Kind::kBadPeer), 0u);
}

// Two connections of one generation: whose proof comes first has it.
TEST_F(TcpHostileTest, AProofThatAnotherHasOvertakenIsTooLate) {
  Build();
  UniqueFd first = Connect(), second = Connect();
  const Spoken of_first = Speak(first, GoodHello(7));
  const Spoken of_second = Speak(second, GoodHello(7));
  Send(second, of_second.ProofWith(kKey));
  for (int i = 0; i < 20; ++i) Poll();
  Send(first, of_first.ProofWith(kKey));
  EXPECT_TRUE(IsClosed(first));
  EXPECT_EQ(Refused(), 1u);
  OpenZones();
  Send(second, Frame(Header(7, 0, 0, 10), {0, FrameStatus::kOk}));
  EXPECT_TRUE(Until([&] { return Landed() == 1; }));
}

TEST_F(TcpHostileTest, AForgedProofIsRefusedAndCounted) {
  BuildWithZones();
  UniqueFd honest = Enter(1);
  uint64_t generation = 2;
  for (const DataKey& guess : {DataKey{}, DataKey{1, 2, 4}}) {
    UniqueFd fd = Connect();
    const Spoken spoken = Speak(fd, GoodHello(generation++));
    ASSERT_EQ(spoken.answer.refusal, Refusal::kNone);
    Send(fd, spoken.ProofWith(guess));
    EXPECT_TRUE(IsClosed(fd));
  }
  UniqueFd garbage = Connect();
  Speak(garbage, GoodHello(generation++));
  SendText(garbage, std::string(kProofBytes, 'p'));
  EXPECT_TRUE(IsClosed(garbage));
  EXPECT_EQ(Refused(), 3u);
  EXPECT_EQ(ProtocolErrors(), 3u);
  EXPECT_THAT(notices_, ::testing::Contains(::testing::HasSubstr("says that it is evil and did not prove it")));
  // Whoever is there goes on as if nothing had been: no newer generation was believed.
  Send(honest, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  EXPECT_TRUE(Until([&] { return Landed() == 1; }));
  EXPECT_EQ(Count(Kind::kBadPeer), 0u);
}

// The peer's link got another key, or was lost and came back with another one, after the HELLO was answered.
TEST_F(TcpHostileTest, AProofWithTheKeyOfAnEarlierLinkIsRefused) {
  BuildWithZones();
  const std::string address = LocalAddressOf(listener_.get())->ToString();
  uint64_t generation = 1;
  DataKey key = kKey;
  for (const bool removed : {false, true}) {
    UniqueFd fd = Connect();
    const Spoken spoken = Speak(fd, GoodHello(generation));
    ASSERT_EQ(spoken.answer.refusal, Refusal::kNone);
    std::vector<std::byte> bytes = spoken.ProofWith(key);
    const std::vector<std::byte> frame = Frame(Header(generation, 0, 0, 50), {0, FrameStatus::kOk});
    bytes.insert(bytes.end(), frame.begin(), frame.end());
    ++generation;
    ++key[0];
    if (removed) transport_->RemovePeer(PeerIndex(4));
    transport_->SetPeer({PeerIndex(4), "evil", BootId(2), address, key});
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);  // fails when the connection is closed already
    EXPECT_TRUE(Until([&] { return Landed() > 0 || Read(fd, absl::MakeSpan(bytes)) == 0; }));
    EXPECT_EQ(Landed(), 0u);
  }
  UniqueFd fd = Connect();
  const Spoken spoken = Speak(fd, GoodHello(generation));
  Send(fd, spoken.ProofWith(key));
  Send(fd, Frame(Header(generation, 0, 0, 50), {0, FrameStatus::kOk}));
  EXPECT_TRUE(Until([&] { return Landed() == 1; }));
}

// All that an honest caller ever sent, sent again by somebody who has recorded it.
TEST_F(TcpHostileTest, AReplayedHandshakeIsRefused) {
  Build();
  std::vector<std::byte> hello, proof;
  {
    UniqueFd fd = Connect();
    const Spoken spoken = Speak(fd, GoodHello(7));
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
  Enter(7);
}

TEST_F(TcpHostileTest, AProofIsForItsOwnConnection) {
  Build();
  UniqueFd first = Connect(), second = Connect();
  const Spoken of_first = Speak(first, GoodHello(1));
  const Spoken of_second = Speak(second, GoodHello(2));
  Send(first, of_second.ProofWith(kKey));
  Send(second, of_first.ProofWith(kKey));
  EXPECT_TRUE(IsClosed(first));
  EXPECT_TRUE(IsClosed(second));
  EXPECT_EQ(Refused(), 2u);
}

TEST_F(TcpHostileTest, ATruncatedProofRunsOutOfTime) {
  Build([](TcpOptions* options) { options->handshake_time = absl::Seconds(1); });
  UniqueFd fd = Connect();
  const Spoken spoken = Speak(fd, GoodHello(1));
  const std::vector<std::byte> proof = spoken.ProofWith(kKey);
  Send(fd, absl::MakeConstSpan(proof).first(kProofBytes - 1));
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_GE(Refused(), 1u);
}

// The other side of it: what answers at the peer's address does not have the key.
TEST_F(TcpHostileTest, AnAnswerThatProvesNothingIsNotBelieved) {
  Build();
  UniqueFd fd;
  std::array<std::byte, kHelloBytes> hello;
  ASSERT_NO_FATAL_FAILURE(TakeDial(&fd, &hello));
  AnswerDial(fd, hello, DataKey{});
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_EQ(ProtocolErrors(), 1u);
  EXPECT_THAT(notices_, ::testing::Contains(::testing::HasSubstr("did not prove that it is that node")));
  EXPECT_EQ(Count(Kind::kPeerUp), 0u);
}

// Frames of one byte would cost a sender a thousand times the processor time.
TEST_F(TcpHostileTest, AReceiverThatTakesShortFramesOnlyIsRefused) {
  Build([](TcpOptions* options) { options->min_back_off = options->max_back_off = absl::Milliseconds(1); });
  uint64_t refused = 0;
  for (const uint32_t most : {0u, 1u, kLeastMaxFrameBytes - 1}) {
    UniqueFd fd;
    std::array<std::byte, kHelloBytes> hello;
    ASSERT_NO_FATAL_FAILURE(TakeDial(&fd, &hello));
    AnswerDial(fd, hello, kKey, 0, most);
    ASSERT_TRUE(Until([&] { return ProtocolErrors() + Count(Kind::kPeerUp) > refused; }));
    EXPECT_EQ(ProtocolErrors(), ++refused);
    EXPECT_THAT(notices_, ::testing::Contains(::testing::HasSubstr(absl::StrCat("frames of ", most, " bytes"))));
  }
  EXPECT_EQ(Count(Kind::kPeerUp), 0u);
  UniqueFd fd;
  std::array<std::byte, kHelloBytes> hello;
  ASSERT_NO_FATAL_FAILURE(TakeDial(&fd, &hello));
  AnswerDial(fd, hello, kKey, 0, kLeastMaxFrameBytes);
  EXPECT_TRUE(Until([&] { return Count(Kind::kPeerUp) == 1; }));
}

TEST_F(TcpHostileTest, AFloodDoesNotPushOutWhoSpeaks) {
  Build([](TcpOptions* options) {
    options->max_half_open = 8;
    options->handshake_time = absl::Minutes(1);
  });
  UniqueFd spoken = Connect();
  const Spoken of_spoken = Speak(spoken, GoodHello(1));
  UniqueFd late = Connect();
  std::array<std::byte, kHelloBytes> hello;
  EncodeHello(GoodHello(2), absl::MakeSpan(hello));
  Send(late, hello);  // not looked at before the flood has come
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(Connect());
  ASSERT_TRUE(Until([&] { return Refused() >= 44; }));
  Spoken of_late;
  of_late.hello = hello;
  ASSERT_TRUE(Until([&] { return Read(late, absl::MakeSpan(of_late.in)) == static_cast<ssize_t>(kAnswerBytes); }));
  OpenZones();
  Send(spoken, of_spoken.ProofWith(kKey));
  Send(spoken, Frame(Header(1, 0, 0, 10), {0, FrameStatus::kOk}));
  EXPECT_TRUE(Until([&] { return Landed() == 1; }));
  Send(late, of_late.ProofWith(kKey));
  Send(late, Frame(Header(2, 0, 0, 10), {0, FrameStatus::kOk}));
  EXPECT_TRUE(Until([&] { return Landed() == 2; }));
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
  ASSERT_TRUE(Until([&] { return Refused() >= 92; }));
  EXPECT_EQ(Refused(), 92u);
  EXPECT_EQ(refused->Read(Limit::kHalfOpen), 92u);
  Enter(1);  // an honest peer still gets in
}

}  // namespace
}  // namespace railsd::tcp
