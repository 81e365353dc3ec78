// Limits that refuse something when they are reached, and how often each did.
#ifndef RAILSD_AGENT_BASE_LIMIT_H_
#define RAILSD_AGENT_BASE_LIMIT_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace railsd {

enum class Limit : uint8_t {
  kSessions,
  kSegmentsPerSession,
  kSegmentBytesPerSession,
  kGroups,
  kJobsPerGroup,
  kRangesPerSubmission,
  kPreparedPerSession,
  kPreparedRangesPerSession,
  kWorldSize,
  kName,
  kJoinKey,
  kWaitingCalls,
  kMessage,
  kControlConnections,
  kControlConnectionsPerAddress,
  kCallsPerClientConnection,
  kGrpcMemory,
  kWatchesPerSession,
  kHalfOpen,
  kHttpRequest,
  kHandshake,
  kRailHandshake,
  kHttp,
  kCount,
};

// The limit's key in the configuration: "limits.max_sessions".
const char* LimitKey(Limit limit);

// Any thread counts and reads, without locks.
class LimitCounters {
 public:
  void Count(Limit limit) { counts_[static_cast<size_t>(limit)].fetch_add(1, std::memory_order_relaxed); }
  uint64_t Read(Limit limit) const { return counts_[static_cast<size_t>(limit)].load(std::memory_order_relaxed); }
  // Counts the refusal and returns it: RESOURCE_EXHAUSTED, with the limit's key before the text.
  absl::Status Refuse(Limit limit, absl::string_view text);

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Limit::kCount)> counts_{};
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_LIMIT_H_
