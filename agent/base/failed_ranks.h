// The ranks whose failure caused an error: a payload of its status, so that it goes wherever the status goes.
#ifndef RAILSD_AGENT_BASE_FAILED_RANKS_H_
#define RAILSD_AGENT_BASE_FAILED_RANKS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agent/base/ids.h"

namespace railsd {

inline constexpr size_t kMaxFailedRanks = 64;

// Names the first kMaxFailedRanks of `ranks`, which ascend, in a status that is not OK.
absl::Status WithFailedRanks(absl::Status status, const std::vector<Rank>& ranks);
// Empty: none, or not known.
std::vector<Rank> FailedRanks(const absl::Status& status);
// The error that `node` has reported.
absl::Status SaidBy(absl::string_view node, absl::StatusCode code, absl::string_view reason,
                    const std::vector<Rank>& failed_ranks);

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_FAILED_RANKS_H_
