// Any bytes through a pipe, in any pieces: the lines come out as they went in, and what has no end yet stays.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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
  rails::ctl::LineReader reader(ends[0]);
  std::string got;
  for (size_t at = 0; at < sent.size(); at += piece) {
    const size_t length = std::min(piece, sent.size() - at);
    Require(::write(ends[1], sent.data() + at, length) == static_cast<ssize_t>(length));
    const absl::StatusOr<bool> more = reader.Fill();
    Require(more.ok() && *more);
    // Not after each piece: lines may wait while further ones come.
    if ((at / piece) % 3 == 1) continue;
    while (const std::optional<std::string> line = reader.Next()) {
      Require(line->find('\n') == std::string::npos);
      got += *line + "\n";
    }
  }
  ::close(ends[1]);
  const absl::StatusOr<bool> end = reader.Fill();
  Require(end.ok() && !*end);
  while (const std::optional<std::string> line = reader.Next()) got += *line + "\n";
  const size_t whole = sent.rfind('\n') == std::string::npos ? 0 : sent.rfind('\n') + 1;
  Require(got == sent.substr(0, whole) && reader.pending() == sent.size() - whole);
  ::close(ends[0]);
  return 0;
}
