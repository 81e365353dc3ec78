#include "agent/jobs/late_binder.h"

#include <algorithm>
#include <utility>

namespace railsd {

// The rail has nothing to post, and nothing is on its way to it.
bool LateBinder::IsDry(size_t r) const {
  const RailProgress& progress = (*context_.board)[r];
  return progress.unposted_bytes.load(std::memory_order_relaxed) == 0 &&
         (*context_.rails)[r].backlog_bytes() <= progress.in_flight_bytes.load(std::memory_order_relaxed);
}

void LateBinder::Run(absl::Time now) {
  look_again_ = absl::InfiniteFuture();
  if (!context_.late_binding || !context_.board->AnyLags()) return;
  RailMask fed = 0;  // rails for which bytes were asked back and have not come
  for (const auto& [key, job] : jobs_) {
    for (const Exchange& exchange : job->exchanges) {
      if (const auto rail = exchange.out.moves_to()) fed |= RailBit(*rail);
    }
  }
  absl::Duration soonest = absl::Milliseconds(10);
  bool any_dry = false;
  for (size_t r = 0; r < context_.rail_count(); ++r) {
    const RailProgress& progress = (*context_.board)[r];
    soonest =
        std::min(soonest, absl::Seconds(static_cast<double>(progress.movable_bytes) / progress.speed_bytes_per_s));
    if (!IsDry(r)) continue;
    any_dry = true;
    if ((fed & RailBit(r)) == 0) Feed(r);
  }
  if (any_dry) look_again_ = now + std::max(soonest, absl::Microseconds(200));
}

// Takes from the rail that would end last, or from the next one if that rail has nothing to give.
bool LateBinder::Feed(size_t dry) {
  RailMask tried = RailBit(dry);
  while (true) {
    const size_t worst = RailToRelieve(
        context_.rail_count(), dry, [this](size_t r) -> const RailProgress& { return (*context_.board)[r]; },
        [tried](size_t r) { return (tried & RailBit(r)) == 0; });
    if (worst == dry) return false;
    if (Sending* const sending = MostLeft(worst, dry)) return Take(*sending, worst, dry);
    tried |= RailBit(worst);
  }
}

// The exchange of the highest priority that can be moved to `dry`; among several, the one with most left on `worst`.
Sending* LateBinder::MostLeft(size_t worst, size_t dry) {
  Sending* best = nullptr;
  std::pair<uint32_t, uint64_t> most;
  for (auto& [key, job] : jobs_) {
    if (!job->running || job->aborting()) continue;
    for (Exchange& exchange : job->exchanges) {
      Sending& out = exchange.out;
      if (!out.MayMove(worst) || (out.Targets() & RailBit(dry)) == 0) continue;
      const std::pair left(job->tenant->share().priority,
                           out.stream().unposted_bytes[worst].load(std::memory_order_relaxed));
      if (left.second == 0 || left <= most) continue;
      most = left;
      best = &out;
    }
  }
  return best;
}

// Divides the rest between the lagging rail and the rails that will soon be dry, by what each of them delivers.
bool LateBinder::Take(Sending& sending, size_t from, size_t to) {
  const RailMask targets = sending.Targets();
  const auto takes = [&](size_t r) {
    const RailProgress& rail = (*context_.board)[r];
    const uint64_t backlog = (*context_.rails)[r].backlog_bytes();
    return backlog - std::min(backlog, rail.in_flight_bytes.load()) <= rail.movable_bytes &&
           (targets & RailBit(r)) != 0;
  };
  const uint64_t bytes = BytesToMove(
      context_.rail_count(), from, to, [this](size_t r) -> const RailProgress& { return (*context_.board)[r]; }, takes);
  if (!sending.Move(from, to, bytes)) return false;
  ++moves_;
  return true;
}

}  // namespace railsd
