#include <algorithm>

#include "agent/plan/plan.h"

namespace railsd {

absl::Span<double> Ledger::Pair(PeerIndex destination) {
  const size_t index = destination.value();
  if (index >= pairs_.size()) pairs_.resize(index + 1);
  std::vector<double>& pair = pairs_[index];
  if (pair.empty()) pair.resize(sender_.size(), 0);
  return absl::MakeSpan(pair);
}

void Ledger::Forget(PeerIndex destination) {
  if (destination.value() >= pairs_.size()) return;
  std::vector<double>& pair = pairs_[destination.value()];
  std::fill(pair.begin(), pair.end(), 0);
}

}  // namespace railsd
