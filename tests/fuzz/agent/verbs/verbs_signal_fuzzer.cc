// A hostile peer: signals of a rail, true and false, against the decoder, the judge and the handshake. A signal that
// decodes encodes to the same bytes, and the handshake keeps its promises whatever comes.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstdlib>
#include <string>

#include "agent/transport/verbs/handshake.h"
#include "agent/transport/verbs/signal.h"

namespace railsd::verbs {
namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

void Run(FuzzedDataProvider& data) {
  const LocalEnd local{"a", BootId(1), RailIndex(0), "rxe0/1"};
  EndpointAddress own;
  own.queue_pairs.resize(1);
  Handshake handshake;
  uint64_t generation = 0;
  bool up = false;
  const auto act = [&](const Handshake::Action& first) {
    Handshake::Action action = first;
    if (action.fail) {
      handshake.Break();
      up = false;
      return;
    }
    if (action.connect.has_value()) {
      Require(handshake.state() == Handshake::State::kInit && !action.connect->queue_pairs.empty());
      action = handshake.Connected();
      Require(!action.connect.has_value() && !action.fail);
    }
    if (action.up) {
      Require(!up && handshake.state() == Handshake::State::kUp);
      up = true;
    }
  };
  while (data.remaining_bytes() > 0) {
    if (handshake.state() == Handshake::State::kDown) act(handshake.Begin(++generation));
    const std::string bytes = data.ConsumeRandomLengthString(2 * kMaxSignalBytes);
    const absl::StatusOr<Signal> signal = DecodeSignal(bytes);
    if (!signal.ok()) continue;
    if (signal->version == kSignalVersion) Require(EncodeSignal(*signal) == bytes);
    // As if it were who it should be: the hand-shake must stand by itself.
    JudgeSignal(local, own, "b", BootId(2), *signal);
    if (signal->version == kSignalVersion) act(handshake.OnSignal(*signal));
    Require(up == (handshake.state() == Handshake::State::kUp));
  }
}

}  // namespace
}  // namespace railsd::verbs

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  railsd::verbs::Run(data);
  return 0;
}
