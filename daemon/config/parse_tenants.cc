#include "daemon/config/parse_tenants.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

constexpr size_t kMaxTenants = 64;  // each has series of its own in the metrics
constexpr size_t kMaxTenantName = 32;
constexpr size_t kMaxMembers = 1024;
constexpr size_t kMaxAccountName = 64;
constexpr uint64_t kMaxJobsPerSecond = 1'000'000;
constexpr uint64_t kMaxWeight = 1000;
constexpr uint64_t kMaxPriority = 7;
// sockaddr_un holds 108 bytes with the final zero.
constexpr size_t kMaxSocketPath = 107;

bool IsTenantName(absl::string_view text) {
  return !text.empty() && text.size() <= kMaxTenantName && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
  });
}

void ReadName(const YamlReader& in, std::set<std::string>* names, std::string* out) {
  in.String(out);
  if (out->empty() && in.text().empty()) return in.Fail("empty");
  if (!IsTenantName(*out)) {
    return in.Fail(absl::StrCat("not a tenant's name: 1 to ", kMaxTenantName, " of a-z, 0-9 and '-'"));
  }
  if (!names->insert(*out).second) in.Fail("another tenant has this name");
}

void ReadAccounts(const YamlReader& in, std::vector<std::string>* out) {
  in.List(kMaxMembers, [&](const YamlReader& item) {
    std::string account;
    item.String(&account, kMaxAccountName);
    if (account.empty() && item.text().empty()) return item.Fail("empty");
    out->push_back(std::move(account));
  });
}

void ReadQuota(const YamlReader& in, QuotaNumbers* quota) {
  const auto number = [quota](QuotaKind kind, uint64_t max) {
    return [quota, kind, max](const YamlReader& r) { r.Number(&(*quota)[kind], 0, max); };
  };
  constexpr uint64_t kMaxCount = 1 << 20;
  in.Map({{"sessions", number(QuotaKind::kSessions, kMaxCount)},
          {"segments", number(QuotaKind::kSegments, kMaxCount)},
          {"segment_bytes",
           [&](const YamlReader& r) {
             r.Bytes(&(*quota)[QuotaKind::kSegmentBytes], 0, std::numeric_limits<uint64_t>::max() >> 1);
           }},
          {"jobs", number(QuotaKind::kJobs, kMaxCount)},
          {"jobs_per_second", number(QuotaKind::kJobsPerSecond, kMaxJobsPerSecond)}});
}

void ReadShare(const YamlReader& in, TenantShare* share) {
  in.Map({{"weight", [&](const YamlReader& r) { r.Number(&share->weight, 1, kMaxWeight); }},
          {"priority", [&](const YamlReader& r) { r.Number(&share->priority, 0, kMaxPriority); }}});
}

}  // namespace

void ReadTenants(const YamlReader& in, std::vector<TenantConfig>* tenants) {
  std::set<std::string> names;
  in.List(kMaxTenants, [&](const YamlReader& item) {
    TenantConfig tenant;
    item.Map({{"name", [&](const YamlReader& r) { ReadName(r, &names, &tenant.name); }},
              {"users", [&](const YamlReader& r) { ReadAccounts(r, &tenant.users); }},
              {"groups", [&](const YamlReader& r) { ReadAccounts(r, &tenant.groups); }},
              {"socket_group", [&](const YamlReader& r) { r.String(&tenant.socket_group, kMaxAccountName); }},
              {"quota", [&](const YamlReader& r) { ReadQuota(r, &tenant.quota); }},
              {"share", [&](const YamlReader& r) { ReadShare(r, &tenant.share); }}},
             {"name"});
    tenants->push_back(std::move(tenant));
  });
}

void CheckTenantSockets(const Config& config, ConfigErrors* errors) {
  for (const TenantConfig& tenant : config.tenants) {
    const std::string longest = absl::StrCat(TenantSocketDir(config.socket_dir, tenant.name), "/descriptors.sock");
    if (longest.size() <= kMaxSocketPath) continue;
    errors->Add(0, "socket_dir", config.socket_dir,
                absl::StrCat("too long for the sockets of tenant ", tenant.name, ": ", longest, " has ", longest.size(),
                             " bytes, a socket's path ", kMaxSocketPath, " at most"));
  }
}

}  // namespace railsd
