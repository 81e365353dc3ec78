#include "client/railsctl/replay/memory_check.h"

#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/railsctl/format.h"

namespace rails::ctl {

uint64_t BuffersOfAll(uint64_t ranks, uint64_t send_bytes, uint64_t receive_bytes) {
  uint64_t all = 0;
  const bool overflows =
      __builtin_add_overflow(send_bytes, receive_bytes, &all) || __builtin_mul_overflow(all, ranks, &all);
  return overflows ? std::numeric_limits<uint64_t>::max() : all;
}

absl::Status FitsMemory(absl::string_view meminfo, uint64_t needed_bytes) {
  for (absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    uint64_t kibibytes = 0;
    if (!absl::ConsumePrefix(&line, "MemAvailable:") || !absl::ConsumeSuffix(&line, " kB") ||
        !absl::SimpleAtoi(line, &kibibytes)) {
      continue;
    }
    if (needed_bytes / 1024 <= kibibytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "the buffers of all ranks need ", FormatBytes(needed_bytes), ", and ", FormatBytes(kibibytes * 1024),
        " of this machine's memory are free; lower --bytes-per-rank or --ranks-per-node"));
  }
  return absl::OkStatus();
}

}  // namespace rails::ctl
