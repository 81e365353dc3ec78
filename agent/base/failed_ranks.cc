#include "agent/base/failed_ranks.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

constexpr char kPayload[] = "railsd/failed_ranks";

}  // namespace

absl::Status WithFailedRanks(absl::Status status, const std::vector<Rank>& ranks) {
  if (ranks.empty()) return status;
  std::string bytes;
  for (size_t i = 0; i < std::min(ranks.size(), kMaxFailedRanks); ++i) {
    const uint32_t rank = ranks[i].value();
    bytes.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  }
  status.SetPayload(kPayload, absl::Cord(std::move(bytes)));
  return status;
}

std::vector<Rank> FailedRanks(const absl::Status& status) {
  std::vector<Rank> ranks;
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return ranks;
  const std::string bytes(*payload);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint32_t)) {
    uint32_t rank = 0;
    std::memcpy(&rank, bytes.data() + at, sizeof(rank));
    ranks.emplace_back(rank);
  }
  return ranks;
}

absl::Status SaidBy(absl::string_view node, absl::StatusCode code, absl::string_view reason,
                    const std::vector<Rank>& failed_ranks) {
  if (code == absl::StatusCode::kOk) code = absl::StatusCode::kInternal;
  return WithFailedRanks(absl::Status(code, absl::StrCat(reason, " (said ", node, ")")), failed_ranks);
}

}  // namespace railsd
