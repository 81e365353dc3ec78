// Any bytes as a line between the coordinator of a replay and its workers: refused with a reason, or taken; and what is
// taken is written as a line that means the same.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "client/railsctl/replay/worker_protocol.h"

namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

template <typename Parse>
void ReadLine(absl::string_view line, Parse parse) {
  const auto read = parse(line);
  if (!read.ok()) return Require(!read.status().message().empty());
  const std::string written = rails::ctl::Encode(*read);
  Require(written.find('\n') == std::string::npos);
  const auto again = parse(written);
  Require(again.ok() && rails::ctl::Encode(*again) == written);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const absl::string_view line(reinterpret_cast<const char*>(bytes), size);
  ReadLine(line, rails::ctl::ParseCommand);
  ReadLine(line, rails::ctl::ParseEvent);
  return 0;
}
