#include "client/src/failed_ranks.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/string_view.h"
#include "rails/client.h"

namespace rails {
namespace {

constexpr char kPayload[] = "rails/failed_ranks";

}  // namespace

std::vector<uint32_t> FailedRanks(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return {};
  const std::string bytes(*payload);
  std::vector<uint32_t> ranks(bytes.size() / sizeof(uint32_t));
  std::memcpy(ranks.data(), bytes.data(), bytes.size());
  return ranks;
}

namespace internal {

absl::Status WithFailedRanks(absl::Status status, const google::protobuf::RepeatedField<uint32_t>& ranks) {
  if (ranks.empty()) return status;
  const auto* const bytes = reinterpret_cast<const char*>(ranks.data());
  status.SetPayload(kPayload, absl::Cord(absl::string_view(bytes, ranks.size() * sizeof(uint32_t))));
  return status;
}

}  // namespace internal
}  // namespace rails
