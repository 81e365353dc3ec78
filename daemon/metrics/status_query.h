// What a request to /api/v1/status asks for.
#ifndef RAILSD_DAEMON_METRICS_STATUS_QUERY_H_
#define RAILSD_DAEMON_METRICS_STATUS_QUERY_H_

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"

namespace railsd {

// Finished jobs in one answer, when none are asked for and at most.
inline constexpr uint32_t kDefaultFinished = 10, kMaxFinished = 64;

// How many finished jobs a query ("a=b&finished=3") asks for. Nothing when it asks for no number.
std::optional<uint32_t> FinishedWanted(absl::string_view query);

}  // namespace railsd

#endif  // RAILSD_DAEMON_METRICS_STATUS_QUERY_H_
