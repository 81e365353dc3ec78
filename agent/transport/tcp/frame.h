// The bytes of the TCP transport: encoding and decoding, no I/O. Everything is little-endian and of fixed size.
//
// A rail's connection from a sender to a receiver, dialled by the sender:
//   HELLO ->, <- answer, proof ->, then frames -> and <- acknowledgement records
//   frame   header, payload, trailer; a fence is a header and nothing else
// Answer and proof carry MACs, made with a key that only the two daemons have. Both MACs cover the HELLO and the answer
// of this connection, with the nonces of both ends, so they can neither be forged nor be replayed on another
// connection. The trailer exists because a sender may be unable to finish a frame that it has begun (a bad page, a job
// that was stopped). The sender then pads the payload with zeros and marks the frame poisoned in the trailer.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_FRAME_H_
#define RAILSD_AGENT_TRANSPORT_TCP_FRAME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "agent/base/data_key.h"
#include "agent/base/ids.h"

namespace railsd::tcp {

inline constexpr uint16_t kProtocolVersion = 3;
inline constexpr size_t kMaxNodeBytes = 255;
inline constexpr size_t kHelloBytes = 640;
inline constexpr size_t kAnswerBytes = 384;
inline constexpr size_t kProofBytes = 48;
inline constexpr size_t kHeaderBytes = 48;
inline constexpr size_t kTrailerBytes = 16;
inline constexpr size_t kAckBytes = 24;
inline constexpr uint32_t kMaxFrameBytes = 16 << 20;       // no frame is longer, whatever its receiver says
inline constexpr uint32_t kLeastMaxFrameBytes = 64 << 10;  // every receiver must take frames of this length

// Hello::features, Answer::features: TLS records follow the proof. Both ends must set the same.
inline constexpr uint64_t kTlsRecords = 1;

// The first bytes on every connection.
struct Hello {
  uint16_t version_min = kProtocolVersion;
  uint16_t version_max = kProtocolVersion;
  uint32_t rail = 0;
  uint64_t features = 0;       // kTlsRecords; unknown bits are ignored
  uint64_t boot = 0;           // of the caller's daemon
  uint64_t expected_boot = 0;  // of the daemon that the caller expects
  uint64_t generation = 0;     // grows with every attempt of one sender
  uint32_t max_frame_bytes = 0;
  std::string node;                   // of the caller
  std::string expected_node;          // of the daemon that the caller expects
  std::array<std::byte, 32> nonce{};  // drawn for this connection
};

enum class Refusal : uint16_t {
  kNone = 0,
  kWrongVersion = 1,
  kUnknownNode = 2,  // the caller is not (yet) a peer here
  kWrongBoot = 3,    // the caller is known by another boot id
  kNotMe = 4,        // the caller expects another node or boot id
  kWrongRail = 5,
  kStale = 6,  // a connection of this generation, or a newer one, was there
  kUnlikeTls = 7,
};
const char* RefusalText(Refusal refusal);

struct Answer {
  uint16_t version = kProtocolVersion;
  Refusal refusal = Refusal::kNone;
  uint64_t features = 0;
  uint64_t boot = 0;
  uint32_t max_frame_bytes = 0;  // frames must not be longer; kLeastMaxFrameBytes or more
  uint32_t rail = 0;
  std::string node;
  std::array<std::byte, 32> nonce{};  // drawn for this connection; zeros in a refusal
  Mac mac{};                          // AnswerMac(); zeros in a refusal
};

// The last message of a handshake. It proves that the caller has the key and has seen this answer.
struct Proof {
  Mac mac{};  // ProofMac()
};

struct FrameHeader {
  bool is_fence() const { return weight != 0; }
  uint64_t wire_bytes() const { return is_fence() ? kHeaderBytes : kHeaderBytes + length_bytes + kTrailerBytes; }

  uint64_t generation = 0;  // of the connection
  uint64_t number = 0;      // 0, 1, 2, ... on one connection
  ZoneRef zone = {};
  uint64_t offset_bytes = 0;  // in the stream
  uint32_t length_bytes = 0;  // of the payload
  // Fields of a fence, which has no payload and no trailer:
  uint32_t round = 0;
  uint8_t weight = 0;
};

enum class FrameStatus : uint16_t {
  kOk = 0,
  kPoisoned = 1,    // trailer: the payload is wholly or partly padding
  kZoneClosed = 2,  // acknowledgement: the zone is not open; the frame was discarded
  kZoneFault = 3,   // acknowledgement: a page of the zone could not be written
};

struct FrameTrailer {
  uint64_t number = 0;
  FrameStatus status = FrameStatus::kOk;
};

// Says that the frames below `number` are done (cumulative), or that frame `number` ended with `status`. The status of
// a frame is sent before the cumulative record that covers the frame.
struct AckRecord {
  bool cumulative = true;
  FrameStatus status = FrameStatus::kOk;
  uint64_t generation = 0;
  uint64_t number = 0;
};

// Encoders fill the whole of their fixed-size output. Decoders return false for bytes that no encoder produces (magic,
// version of the layout, check field, enum out of range); they judge nothing else.
void EncodeHello(const Hello& hello, absl::Span<std::byte> out);
bool DecodeHello(absl::Span<const std::byte> in, Hello* hello);
void EncodeAnswer(const Answer& answer, absl::Span<std::byte> out);
bool DecodeAnswer(absl::Span<const std::byte> in, Answer* answer);
void EncodeProof(const Proof& proof, absl::Span<std::byte> out);
bool DecodeProof(absl::Span<const std::byte> in, Proof* proof);
// The MACs of an answer and of a proof. `hello` and `answer` are the messages as they were sent. AnswerMac() counts the
// answer's own mac as zeros.
Mac AnswerMac(const DataKey& key, absl::Span<const std::byte> hello, absl::Span<const std::byte> answer);
Mac ProofMac(const DataKey& key, absl::Span<const std::byte> hello, absl::Span<const std::byte> answer);
void EncodeHeader(const FrameHeader& header, std::byte* out);
bool DecodeHeader(const std::byte* in, FrameHeader* header);
void EncodeTrailer(const FrameTrailer& trailer, std::byte* out);
bool DecodeTrailer(const std::byte* in, FrameTrailer* trailer);
void EncodeAck(const AckRecord& ack, std::byte* out);
bool DecodeAck(const std::byte* in, AckRecord* ack);

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_FRAME_H_
