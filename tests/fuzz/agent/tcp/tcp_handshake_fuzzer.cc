// Any bytes as what begins a connection, and as a header: whatever a decoder takes, its encoder gives back, and nothing
// is read behind the end.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "agent/transport/tcp/frame.h"

namespace railsd::tcp {
namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

// Encoders write zeros where nothing is defined, so what decodes needs two rounds to be the same.
template <typename Message>
void RoundTrip(absl::Span<const std::byte> in, size_t size, bool (*decode)(absl::Span<const std::byte>, Message*),
               void (*encode)(const Message&, absl::Span<std::byte>)) {
  Message message;
  if (!decode(in, &message)) return;
  Require(in.size() >= size);
  std::vector<std::byte> once(size), twice(size);
  encode(message, absl::MakeSpan(once));
  Message back;
  Require(decode(once, &back));
  encode(back, absl::MakeSpan(twice));
  Require(once == twice);
}

void Run(absl::Span<const std::byte> in) {
  RoundTrip<Hello>(in, kHelloBytes, DecodeHello, EncodeHello);
  RoundTrip<Answer>(in, kAnswerBytes, DecodeAnswer, EncodeAnswer);
  RoundTrip<Proof>(in, kProofBytes, DecodeProof, EncodeProof);
  RoundTrip<FrameHeader>(
      in, kHeaderBytes,
      [](absl::Span<const std::byte> bytes, FrameHeader* header) {
        return bytes.size() >= kHeaderBytes && DecodeHeader(bytes.data(), header);
      },
      [](const FrameHeader& header, absl::Span<std::byte> bytes) { EncodeHeader(header, bytes.data()); });
}

}  // namespace
}  // namespace railsd::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  // A copy of exactly that size, so that a read behind the end is found.
  const std::vector<std::byte> copy(reinterpret_cast<const std::byte*>(bytes),
                                    reinterpret_cast<const std::byte*>(bytes) + size);
  railsd::tcp::Run(copy);
  return 0;
}
