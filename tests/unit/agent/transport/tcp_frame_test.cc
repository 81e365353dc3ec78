#include <gtest/gtest.h>

#include <array>

#include "agent/transport/tcp/frame.h"

namespace railsd::tcp {
namespace {

template <size_t kSize, typename Message>
void ExpectEveryFlippedBitIsSeen(std::array<std::byte, kSize> bytes, bool (*decode)(const std::byte*, Message*)) {
  Message ignored;
  for (size_t bit = 0; bit < kSize * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
    EXPECT_FALSE(decode(bytes.data(), &ignored)) << "bit " << bit;
    bytes[bit / 8] ^= std::byte(1 << (bit % 8));
  }
}

TEST(TcpFrameTest, HeadersRoundTripAndEveryFlippedBitIsSeen) {
  const FrameHeader data{.generation = 0x0102030405060708,
                         .number = 99,
                         .zone = {0xfedc, 0x12345678},
                         .offset_bytes = uint64_t{1} << 40,
                         .length_bytes = 777};
  const FrameHeader fence{
      .generation = 7, .number = UINT64_MAX, .zone = {1, UINT32_MAX}, .round = 0xabcdef01, .weight = 255};
  for (const FrameHeader& header : {data, fence}) {
    std::array<std::byte, kHeaderBytes> bytes;
    EncodeHeader(header, bytes.data());
    FrameHeader back;
    ASSERT_TRUE(DecodeHeader(bytes.data(), &back));
    EXPECT_EQ(back.generation, header.generation);
    EXPECT_EQ(back.number, header.number);
    EXPECT_EQ(back.zone, header.zone);
    EXPECT_EQ(back.offset_bytes, header.offset_bytes);
    EXPECT_EQ(back.length_bytes, header.length_bytes);
    EXPECT_EQ(back.round, header.round);
    EXPECT_EQ(back.weight, header.weight);
    ExpectEveryFlippedBitIsSeen(bytes, DecodeHeader);
  }
  EXPECT_EQ(data.wire_bytes(), kHeaderBytes + 777 + kTrailerBytes);
  EXPECT_EQ(fence.wire_bytes(), kHeaderBytes);
}

TEST(TcpFrameTest, HeadersThatNoSenderSends) {
  const FrameHeader data{.length_bytes = 1}, fence{.weight = 1};
  const auto decodes = [](FrameHeader header, const auto& change) {
    change(header);
    std::array<std::byte, kHeaderBytes> bytes;
    EncodeHeader(header, bytes.data());
    return DecodeHeader(bytes.data(), &header);
  };
  const auto nothing = [](FrameHeader&) {};
  EXPECT_TRUE(decodes(data, nothing));
  EXPECT_TRUE(decodes(fence, nothing));
  EXPECT_FALSE(decodes(data, [](FrameHeader& h) { h.length_bytes = 0; })) << "neither bytes nor a weight";
  EXPECT_FALSE(decodes(data, [](FrameHeader& h) { h.round = 1; }));
  EXPECT_FALSE(decodes(fence, [](FrameHeader& h) { h.length_bytes = 1; }));
  EXPECT_FALSE(decodes(fence, [](FrameHeader& h) { h.offset_bytes = 1; }));
}

TEST(TcpFrameTest, TrailerRoundTripAndEveryFlippedBitIsSeen) {
  for (const FrameStatus status : {FrameStatus::kOk, FrameStatus::kPoisoned}) {
    std::array<std::byte, kTrailerBytes> bytes;
    EncodeTrailer({1234567890123, status}, bytes.data());
    FrameTrailer back;
    ASSERT_TRUE(DecodeTrailer(bytes.data(), &back));
    EXPECT_EQ(back.number, 1234567890123u);
    EXPECT_EQ(back.status, status);
    ExpectEveryFlippedBitIsSeen(bytes, DecodeTrailer);
  }
}

TEST(TcpFrameTest, AckRoundTripAndEveryFlippedBitIsSeen) {
  for (const AckRecord& ack :
       {AckRecord{true, FrameStatus::kOk, 5, 6}, AckRecord{false, FrameStatus::kZoneClosed, 7, 8},
        AckRecord{false, FrameStatus::kZoneFault, 9, uint64_t{1} << 63}}) {
    std::array<std::byte, kAckBytes> bytes;
    EncodeAck(ack, bytes.data());
    AckRecord back;
    ASSERT_TRUE(DecodeAck(bytes.data(), &back));
    EXPECT_EQ(back.cumulative, ack.cumulative);
    EXPECT_EQ(back.status, ack.status);
    EXPECT_EQ(back.generation, ack.generation);
    EXPECT_EQ(back.number, ack.number);
    ExpectEveryFlippedBitIsSeen(bytes, DecodeAck);
  }
}

TEST(TcpFrameTest, AckStatusesThatNoReceiverSends) {
  std::array<std::byte, kAckBytes> bytes;
  AckRecord back;
  for (const FrameStatus status : {FrameStatus::kOk, FrameStatus::kPoisoned, static_cast<FrameStatus>(9)}) {
    EncodeAck({false, status, 1, 1}, bytes.data());
    EXPECT_FALSE(DecodeAck(bytes.data(), &back));
  }
  EncodeAck({true, FrameStatus::kZoneClosed, 1, 1}, bytes.data());
  EXPECT_FALSE(DecodeAck(bytes.data(), &back));
}

TEST(TcpFrameTest, HelloAndAnswerRoundTrip) {
  Hello hello;
  hello.version_max = 9;
  hello.rail = 3;
  hello.boot = 11;
  hello.expected_boot = 12;
  hello.generation = 13;
  hello.node = std::string(kMaxNodeBytes, 'n');
  hello.expected_node = "b";
  hello.nonce[31] = std::byte(7);
  std::array<std::byte, kHelloBytes> bytes;
  EncodeHello(hello, absl::MakeSpan(bytes));
  Hello back;
  ASSERT_TRUE(DecodeHello(bytes, &back));
  EXPECT_EQ(back.version_max, 9);
  EXPECT_EQ(back.rail, 3u);
  EXPECT_EQ(back.boot, 11u);
  EXPECT_EQ(back.expected_boot, 12u);
  EXPECT_EQ(back.generation, 13u);
  EXPECT_EQ(back.node, hello.node);
  EXPECT_EQ(back.expected_node, "b");
  EXPECT_EQ(back.nonce, hello.nonce);
  EXPECT_FALSE(DecodeHello(absl::MakeSpan(bytes).first(kHelloBytes - 1), &back));
  Answer answer;
  EXPECT_FALSE(DecodeAnswer(bytes, &answer)) << "a HELLO is no answer to a HELLO";
  answer.refusal = Refusal::kWrongRail;
  answer.node = "b";
  answer.boot = 12;
  std::array<std::byte, kAnswerBytes> answer_bytes;
  EncodeAnswer(answer, absl::MakeSpan(answer_bytes));
  Answer answer_back;
  ASSERT_TRUE(DecodeAnswer(answer_bytes, &answer_back));
  EXPECT_EQ(answer_back.refusal, Refusal::kWrongRail);
  EXPECT_EQ(answer_back.node, "b");
  EXPECT_EQ(answer_back.boot, 12u);
  Proof proof;
  EXPECT_FALSE(DecodeProof(bytes, &proof)) << "a HELLO is no proof";
  proof.mac[31] = std::byte(9);
  std::array<std::byte, kProofBytes> proof_bytes;
  EncodeProof(proof, absl::MakeSpan(proof_bytes));
  Proof proof_back;
  ASSERT_TRUE(DecodeProof(proof_bytes, &proof_back));
  EXPECT_EQ(proof_back.mac, proof.mac);
  EXPECT_FALSE(DecodeProof(absl::MakeSpan(proof_bytes).first(kProofBytes - 1), &proof_back));
}

TEST(TcpFrameTest, MacsCoverEveryByteAndDiffer) {
  DataKey key{};
  key[0] = 1;
  std::array<std::byte, kHelloBytes> hello;
  std::array<std::byte, kAnswerBytes> answer;
  EncodeHello({}, absl::MakeSpan(hello));
  EncodeAnswer({}, absl::MakeSpan(answer));
  const Mac answered = AnswerMac(key, hello, answer);
  const Mac proof = ProofMac(key, hello, answer);
  EXPECT_NE(answered, proof);
  EXPECT_NE(AnswerMac({}, hello, answer), answered);
  for (size_t i = 0; i < kHelloBytes; ++i) {
    hello[i] ^= std::byte(1);
    EXPECT_NE(AnswerMac(key, hello, answer), answered) << i;
    EXPECT_NE(ProofMac(key, hello, answer), proof) << i;
    hello[i] ^= std::byte(1);
  }
  for (size_t i = 0; i < kAnswerBytes; ++i) {
    answer[i] ^= std::byte(1);
    EXPECT_EQ(AnswerMac(key, hello, answer) == answered, i >= 64 && i < 96) << i;  // itself
    EXPECT_NE(ProofMac(key, hello, answer), proof) << i;
    answer[i] ^= std::byte(1);
  }
}

}  // namespace
}  // namespace railsd::tcp
