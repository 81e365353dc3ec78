#include "agent/rails/rail_speeds.h"

#include <algorithm>

namespace railsd {
namespace {

// Plans go by what was measured only where rails are what limits the exchange: the best one delivers at least this part
// of its speed, and the other clearly less. Whatever else slows rails slows all of them, and unequal plans for it would
// cost the evenness at the receivers.
constexpr double kLimitedByRails = 0.7;
constexpr double kClearlySlower = 0.8;
// And only when so many stretches in a row have said so: single ones are slow for want of processor time, too.
constexpr uint32_t kBelievedStretches = 3;
// A slow rail keeps a share that is enough to see that it is fast again, and old news is none.
constexpr double kLeastPart = 0.1;
constexpr absl::Duration kMeasureKept = absl::Seconds(30);

}  // namespace

double RailSpeeds::Part(const RailState& rail, absl::Time now) const {
  if (rail.measured == 0 || rail.speed == 0 || now - rail.measured_at > kMeasureKept) return 1;
  return std::clamp(rail.measured / rail.speed, kLeastPart, 1.0);
}

double RailSpeeds::BestPart(absl::Time now) const {
  double best = 0;
  for (const RailState& rail : rails_) {
    if (rail.measured > 0) best = std::max(best, Part(rail, now));
  }
  return best;
}

double RailSpeeds::ForPlan(size_t r, absl::Time now) const {
  const RailState& rail = rails_[r];
  if (!adapt_ || rail.slow_stretches < kBelievedStretches) return rail.speed;
  const double part = Part(rail, now), best = BestPart(now);
  return part < kClearlySlower * best ? rail.speed * part / best : rail.speed;
}

void RailSpeeds::OnStretch(size_t r, uint64_t bytes, absl::Duration time, absl::Time now) {
  RailState& rail = rails_[r];
  const double rate = static_cast<double>(bytes) / absl::ToDoubleSeconds(time);
  rail.measured = rail.measured == 0 ? rate : 0.5 * (rail.measured + rate);
  rail.measured_at = now;
  const double best = BestPart(now);
  const bool slow = best >= kLimitedByRails && rate < kClearlySlower * best * rail.speed;
  rail.slow_stretches = slow ? rail.slow_stretches + 1 : 0;
}

}  // namespace railsd
