#include "agent/rails/rail_speeds.h"

#include <algorithm>
#include <cmath>

namespace railsd {
namespace {

// Plans count on measured speeds only if rails limit the exchange: the best rail delivers at least this part of its
// speed, and another one clearly less. Any other cause slows all rails, and then unequal plans would only make
// receivers uneven.
constexpr double kLimitedByRails = 0.7;
constexpr double kClearlySlower = 0.8;
// A rail counts as slow after this many slow stretches in a row: a single one may come from a lack of processor time.
constexpr uint32_t kBelievedStretches = 3;
// Receivers are even only if all senders count on the same speed of a rail. A busy receiver or processor lowers the
// rate of a stretch, so an estimate falls slowly and rises faster. The speed that a peer reports for its end of the
// rail counts, too: if all ends are slow, their estimates converge. Rates far below the estimate count only when
// several follow each other; the best of them is the new estimate.
constexpr double kFar = 0.25, kFall = 0.125, kRise = 0.25;
// A stretch with less than this part of the typical bytes is left out: late binding moves such last bits of a job.
constexpr double kLeastOfTypical = 0.25;
// A slow rail keeps at least this part of its speed, enough to measure that it is fast again. Measurements older than
// kMeasureKept do not count.
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

double RailSpeeds::OfSlow(size_t r, absl::Time now) const {
  const RailState& rail = rails_[r];
  if (rail.slow_stretches < kBelievedStretches) return rail.speed;
  const double part = Part(rail, now), best = BestPart(now);
  return part < kClearlySlower * best ? rail.speed * part / best : rail.speed;
}

void RailSpeeds::OnTold(size_t r, double speed, absl::Time now) {
  RailState& rail = rails_[r];
  if (rail.slow_stretches < kBelievedStretches) return;
  const double told = speed * BestPart(now);  // converted to a measured rate
  if (std::abs(told - rail.measured) < kFar * rail.measured) rail.measured += kFall * (told - rail.measured);
}

void RailSpeeds::OnStretch(size_t r, uint64_t length_bytes, absl::Duration time, absl::Time now) {
  RailState& rail = rails_[r];
  const auto bytes = static_cast<double>(length_bytes);
  const bool bits = bytes < kLeastOfTypical * rail.typical_bytes;
  rail.typical_bytes += kFall * (bytes - rail.typical_bytes);
  if (bits) return;
  const double rate = bytes / absl::ToDoubleSeconds(time);
  Estimate(rail, rate);
  rail.measured_at = now;
  const double best = BestPart(now);
  const bool slow = best >= kLimitedByRails && rate < kClearlySlower * best * rail.speed;
  rail.slow_stretches = slow ? rail.slow_stretches + 1 : 0;
  any_slow_ = adapt_ && std::any_of(rails_.begin(), rails_.end(),
                                    [](const RailState& r) { return r.slow_stretches >= kBelievedStretches; });
  for (size_t i = 0; i < rails_.size() && !any_slow_; ++i) for_plan_[i] = rails_[i].speed;
}

void RailSpeeds::Estimate(RailState& rail, double rate) {
  if (rail.measured == 0) {
    rail.measured = rate;
  } else if (rate >= (1 - kFar) * rail.measured) {
    rail.measured += (rate < rail.measured ? kFall : kRise) * (rate - rail.measured);
    rail.far_below = 0;
  } else {
    rail.best_below = rail.far_below == 0 ? rate : std::max(rail.best_below, rate);
    if (++rail.far_below < kBelievedStretches) return;
    rail.measured = rail.best_below;
    rail.far_below = 0;
  }
}

}  // namespace railsd
