// Parses the query of a request to /api/v1/status.
#ifndef RAILSD_DAEMON_METRICS_STATUS_QUERY_H_
#define RAILSD_DAEMON_METRICS_STATUS_QUERY_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace railsd {

// Finished jobs in one answer: the default and the maximum.
inline constexpr uint32_t kDefaultFinished = 10, kMaxFinished = 64;

// The number of finished jobs that a query ("a=b&finished=3") asks for. Nullopt if its value is no number.
std::optional<uint32_t> FinishedWanted(absl::string_view query);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_STATUS_QUERY_H_
