#include "agent/base/limit.h"

#include "absl/strings/str_cat.h"

namespace railsd {

const char* LimitKey(Limit limit) {
  switch (limit) {
    case Limit::kSessions:
      return "limits.max_sessions";
    case Limit::kSegmentsPerSession:
      return "limits.max_segments_per_session";
    case Limit::kSegmentBytesPerSession:
      return "limits.max_segment_bytes_per_session";
    case Limit::kGroups:
      return "limits.max_groups";
    case Limit::kJobsPerGroup:
      return "limits.max_jobs_per_group";
    case Limit::kRangesPerSubmission:
      return "limits.max_ranges_per_submission";
    case Limit::kPreparedPerSession:
      return "limits.max_prepared_per_session";
    case Limit::kPreparedRangesPerSession:
      return "limits.max_prepared_ranges_per_session";
    case Limit::kWorldSize:
      return "limits.max_world_size";
    case Limit::kName:
      return "limits.max_name";
    case Limit::kJoinKey:
      return "limits.max_join_key";
    case Limit::kWaitingCalls:
      return "limits.max_waiting_calls";
    case Limit::kMessage:
      return "limits.max_message";
    case Limit::kControlConnections:
      return "limits.max_control_connections";
    case Limit::kControlConnectionsPerAddress:
      return "limits.max_control_connections_per_address";
    case Limit::kCallsPerClientConnection:
      return "limits.max_calls_per_client_connection";
    case Limit::kGrpcMemory:
      return "limits.max_grpc_memory";
    case Limit::kWatchesPerSession:
      return "limits.max_watches_per_session";
    case Limit::kHalfOpen:
      return "limits.max_half_open";
    case Limit::kHttpRequest:
      return "limits.max_http_request";
    case Limit::kHandshake:
      return "timeouts.handshake";
    case Limit::kRailHandshake:
      return "timeouts.rail_handshake";
    case Limit::kHttp:
      return "timeouts.http";
    case Limit::kCount:
      break;
  }
  return "";
}

absl::Status LimitCounters::Refuse(Limit limit, absl::string_view text) {
  Count(limit);
  return absl::ResourceExhaustedError(absl::StrCat(LimitKey(limit), ": ", text));
}

}  // namespace railsd
