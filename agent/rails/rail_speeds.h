// The speeds of rails that plans count on.
#ifndef RAILSD_AGENT_RAILS_RAIL_SPEEDS_H_
#define RAILSD_AGENT_RAILS_RAIL_SPEEDS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace railsd {

// Owned by the engine's thread.
class RailSpeeds {
 public:
  // `speeds`: of each rail, as configured, in bytes per second. `adapt` false: plans count on these only.
  RailSpeeds(std::vector<double> speeds, bool adapt) : adapt_(adapt) {
    for (const double speed : speeds) rails_.push_back({.speed = speed});
    for_plan_ = std::move(speeds);
  }

  // True if a rail counts as slow, so that plans look at measured speeds.
  bool any_slow() const { return any_slow_; }
  // The rail has carried `bytes` in `time` without a pause.
  void OnStretch(size_t rail, uint64_t bytes, absl::Duration time, absl::Time now);
  // A peer's ForPlan() of its end of the rail. Changes nothing unless any_slow().
  void OnTold(size_t rail, double speed, absl::Time now);
  // Bytes per second, over the stretches so far; 0: none.
  double measured(size_t rail) const { return rails_[rail].measured; }
  // The speed that the next plan should count on, in bytes per second. It is the rail's own speed, or less if the rail
  // lately delivered a clearly smaller part of its speed than the best rail.
  double ForPlan(size_t rail, absl::Time now) const { return any_slow_ ? OfSlow(rail, now) : rails_[rail].speed; }
  // The same for all rails; good until the next call of any method that changes this.
  absl::Span<const double> ForPlan(absl::Time now) {
    for (size_t r = 0; r < rails_.size() && any_slow_; ++r) for_plan_[r] = OfSlow(r, now);
    return for_plan_;
  }

 private:
  struct RailState {
    double speed = 0;
    double measured = 0;
    absl::Time measured_at = absl::InfinitePast();
    uint32_t slow_stretches = 0;  // the last so many were clearly slower than another rail
    uint32_t far_below = 0;       // the last so many were far below `measured`
    double best_below = 0;        // the best rate of those
    double typical_bytes = 0;     // of a stretch
  };
  double OfSlow(size_t rail, absl::Time now) const;
  static void Estimate(RailState& rail, double rate);
  // How much of its speed the rail delivers, 0 to 1; 1 when that is not known.
  double Part(const RailState& rail, absl::Time now) const;
  // The largest Part() of the rails that were measured; 0 when none was.
  double BestPart(absl::Time now) const;

  const bool adapt_;
  bool any_slow_ = false;  // a rail counts as slow, and `adapt_` is true
  std::vector<RailState> rails_;
  std::vector<double> for_plan_;  // the speeds as configured, unless any_slow_
};

}  // namespace railsd

#endif  // RAILSD_AGENT_RAILS_RAIL_SPEEDS_H_
