// Sprayer: what its rails deliver.
#include <algorithm>

#include "agent/rails/sprayer.h"

namespace railsd {
namespace {

// A stretch shorter than this says nothing of a rail's rate.
constexpr absl::Duration kMeasurable = absl::Milliseconds(5);
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

double Sprayer::Part(size_t r, absl::Time now) const {
  const RailState& rail = rails_state_[r];
  const double speed = (*rails_)[r].speed_bytes_per_s;
  if (rail.measured == 0 || speed == 0 || now - rail.measured_at > kMeasureKept) return 1;
  return std::clamp(rail.measured / speed, kLeastPart, 1.0);
}

double Sprayer::BestPart(absl::Time now) const {
  double best = 0;
  for (size_t r = 0; r < rails_state_.size(); ++r) {
    if (rails_state_[r].measured > 0) best = std::max(best, Part(r, now));
  }
  return best;
}

double Sprayer::PlanSpeed(size_t r, absl::Time now) const {
  const double speed = (*rails_)[r].speed_bytes_per_s;
  const double part = Part(r, now), best = BestPart(now);
  const bool believed = rails_state_[r].slow_stretches >= kBelievedStretches && part < kClearlySlower * best;
  return options_.late_binding && believed ? speed * part / best : speed;
}

void Sprayer::EndStretch(size_t r, absl::Time now) {
  RailState& rail = rails_state_[r];
  const absl::Duration busy = now - rail.busy_since;
  if (busy < kMeasurable) return;
  const double rate = static_cast<double>(rail.busy_bytes) / absl::ToDoubleSeconds(busy);
  rail.measured = rail.measured == 0 ? rate : 0.5 * (rail.measured + rate);
  rail.measured_at = now;
  const double best = BestPart(now);
  const bool slow = best >= kLimitedByRails && rate < kClearlySlower * best * (*rails_)[r].speed_bytes_per_s;
  rail.slow_stretches = slow ? rail.slow_stretches + 1 : 0;
}

double Sprayer::Rate(size_t r, absl::Time now) const {
  const RailState& rail = rails_state_[r];
  const absl::Duration busy = now - rail.busy_since;
  if (rail.in_flight_bytes > 0 && busy >= kMeasurable) {
    return std::max(1.0, static_cast<double>(rail.busy_bytes) / absl::ToDoubleSeconds(busy));
  }
  return std::max({1.0, (*rails_)[r].speed_bytes_per_s, rail.measured});
}

}  // namespace railsd
