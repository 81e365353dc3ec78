// Any bytes as what comes to the control port first, and as the frames of a lane: in whatever pieces they arrive the
// answer is the same, what has been refused stays refused, and what was sealed by nobody never opens. The first byte
// says how long the pieces are.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "daemon/peer/lane_codec.h"
#include "daemon/service/beginning.h"
#include "tests/unit/daemon/peer/lane_tools.h"

namespace {

using absl::string_view;

void Require(bool ok) {
  if (!ok) std::abort();
}

// A beginning that was told wrong never becomes right, and one that is whole stays whole.
void Begin(string_view bytes, size_t piece) {
  for (const bool tls : {false, true}) {
    railsd::Beginning last = railsd::Beginning::kMore;
    for (size_t n = std::min(piece, bytes.size()); n > 0; n = std::min(n + piece, bytes.size())) {
      const railsd::Beginning now = railsd::LookAtBeginning(bytes.substr(0, n), tls, true);
      Require(last == railsd::Beginning::kMore || now == last);
      last = now;
      if (n == bytes.size()) break;
    }
    if (last == railsd::Beginning::kLane) {
      Require(railsd::ShareOfGreeting(bytes.substr(0, railsd::kLaneGreetingBytes)).has_value());
    }
  }
}

// The messages, and at the end whether all was well.
std::vector<std::string> Open(string_view bytes, size_t piece, bool sealed) {
  railsd::LaneOpener opener(railsd::MakeLaneKeys(0, sealed));
  std::vector<std::string> messages;
  const absl::Status status = railsd::OpenLaneFrames(opener, bytes, piece, &messages);
  Require(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
  for (const std::string& message : messages) Require(message.size() <= railsd::kMaxLaneMessageBytes);
  if (!status.ok()) {
    Require(!opener.Next().ok());
    messages.emplace_back("refused");
  }
  return messages;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t piece = 1 + data[0];
  const string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  Begin(bytes, piece);
  Require(Open(bytes, piece, false) == Open(bytes, std::max<size_t>(bytes.size(), 1), false));
  for (const std::string& message : Open(bytes, piece, true)) Require(message == "refused");
  return 0;
}
