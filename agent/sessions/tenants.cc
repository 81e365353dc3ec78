#include "agent/sessions/tenants.h"

#include <spdlog/logger.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/log_value.h"

namespace railsd {

absl::Status Tenant::Refuse(QuotaKind kind, uint64_t in_use, const std::string& hint) {
  ++view_.refused[kind];
  if (log_ != nullptr) {
    log_->warn("quota_refused tenant={} quota={} value={} in_use={}", LogValue(view_.name), QuotaName(kind),
               view_.quota[kind], in_use);
  }
  return absl::ResourceExhaustedError(absl::StrCat("tenants.", view_.name, ".quota.", QuotaName(kind), ": tenant ",
                                                   view_.name, " may have ", view_.quota[kind], ", ", in_use,
                                                   " in use; ", hint));
}

bool Tenant::Full(QuotaKind kind, uint64_t more) const {
  const uint64_t quota = view_.quota[kind], in_use = view_.in_use[kind];
  return quota != 0 && (in_use > quota || more > quota - in_use);
}

absl::Status Tenant::TakeSession() {
  uint64_t& sessions = view_.in_use[QuotaKind::kSessions];
  if (Full(QuotaKind::kSessions, 1)) return Refuse(QuotaKind::kSessions, sessions, "close one first");
  ++sessions;
  return absl::OkStatus();
}

absl::Status Tenant::TakeSegment(uint64_t length_bytes) {
  uint64_t& segments = view_.in_use[QuotaKind::kSegments];
  uint64_t& bytes = view_.in_use[QuotaKind::kSegmentBytes];
  if (Full(QuotaKind::kSegments, 1)) return Refuse(QuotaKind::kSegments, segments, "remove one first");
  if (Full(QuotaKind::kSegmentBytes, length_bytes)) {
    return Refuse(QuotaKind::kSegmentBytes, bytes, absl::StrCat("length_bytes ", length_bytes, " would pass it"));
  }
  ++segments;
  bytes += length_bytes;
  return absl::OkStatus();
}

void Tenant::ReturnSegment(uint64_t length_bytes) {
  --view_.in_use[QuotaKind::kSegments];
  view_.in_use[QuotaKind::kSegmentBytes] -= length_bytes;
}

absl::Status Tenant::TakeJob(bool head, absl::Time now) {
  uint64_t& jobs = view_.in_use[QuotaKind::kJobs];
  if (!head && Full(QuotaKind::kJobs, 1)) return Refuse(QuotaKind::kJobs, jobs, "wait for one");
  if (const uint64_t rate = view_.quota[QuotaKind::kJobsPerSecond]; rate != 0) {
    const absl::Duration share = absl::Seconds(1) / static_cast<int64_t>(rate);
    const absl::Time used_until = std::max(rate_used_until_, now) + share;
    if (used_until > now + absl::Seconds(1)) {
      const absl::Duration wait = used_until - now - absl::Seconds(1);
      return Refuse(QuotaKind::kJobsPerSecond, JobsOfLastSecond(now),
                    absl::StrCat("submit again in ", absl::FormatDuration(wait)));
    }
    rate_used_until_ = used_until;
  }
  ++jobs;
  return absl::OkStatus();
}

void Tenant::ReturnJob(const JobReport& report) {
  --view_.in_use[QuotaKind::kJobs];
  view_.jobs_done += report.status.ok();
  view_.jobs_failed += report.failed();
  view_.bytes_sent += report.bytes_sent;
  view_.bytes_received += report.bytes_received;
}

void Tenant::CountSent(size_t rail, uint64_t length_bytes) {
  if (rail >= view_.rail_sent_bytes.size()) view_.rail_sent_bytes.resize(rail + 1);
  view_.rail_sent_bytes[rail] += length_bytes;
}

uint64_t Tenant::JobsOfLastSecond(absl::Time now) const {
  const uint64_t rate = view_.quota[QuotaKind::kJobsPerSecond];
  if (rate == 0 || rate_used_until_ <= now) return 0;
  const absl::Duration share = absl::Seconds(1) / static_cast<int64_t>(rate);
  return static_cast<uint64_t>((rate_used_until_ - now + share - absl::Nanoseconds(1)) / share);
}

TenantView Tenant::View(absl::Time now) const {
  TenantView view = view_;
  view.in_use[QuotaKind::kJobsPerSecond] = JobsOfLastSecond(now);
  return view;
}

TenantTable::TenantTable(const std::vector<TenantOptions>& tenants, std::shared_ptr<spdlog::logger> log)
    : log_(std::move(log)) {
  for (const TenantOptions& tenant : tenants) {
    std::unique_ptr<Tenant>& slot = tenants_[tenant.name];
    slot = std::make_unique<Tenant>(tenants_.size() - 1, tenant, log_);
  }
}

Tenant& TenantTable::Of(const std::string& name) {
  std::unique_ptr<Tenant>& tenant = tenants_[name];
  if (tenant == nullptr) tenant = std::make_unique<Tenant>(tenants_.size() - 1, TenantOptions{name}, log_);
  return *tenant;
}

void TenantTable::Retune(const std::vector<TenantOptions>& tenants) {
  for (const TenantOptions& tenant : tenants) {
    const auto it = tenants_.find(tenant.name);
    if (it != tenants_.end()) it->second->Retune(tenant);
  }
}

bool TenantTable::UpdateShares(RailShares* shares) const {
  uint32_t highest = 0;
  bool changed = shares->tenants.size() != tenants_.size();
  shares->tenants.resize(tenants_.size());
  for (const auto& [name, tenant] : tenants_) {
    changed = changed || shares->tenants[tenant->index()] != tenant->share();
    shares->tenants[tenant->index()] = tenant->share();
    if (tenant->HasSessions()) highest = std::max(highest, tenant->share().priority);
  }
  return std::exchange(shares->highest_priority, highest) != highest || changed;
}

std::vector<TenantView> TenantTable::Views(absl::Time now) const {
  std::vector<TenantView> views;
  for (const auto& [name, tenant] : tenants_) views.push_back(tenant->View(now));
  return views;
}

}  // namespace railsd
