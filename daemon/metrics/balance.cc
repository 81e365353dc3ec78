#include "daemon/metrics/balance.h"

#include <algorithm>
#include <utility>

namespace railsd {
namespace {

// Growth of each rail's counter; 0 if the counter fell.
std::vector<uint64_t> Growth(const std::vector<uint64_t>& before, const std::vector<uint64_t>& after) {
  std::vector<uint64_t> growth(after.size(), 0);
  for (size_t r = 0; r < std::min(before.size(), after.size()); ++r) {
    growth[r] = after[r] - std::min(before[r], after[r]);
  }
  return growth;
}

}  // namespace

std::optional<Balance> BalanceOf(absl::Span<const uint64_t> bytes, absl::Span<const uint64_t> speeds) {
  double count = 0, sum = 0, squares = 0, most = 0;
  for (size_t r = 0; r < std::min(bytes.size(), speeds.size()); ++r) {
    if (speeds[r] == 0) continue;
    const double seconds = static_cast<double>(bytes[r]) / static_cast<double>(speeds[r]);
    ++count;
    sum += seconds;
    squares += seconds * seconds;
    most = std::max(most, seconds);
  }
  if (sum <= 0) return std::nullopt;
  return Balance{most * count / sum, sum * sum / (count * squares)};
}

void BalanceMeter::Add(absl::Span<const RailView> rails, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (!samples_.empty() && now - samples_.back().at < kPace) return;
  Sample sample{now, {}, {}, {}, {}};
  speeds_.clear();
  for (const RailView& rail : rails) {
    sample.tx_bytes.push_back(rail.counts.tx_payload_bytes);
    sample.rx_bytes.push_back(rail.counts.rx_payload_bytes);
    sample.planned_bytes.push_back(rail.planned_bytes);
    sample.planned_rx_bytes.push_back(rail.planned_rx_bytes);
    const bool wanted = !rail.health.drained && rail.health.state != HealthState::kDrainedByPeer;
    speeds_.push_back(wanted ? rail.speed_bytes_per_s : 0);
  }
  samples_.push_back(std::move(sample));
  // Keeps one sample from before the longest window, because the window begins there.
  while (samples_.size() > 2 && now - samples_[1].at >= kWindows.back()) samples_.pop_front();
}

std::vector<BalanceMeter::Window> BalanceMeter::Read() const {
  absl::MutexLock lock(&mutex_);
  std::vector<Window> windows;
  if (samples_.size() < 2) return windows;
  const Sample& last = samples_.back();
  for (const absl::Duration length : kWindows) {
    // The window begins at the latest sample that is old enough, else at the oldest.
    auto first = samples_.begin();
    while (std::next(first) != std::prev(samples_.end()) && last.at - std::next(first)->at >= length) ++first;
    windows.push_back({BalanceOf(Growth(first->tx_bytes, last.tx_bytes), speeds_),
                       BalanceOf(Growth(first->rx_bytes, last.rx_bytes), speeds_),
                       BalanceOf(Growth(first->planned_bytes, last.planned_bytes), speeds_),
                       BalanceOf(Growth(first->planned_rx_bytes, last.planned_rx_bytes), speeds_)});
  }
  return windows;
}

}  // namespace railsd
