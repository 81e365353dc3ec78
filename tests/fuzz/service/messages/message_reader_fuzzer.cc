// Any bytes through a pipe, in any pieces: the messages come out as they went in, what is not complete stays, and a
// length above the limit is refused.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "client/railsctl/replay/worker_protocol.h"

namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

// The first byte tells how long the pieces are; the rest is what is sent.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  const size_t piece = size_t{1} + bytes[0];
  const std::string sent(reinterpret_cast<const char*>(bytes) + 1, size - 1);
  int ends[2];
  Require(::pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  constexpr size_t kMost = 300;
  rails::ctl::MessageReader reader(ends[0], kMost);
  std::string got;
  bool refused = false;
  const auto take = [&] {
    while (const std::optional<std::string> message = reader.Next()) {
      Require(message->size() <= kMost);
      got += std::string({'\0', '\0', static_cast<char>(message->size() >> 8), static_cast<char>(message->size())}) +
             *message;
    }
  };
  for (size_t at = 0; at < sent.size() && !refused; at += piece) {
    const size_t length = std::min(piece, sent.size() - at);
    Require(::write(ends[1], sent.data() + at, length) == static_cast<ssize_t>(length));
    const absl::StatusOr<bool> more = reader.Fill();
    refused = !more.ok();
    Require(refused ? absl::IsInvalidArgument(more.status()) : *more);
    // Not after each piece: messages may wait while further ones come.
    if ((at / piece) % 3 != 1 || refused) take();
  }
  ::close(ends[1]);
  take();
  const absl::StatusOr<bool> end = reader.Fill();
  Require(refused ? absl::IsInvalidArgument(end.status()) : !end.ok() || !*end);
  take();
  Require(got == sent.substr(0, got.size()));
  // The rest is a message that is not complete, or too long.
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(sent[got.size() + at]); };
  const size_t left = sent.size() - got.size();
  const size_t next = left < 4 ? kMost : size_t{byte(0)} << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
  Require(left < 4 || next > kMost || left < 4 + next);
  Require(refused || !end.ok() || reader.pending() == left);
  ::close(ends[0]);
  return 0;
}
