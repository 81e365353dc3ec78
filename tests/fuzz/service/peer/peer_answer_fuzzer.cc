// Any bytes as what a peer answers on a control stream, while messages are queued and sent: what it acknowledges is
// believed only when it was sent and not denied before, each message is kept until then, and a new stream begins with
// the first that is not acknowledged. An answer is: what happens before it, a byte; its length, a byte; itself.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "daemon/peer/outbox.h"
#include "daemon/peer/peer_conversion.h"
#include "rails/peer/v1/peer.pb.h"

namespace {

constexpr size_t kBytes = 10;  // of each message
constexpr railsd::OutboxLimits kLimits = {.max_messages = 12, .max_bytes = 100};

void Require(bool ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "%s\n", what);
  std::abort();
}

// The outbox, and beside it what must be true of it.
class Sender {
 public:
  void Push() {
    const bool room = outbox_.bytes() + kBytes <= kLimits.max_bytes && outbox_.unacknowledged() < kLimits.max_messages;
    Require(outbox_.Push(std::make_shared<int>(0), kBytes) == room, "taken without room, or refused with it");
    pushed_ += room ? 1 : 0;
  }
  void Send() {
    const auto* next = outbox_.NextToSend();
    Require((next == nullptr) == (at_ == pushed_), "something to send, or nothing, against the count");
    if (next == nullptr) return;
    Require(next->number == ++at_, "sent out of order");
    sent_ = std::max(sent_, at_);
    outbox_.MarkSent();
  }
  void OnAcknowledged(uint64_t number) {
    const bool ok = number <= sent_;
    Require(outbox_.Acknowledge(number) == ok, "a wrong acknowledgement is believed, or a right one is not");
    if (!ok) return Reset();
    acknowledged_ = std::max(acknowledged_, number);
    at_ = std::max(at_, number);
  }
  // The first of a new stream.
  void OnAnswer(uint64_t number) {
    const bool ok = number <= sent_ && number >= acknowledged_;
    Require(outbox_.Rewind(number) == ok, "a wrong beginning is believed, or a right one is not");
    if (!ok) return Reset();
    acknowledged_ = at_ = number;
  }
  void Check() const {
    Require(outbox_.next_number() == pushed_ + 1 && outbox_.acknowledged() == acknowledged_, "wrong numbers");
    Require(outbox_.unacknowledged() == pushed_ - acknowledged_, "wrong count");
    Require(outbox_.bytes() == kBytes * outbox_.unacknowledged(), "wrong bytes");
  }

 private:
  void Reset() {
    outbox_.Reset();
    pushed_ = at_ = sent_ = acknowledged_ = 0;
  }
  railsd::Outbox<int> outbox_{kLimits};
  uint64_t pushed_ = 0, sent_ = 0, acknowledged_ = 0;
  uint64_t at_ = 0;  // of the present stream: the last that was sent, or need not be
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // as the daemon does
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Sender sender;
  while (size >= 2) {
    for (int i = bytes[0] % 8; i > 0; --i) sender.Push();
    for (int i = bytes[0] / 8 % 8; i > 0; --i) sender.Send();
    const size_t length = std::min<size_t>(bytes[1], size - 2);
    rails::peer::v1::ExchangeResponse response;
    if (!response.ParseFromArray(bytes + 2, static_cast<int>(length))) return 0;
    bytes += 2 + length;
    size -= 2 + length;
    if (response.has_hello()) {
      const auto facts = railsd::HelloFrom(response.hello().hello(), "own", 64);
      Require(facts.ok() || !facts.status().message().empty(), "no reason");
      if (facts.ok()) sender.OnAnswer(response.hello().acknowledged());
    } else if (response.response_case() == rails::peer::v1::ExchangeResponse::kAcknowledged) {
      sender.OnAcknowledged(response.acknowledged());
    }
    sender.Check();
  }
  return 0;
}
