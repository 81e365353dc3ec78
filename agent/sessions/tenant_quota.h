// Tenants that share a node: a tenant's name, the most that it may have at once, and how much it has.
#ifndef RAILSD_AGENT_SESSIONS_TENANT_QUOTA_H_
#define RAILSD_AGENT_SESSIONS_TENANT_QUOTA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace railsd {

// Name of the single tenant when none is configured.
inline constexpr char kDefaultTenant[] = "default";

enum class QuotaKind : uint8_t { kSessions, kSegments, kSegmentBytes, kJobs, kJobsPerSecond };
inline constexpr std::array<QuotaKind, 5> kAllQuotas = {
    QuotaKind::kSessions, QuotaKind::kSegments, QuotaKind::kSegmentBytes, QuotaKind::kJobs, QuotaKind::kJobsPerSecond};

// "sessions", "segments", "segment_bytes", "jobs", "jobs_per_second": as in the configuration.
inline const char* QuotaName(QuotaKind kind) {
  constexpr const char* kNames[] = {"sessions", "segments", "segment_bytes", "jobs", "jobs_per_second"};
  return kNames[static_cast<size_t>(kind)];
}

// A number for each kind of quota.
struct QuotaNumbers {
  std::array<uint64_t, kAllQuotas.size()> values{};
  uint64_t& operator[](QuotaKind kind) { return values[static_cast<size_t>(kind)]; }
  uint64_t operator[](QuotaKind kind) const { return values[static_cast<size_t>(kind)]; }
  friend bool operator==(const QuotaNumbers&, const QuotaNumbers&) = default;
};

// A tenant's part of each rail while other tenants have work there.
struct TenantShare {
  uint32_t weight = 1;    // relative to tenants of the same priority; at least 1
  uint32_t priority = 0;  // a higher one goes first
  friend bool operator==(const TenantShare&, const TenantShare&) = default;
};

// A tenant as configured.
struct TenantOptions {
  std::string name;
  QuotaNumbers quota = {};  // 0: no limit beyond AgentLimits
  TenantShare share = {};
  friend bool operator==(const TenantOptions&, const TenantOptions&) = default;
};

struct TenantView {
  std::string name;
  QuotaNumbers quota;
  TenantShare share;
  QuotaNumbers in_use;   // for jobs_per_second: jobs taken within the last second, if that quota is set
  QuotaNumbers refused;  // how often each quota has refused something
  uint64_t jobs_done = 0, jobs_failed = 0;      // submissions of ranks; a replayable one counts as neither
  uint64_t bytes_sent = 0, bytes_received = 0;  // by ended submissions, between ranks
  std::vector<uint64_t> rail_sent_bytes;        // by rail, to other nodes; counted while jobs run
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_TENANT_QUOTA_H_
