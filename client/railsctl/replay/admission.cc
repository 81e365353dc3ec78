#include "client/railsctl/replay/admission.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rails::ctl {
namespace {

constexpr size_t kMaxRanksNamed = 8;

// Takes the same time wherever the texts differ, so that its time tells nothing of a token. The length is no secret.
bool EqualInConstantTime(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// Describes the first difference between the options of a rank and those of rank 0; empty: they are the same.
std::string FirstDifference(const HelloEvent& own, const HelloEvent& hello) {
  const auto differ = [](const std::string& theirs, const std::string& ours) {
    return absl::StrCat("was started with ", theirs, ", and rank 0 with ", ours);
  };
  if (hello.version() != own.version()) {
    return absl::StrCat("is railsctl ", hello.version(), ", and rank 0 is railsctl ", own.version());
  }
  if (hello.world_size() != own.world_size()) {
    return differ(absl::StrCat("--world ", hello.world_size()), absl::StrCat("--world ", own.world_size()));
  }
  const auto [ours, theirs] =
      std::mismatch(own.options().begin(), own.options().end(), hello.options().begin(), hello.options().end());
  if (ours == own.options().end() && theirs == hello.options().end()) return "";
  return differ(theirs == hello.options().end() ? "fewer options" : *theirs,
                ours == own.options().end() ? "fewer options" : *ours);
}

}  // namespace

Admission::Admission(HelloEvent own) : own_(std::move(own)), present_(own_.world_size()) { present_[0] = true; }

absl::Status Admission::Admit(const HelloEvent& hello) {
  if (!EqualInConstantTime(hello.token(), own_.token())) {
    return absl::PermissionDeniedError("the token is not that of rank 0; give all ranks the same --token");
  }
  const std::string rank = absl::StrCat("rank ", hello.rank(), " ");
  if (const std::string difference = FirstDifference(own_, hello); !difference.empty()) {
    return absl::FailedPreconditionError(rank + difference);
  }
  if (hello.rank() >= own_.world_size()) {
    return absl::FailedPreconditionError(absl::StrCat(rank, "does not exist with --world ", own_.world_size()));
  }
  if (present_[hello.rank()]) return absl::FailedPreconditionError(rank + "has already come; it was started twice");
  present_[hello.rank()] = true;
  return absl::OkStatus();
}

bool Admission::Complete() const { return std::find(present_.begin(), present_.end(), false) == present_.end(); }

std::string Admission::Missing() const {
  std::vector<size_t> missing;
  for (size_t rank = 0; rank < present_.size(); ++rank) {
    if (!present_[rank]) missing.push_back(rank);
  }
  if (missing.empty()) return "no rank";
  if (missing.size() == 1) return absl::StrCat("rank ", missing[0]);
  const size_t named = missing.size() > kMaxRanksNamed ? kMaxRanksNamed : missing.size() - 1;
  const std::string last =
      missing.size() > kMaxRanksNamed ? absl::StrCat(missing.size() - named, " more") : absl::StrCat(missing.back());
  return absl::StrCat("ranks ", absl::StrJoin(missing.begin(), missing.begin() + static_cast<ptrdiff_t>(named), ", "),
                      " and ", last);
}

absl::Status CheckPlacement(const std::vector<std::string>& nodes, uint32_t ranks_per_node) {
  std::map<std::string, size_t> first_of;  // first rank on each node
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const size_t block = rank - rank % ranks_per_node;
    const auto [it, added] = first_of.emplace(nodes[rank], rank);
    if (it->second == block && added == (rank == block)) continue;
    const size_t other = added ? block : it->second;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, " is on node ", nodes[rank], " and rank ", other, " on node ", nodes[other],
        "; with --ranks-per-node ", ranks_per_node, " they must be on ", added ? "the same node" : "different nodes"));
  }
  return absl::OkStatus();
}

}  // namespace rails::ctl
