#include "daemon/metrics/status_query.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace railsd {

std::optional<uint32_t> FinishedWanted(absl::string_view query) {
  uint32_t wanted = kDefaultFinished;
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (pair.first == "finished" && !absl::SimpleAtoi(pair.second, &wanted)) return std::nullopt;
  }
  return std::min(wanted, kMaxFinished);
}

}  // namespace railsd
