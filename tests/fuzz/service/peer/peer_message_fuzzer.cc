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

void ReadMessage(const rails::peer::v1::Message& in) {
  const absl::StatusOr<railsd::ControlMessage> message = railsd::MessageFrom(in, kMaxWorldSize);
  if (!message.ok()) return Require(!message.status().message().empty());
  rails::peer::v1::Message written;
  railsd::MessageTo(*message, &written);
  Require(railsd::MessageFrom(written, kMaxWorldSize).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const int rest = static_cast<int>(size) - 1;
  rails::peer::v1::Hello hello;
  rails::peer::v1::Message message;
  if (bytes[0] % 2 == 0 && hello.ParseFromArray(bytes + 1, rest)) ReadHello(hello);
  if (bytes[0] % 2 == 1 && message.ParseFromArray(bytes + 1, rest)) ReadMessage(message);
  return 0;
}
