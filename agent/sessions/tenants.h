// Tenants: how much of the node each one uses, and the quotas that bound it. A quota refuses a request, it never makes
// the caller wait.
#ifndef RAILSD_AGENT_SESSIONS_TENANTS_H_
#define RAILSD_AGENT_SESSIONS_TENANTS_H_

#include <spdlog/fwd.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agent/jobs/submission.h"
#include "agent/rails/rail_scheduler.h"
#include "agent/sessions/tenant_quota.h"

namespace railsd {

// Each Take...() is undone by its Return...(). A refusal is RESOURCE_EXHAUSTED, names the tenant, the quota, its value
// and its present use, and changes only the count of refusals. Owned by the engine's thread.
class Tenant {
 public:
  // `index` counts the tenants of a table from 0. `log` may be null.
  Tenant(size_t index, TenantOptions options, std::shared_ptr<spdlog::logger> log)
      : index_(index), log_(std::move(log)) {
    view_.name = std::move(options.name);
    view_.quota = options.quota;
    view_.share = options.share;
  }

  size_t index() const { return index_; }
  const TenantShare& share() const { return view_.share; }

  absl::Status TakeSession();
  void ReturnSession() { --view_.in_use[QuotaKind::kSessions]; }
  bool HasSessions() const { return view_.in_use[QuotaKind::kSessions] > 0; }
  absl::Status TakeSegment(uint64_t length_bytes);
  void ReturnSegment(uint64_t length_bytes);
  // Takes a rank's part of a job. `head`: the rank has no other job under way in its group. The quota `jobs` does not
  // refuse such a part, because other nodes may wait for it.
  absl::Status TakeJob(bool head, absl::Time now);
  // The part is terminal.
  void ReturnJob(const JobReport& report);
  // Bytes of one of its jobs have arrived at another node.
  void CountSent(size_t rail, uint64_t length_bytes);

  // Use that already exceeds a lowered quota stays.
  void Retune(const TenantOptions& options) {
    view_.quota = options.quota;
    view_.share = options.share;
  }
  TenantView View(absl::Time now) const;

 private:
  absl::Status Refuse(QuotaKind kind, uint64_t in_use, const std::string& hint);
  bool Full(QuotaKind kind, uint64_t more) const;
  uint64_t JobsOfLastSecond(absl::Time now) const;

  const size_t index_;
  TenantView view_;
  const std::shared_ptr<spdlog::logger> log_;
  // The bucket of jobs_per_second, which holds one second's worth: each job moves this on by its share of a second, and
  // it may be no more than one second ahead of now.
  absl::Time rate_used_until_ = absl::InfinitePast();
};

// Owned by the engine's thread.
class TenantTable {
 public:
  TenantTable(const std::vector<TenantOptions>& tenants, std::shared_ptr<spdlog::logger> log);

  // The tenant of that name. A name that is not configured gets no quotas: names come from the daemon's own
  // configuration. The reference stays valid.
  Tenant& Of(const std::string& name);
  // Takes over quotas and shares; tenants that are not named keep theirs.
  void Retune(const std::vector<TenantOptions>& tenants);
  // Fills `*shares` with the shares that rails need. True when they have changed.
  bool UpdateShares(RailShares* shares) const;
  // By name.
  std::vector<TenantView> Views(absl::Time now) const;

 private:
  const std::shared_ptr<spdlog::logger> log_;
  std::map<std::string, std::unique_ptr<Tenant>> tenants_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_TENANTS_H_
