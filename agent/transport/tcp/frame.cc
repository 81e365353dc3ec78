#include "agent/transport/tcp/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace railsd::tcp {
namespace {

constexpr uint64_t kHelloMagic = 0x4f4c4c4548535201;   // "\1RSHELLO"
constexpr uint64_t kAnswerMagic = 0x52574e4153535201;  // differs, so that a socket connected to itself is detected
constexpr uint64_t kProofMagic = 0x464f4f5250535201;   // "\1RSPROOF"
constexpr size_t kMacBytes = sizeof(Mac);
constexpr size_t kAnswerMacAt = 64;
constexpr uint8_t kLayout = 2;
constexpr uint8_t kTypeData = 0xF1;
constexpr uint8_t kTypeFence = 0xF2;
constexpr uint8_t kTypeAckUpTo = 0xA1;
constexpr uint8_t kTypeAckStatus = 0xA2;
constexpr size_t kNodeField = kMaxNodeBytes + 1;

static_assert(std::endian::native == std::endian::little, "the wire is little-endian; add byte swaps for this machine");

template <typename T>
void Put(std::byte* out, size_t at, T value) {
  static_assert(std::is_integral_v<T>);
  std::memcpy(out + at, &value, sizeof(value));
}
template <typename T>
T Get(const std::byte* in, size_t at) {
  T value;
  std::memcpy(&value, in + at, sizeof(value));
  return value;
}

// Detects a reader that has lost the frame boundaries, not an attacker. TCP's own checksum guards the payload.
uint32_t Check(const std::byte* in, size_t words, uint64_t seed) {
  uint64_t sum = seed * 0x9e3779b97f4a7c15;
  for (size_t i = 0; i < words; ++i) {
    sum = (sum ^ Get<uint64_t>(in, i * 8)) * 0xff51afd7ed558ccd;
    sum ^= sum >> 32;
  }
  return static_cast<uint32_t>(sum);
}

void PutNode(std::byte* out, size_t at, const std::string& node) {
  const size_t length = std::min(node.size(), kMaxNodeBytes);
  Put<uint8_t>(out, at, static_cast<uint8_t>(length));
  std::memcpy(out + at + 1, node.data(), length);
}
std::string GetNode(const std::byte* in, size_t at) {
  const size_t length = Get<uint8_t>(in, at);
  return std::string(reinterpret_cast<const char*>(in + at + 1), length);
}

}  // namespace

const char* RefusalText(Refusal refusal) {
  switch (refusal) {
    case Refusal::kNone:
      return "accepted";
    case Refusal::kWrongVersion:
      return "no protocol version in common";
    case Refusal::kUnknownNode:
      return "the caller is not a peer there (yet)";
    case Refusal::kWrongBoot:
      return "the caller's boot id is not the one known there";
    case Refusal::kNotMe:
      return "another node or boot id is at this address";
    case Refusal::kWrongRail:
      return "this address belongs to another rail";
    case Refusal::kStale:
      return "a newer connection exists";
    case Refusal::kUnlikeTls:
      return "tls.data is not the same at both ends";
  }
  return "unknown refusal";
}

// HELLO: 0 magic, 8 versions, 12 always 1, 16 rail, 20 max frame, 24 features, 32 boot, 40 expected boot, 48
// generation, 56 nonce, 88 reserved, 128 node, 384 expected node.
void EncodeHello(const Hello& hello, absl::Span<std::byte> out) {
  std::memset(out.data(), 0, kHelloBytes);
  std::byte* p = out.data();
  Put(p, 0, kHelloMagic);
  Put(p, 8, hello.version_min);
  Put(p, 10, hello.version_max);
  Put<uint8_t>(p, 12, 1);  // a daemon of version 2 needs it to answer that the versions differ
  Put(p, 16, hello.rail);
  Put(p, 20, hello.max_frame_bytes);
  Put(p, 24, hello.features);
  Put(p, 32, hello.boot);
  Put(p, 40, hello.expected_boot);
  Put(p, 48, hello.generation);
  std::memcpy(p + 56, hello.nonce.data(), 32);
  PutNode(p, 128, hello.node);
  PutNode(p, 128 + kNodeField, hello.expected_node);
  static_assert(128 + 2 * kNodeField == kHelloBytes);
}

bool DecodeHello(absl::Span<const std::byte> in, Hello* hello) {
  if (in.size() < kHelloBytes) return false;
  const std::byte* p = in.data();
  if (Get<uint64_t>(p, 0) != kHelloMagic) return false;
  hello->version_min = Get<uint16_t>(p, 8);
  hello->version_max = Get<uint16_t>(p, 10);
  hello->rail = Get<uint32_t>(p, 16);
  hello->max_frame_bytes = Get<uint32_t>(p, 20);
  hello->features = Get<uint64_t>(p, 24);
  hello->boot = Get<uint64_t>(p, 32);
  hello->expected_boot = Get<uint64_t>(p, 40);
  hello->generation = Get<uint64_t>(p, 48);
  std::memcpy(hello->nonce.data(), p + 56, 32);
  hello->node = GetNode(p, 128);
  hello->expected_node = GetNode(p, 128 + kNodeField);
  return true;
}

// Answer: 0 magic, 8 version, 10 refusal, 12 max frame, 16 features, 24 boot, 32 nonce, 64 mac, 96 rail,
// 100 reserved, 128 node.
void EncodeAnswer(const Answer& answer, absl::Span<std::byte> out) {
  std::memset(out.data(), 0, kAnswerBytes);
  std::byte* p = out.data();
  Put(p, 0, kAnswerMagic);
  Put(p, 8, answer.version);
  Put(p, 10, static_cast<uint16_t>(answer.refusal));
  Put(p, 12, answer.max_frame_bytes);
  Put(p, 16, answer.features);
  Put(p, 24, answer.boot);
  std::memcpy(p + 32, answer.nonce.data(), 32);
  std::memcpy(p + 64, answer.mac.data(), kMacBytes);
  static_assert(kAnswerMacAt == 64);
  Put(p, 96, answer.rail);
  PutNode(p, 128, answer.node);
  static_assert(128 + kNodeField == kAnswerBytes);
}

bool DecodeAnswer(absl::Span<const std::byte> in, Answer* answer) {
  if (in.size() < kAnswerBytes) return false;
  const std::byte* p = in.data();
  if (Get<uint64_t>(p, 0) != kAnswerMagic) return false;
  answer->version = Get<uint16_t>(p, 8);
  const uint16_t refusal = Get<uint16_t>(p, 10);
  if (refusal > static_cast<uint16_t>(Refusal::kUnlikeTls)) return false;
  answer->refusal = static_cast<Refusal>(refusal);
  answer->max_frame_bytes = Get<uint32_t>(p, 12);
  answer->features = Get<uint64_t>(p, 16);
  answer->boot = Get<uint64_t>(p, 24);
  std::memcpy(answer->nonce.data(), p + 32, 32);
  std::memcpy(answer->mac.data(), p + kAnswerMacAt, kMacBytes);
  answer->rail = Get<uint32_t>(p, 96);
  answer->node = GetNode(p, 128);
  return true;
}

// Proof: 0 magic, 8 mac, 40 reserved.
void EncodeProof(const Proof& proof, absl::Span<std::byte> out) {
  std::memset(out.data(), 0, kProofBytes);
  std::byte* p = out.data();
  Put(p, 0, kProofMagic);
  std::memcpy(p + 8, proof.mac.data(), kMacBytes);
}

bool DecodeProof(absl::Span<const std::byte> in, Proof* proof) {
  if (in.size() < kProofBytes || Get<uint64_t>(in.data(), 0) != kProofMagic) return false;
  std::memcpy(proof->mac.data(), in.data() + 8, kMacBytes);
  return true;
}

Mac AnswerMac(const DataKey& key, absl::Span<const std::byte> hello, absl::Span<const std::byte> answer) {
  constexpr std::array<std::byte, kMacBytes> kNoMac{};
  return Authenticate(key, "railsd data answer",
                      {hello.first(kHelloBytes), answer.first(kAnswerMacAt), kNoMac,
                       answer.subspan(kAnswerMacAt + kMacBytes, kAnswerBytes - kAnswerMacAt - kMacBytes)});
}

Mac ProofMac(const DataKey& key, absl::Span<const std::byte> hello, absl::Span<const std::byte> answer) {
  return Authenticate(key, "railsd data proof", {hello.first(kHelloBytes), answer.first(kAnswerBytes)});
}

// Header: 0 type, 1 layout, 2 weight, 3 reserved, 4 check, 8 generation, 16 number, 24 slot, 26 reserved, 28 slot
// generation, 32 round, 36 length, 40 offset. The check covers everything but itself.
void EncodeHeader(const FrameHeader& header, std::byte* out) {
  const uint8_t type = header.is_fence() ? kTypeFence : kTypeData;
  Put(out, 0, type);
  Put(out, 1, kLayout);
  Put(out, 2, header.weight);
  Put<uint8_t>(out, 3, 0);
  Put(out, 8, header.generation);
  Put(out, 16, header.number);
  Put(out, 24, header.zone.slot);
  Put<uint16_t>(out, 26, 0);
  Put(out, 28, header.zone.generation);
  Put(out, 32, header.round);
  Put(out, 36, header.length_bytes);
  Put(out, 40, header.offset_bytes);
  Put(out, 4, Check(out + 8, 5, type + (uint64_t{header.weight} << 8)));
}

bool DecodeHeader(const std::byte* in, FrameHeader* header) {
  const uint8_t type = Get<uint8_t>(in, 0);
  header->weight = Get<uint8_t>(in, 2);
  if (type != (header->is_fence() ? kTypeFence : kTypeData) || Get<uint8_t>(in, 1) != kLayout) return false;
  if (Get<uint8_t>(in, 3) != 0 || Get<uint16_t>(in, 26) != 0) return false;
  if (Get<uint32_t>(in, 4) != Check(in + 8, 5, type + (uint64_t{header->weight} << 8))) return false;
  header->generation = Get<uint64_t>(in, 8);
  header->number = Get<uint64_t>(in, 16);
  header->zone.slot = Get<uint16_t>(in, 24);
  header->zone.generation = Get<uint32_t>(in, 28);
  header->round = Get<uint32_t>(in, 32);
  header->length_bytes = Get<uint32_t>(in, 36);
  header->offset_bytes = Get<uint64_t>(in, 40);
  const bool has_payload = header->length_bytes != 0;
  return header->is_fence() ? !has_payload && header->offset_bytes == 0 : has_payload && header->round == 0;
}

// Trailer: 0 number, 8 status, 10 reserved, 12 check.
void EncodeTrailer(const FrameTrailer& trailer, std::byte* out) {
  Put(out, 0, trailer.number);
  Put(out, 8, static_cast<uint16_t>(trailer.status));
  Put<uint16_t>(out, 10, 0);
  Put(out, 12, Check(out, 1, 1 + static_cast<uint64_t>(trailer.status)));
}

bool DecodeTrailer(const std::byte* in, FrameTrailer* trailer) {
  const uint16_t status = Get<uint16_t>(in, 8);
  if (status > static_cast<uint16_t>(FrameStatus::kPoisoned) || Get<uint16_t>(in, 10) != 0) return false;
  if (Get<uint32_t>(in, 12) != Check(in, 1, uint64_t{1} + status)) return false;
  trailer->number = Get<uint64_t>(in, 0);
  trailer->status = static_cast<FrameStatus>(status);
  return true;
}

// Record: 0 type, 1 layout, 2 status, 4 check, 8 generation, 16 number.
void EncodeAck(const AckRecord& ack, std::byte* out) {
  const uint8_t type = ack.cumulative ? kTypeAckUpTo : kTypeAckStatus;
  const auto status = static_cast<uint16_t>(ack.status);
  Put(out, 0, type);
  Put(out, 1, kLayout);
  Put(out, 2, status);
  Put(out, 8, ack.generation);
  Put(out, 16, ack.number);
  Put(out, 4, Check(out + 8, 2, type + (uint64_t{status} << 8)));
}

bool DecodeAck(const std::byte* in, AckRecord* ack) {
  const uint8_t type = Get<uint8_t>(in, 0);
  const uint16_t status = Get<uint16_t>(in, 2);
  if ((type != kTypeAckUpTo && type != kTypeAckStatus) || Get<uint8_t>(in, 1) != kLayout) return false;
  if (Get<uint32_t>(in, 4) != Check(in + 8, 2, type + (uint64_t{status} << 8))) return false;
  ack->cumulative = type == kTypeAckUpTo;
  if (ack->cumulative ? status != 0
                      : status < static_cast<uint16_t>(FrameStatus::kZoneClosed) ||
                            status > static_cast<uint16_t>(FrameStatus::kZoneFault)) {
    return false;
  }
  ack->status = static_cast<FrameStatus>(status);
  ack->generation = Get<uint64_t>(in, 8);
  ack->number = Get<uint64_t>(in, 16);
  return true;
}

}  // namespace railsd::tcp
