// Any bytes as a message of a peer's control stream: refused with the field's name, or accepted; and what is accepted
// is within the limits that the agent counts on, and reads back from what this node would write for it.
#include <cstdint>
#include <cstdlib>

#include "daemon/peer/peer_conversion.h"
#include "rails/peer/v1/peer.pb.h"

namespace {

constexpr uint32_t kMaxWorldSize = 64;

void Require(bool ok) {
  if (!ok) std::abort();
}

void ReadHello(const rails::peer::v1::Hello& in) {
  const absl::StatusOr<railsd::HelloFacts> facts = railsd::HelloFrom(in, "own", kMaxWorldSize);
  if (!facts.ok()) return Require(!facts.status().message().empty());
  Require(!facts->hello.node.empty() && facts->hello.boot != railsd::BootId());
  Require(!facts->hello.rails.empty() && facts->hello.rails.size() <= railsd::kMaxPeerRails);
  rails::peer::v1::Hello written;
  railsd::HelloTo(*facts, &written);
  Require(railsd::HelloFrom(written, "own", kMaxWorldSize).ok());
}

void ReadMessage(const rails::peer::v1::Numbered& in) {
  const absl::StatusOr<railsd::ControlMessage> message = railsd::MessageFrom(in, kMaxWorldSize);
  if (!message.ok()) return Require(!message.status().message().empty());
  rails::peer::v1::Numbered written;
  railsd::MessageTo(*message, &written);
  Require(railsd::MessageFrom(written, kMaxWorldSize).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  rails::peer::v1::ExchangeRequest request;
  if (!request.ParseFromArray(bytes, static_cast<int>(size))) return 0;
  if (request.has_hello()) ReadHello(request.hello());
  if (request.has_message()) ReadMessage(request.message());
  return 0;
}
