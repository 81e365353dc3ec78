// Longest processing time first, with splitting. Three passes over the bins of a pair:
//  1. flows that cannot be split, largest first, each into the bin where it would finish soonest;
//  2. the others, largest first, laid end to end into what the bins lack up to a common finishing time (McNaughton's
//     wrap-around rule). No bin gets more than it lacks; one may be left short, by at most two minimums less two bytes,
//     where any cut would make a piece shorter than a minimum;
//  3. what the bins were left short of, in pieces of one to two minimums, again where each finishes soonest.
// A piece put where it finishes soonest never makes one bin finish later than another bin would with that piece on
// top; that, and how little a bin can be left short, is the whole proof of the bounds in plan.h.
#include <algorithm>
#include <limits>

#include "agent/plan/plan_internal.h"

namespace railsd::plan_internal {
namespace {

double Backlog(const PlanRail& rail) {
  return static_cast<double>(std::max(rail.source_backlog_bytes, rail.destination_backlog_bytes));
}

// Backlog past the threshold counts as load.
void SetOffsets(const Problem& problem, PlanWorkspace* w) {
  const size_t bins = w->usable.size();
  w->offset.assign(bins, 0);
  double least = Backlog(problem.rails[w->usable[0]]) / w->speed[0];
  for (size_t b = 1; b < bins; ++b) least = std::min(least, Backlog(problem.rails[w->usable[b]]) / w->speed[b]);
  const double threshold = static_cast<double>(kBacklogThresholdChunks) * static_cast<double>(problem.chunk_bytes);
  for (size_t b = 0; b < bins; ++b) {
    const double excess = Backlog(problem.rails[w->usable[b]]) - least * w->speed[b];
    w->offset[b] = std::max(0.0, excess - threshold);
  }
}

bool Interchangeable(size_t a, size_t b, const PlanWorkspace& w) {
  return w.speed[a] == w.speed[b] && w.offset[a] == 0 && w.offset[b] == 0;
}

// What the sender planned too much or too little on rails of each speed, up to one piece, counts as load: that is how
// errors between rails of different speed are diffused. Between interchangeable rails the matching does it, so their
// mean is taken; on rails all equal that mean is zero by definition.
void AddCarriedError(const Problem& problem, double largest_piece, PlanWorkspace* w) {
  const size_t bins = w->usable.size();
  const absl::Span<const double> sender = problem.ledger->Sender();
  double sum_of_residuals = 0;
  double sum_of_speeds = 0;
  for (size_t b = 0; b < bins; ++b) {
    sum_of_residuals += sender[w->usable[b]];
    sum_of_speeds += w->speed[b];
  }
  for (size_t b = 0; b < bins; ++b) {
    double residuals = 0;
    size_t alike = 0;
    for (size_t other = 0; other < bins; ++other) {
      if (other != b && !Interchangeable(b, other, *w)) continue;
      residuals += sender[w->usable[other]];
      ++alike;
    }
    const double mean = residuals / static_cast<double>(alike) - sum_of_residuals * w->speed[b] / sum_of_speeds;
    w->load[b] += std::clamp(mean, -largest_piece, largest_piece);
  }
}

bool AllInterchangeable(const PlanWorkspace& w) {
  for (size_t b = 0; b < w.usable.size(); ++b) {
    if (!Interchangeable(0, b, w)) return false;
  }
  return true;
}

// The bin where `bytes` more would finish soonest; the first of several.
uint32_t SoonestBin(uint64_t bytes, const PlanWorkspace& w) {
  uint32_t best = 0;
  double best_finish = (w.load[0] + static_cast<double>(bytes)) / w.speed[0];
  for (uint32_t b = 1; b < w.usable.size(); ++b) {
    const double finish = (w.load[b] + static_cast<double>(bytes)) / w.speed[b];
    if (finish < best_finish) {
      best = b;
      best_finish = finish;
    }
  }
  return best;
}

// Sets each bin's deficit: what it lacks up to the finishing time at which `bytes` more fill all bins, in whole bytes
// that sum to `bytes`. Bins beyond that time lack nothing.
void SetDeficits(uint64_t bytes, PlanWorkspace* w) {
  const size_t bins = w->usable.size();
  const auto lacks = [w](size_t b, double level) { return level * w->speed[b] - w->load[b]; };
  // Leaving out the bins beyond the level lowers it. Rounding could bring one back, hence the limit on rounds.
  double level = std::numeric_limits<double>::max();
  size_t taking_part = bins + 1;
  for (size_t round = 0; round <= bins; ++round) {
    double sum_of_loads = static_cast<double>(bytes);
    double sum_of_speeds = 0;
    size_t count = 0;
    for (size_t b = 0; b < bins; ++b) {
      if (lacks(b, level) <= 0) continue;
      sum_of_loads += w->load[b];
      sum_of_speeds += w->speed[b];
      ++count;
    }
    if (count == taking_part || count == 0) break;
    taking_part = count;
    level = sum_of_loads / sum_of_speeds;
  }
  uint64_t left = bytes;
  w->deficit.assign(bins, 0);
  for (size_t b = 0; b < bins; ++b) {
    const double exact = lacks(b, level);
    if (exact <= 0) continue;
    w->deficit[b] = exact >= static_cast<double>(left) ? left : static_cast<uint64_t>(exact);
    left -= w->deficit[b];
  }
  // Rounding down leaves less than a byte a bin (more only where doubles are coarser than bytes).
  uint32_t last = SoonestBin(0, *w);
  for (uint32_t b = 0; b < bins && left > 0; ++b) {
    if (lacks(b, level) <= 0) continue;
    ++w->deficit[b];
    --left;
    last = b;
  }
  w->deficit[last] += left;
}

// What of a flow goes into the bin at hand: `now` bytes here and `held` bytes at the start of the next bin; what
// remains of it after these starts the next bin too (then `held` is 0) or, where the bin was too short, goes to `rest`.
struct Cut {
  uint64_t now = 0;
  uint64_t held = 0;
};

bool Fillable(uint64_t lack, uint64_t min_bytes) { return lack == 0 || lack >= min_bytes; }

// Cuts a flow with `left` bytes at a bin that lacks `lack`, the one after it `next_lack`. No piece is under the
// minimum, no bin gets more than it lacks, and where possible none is left with a gap under the minimum, which nothing
// could fill: then part of the flow is held for the next bin, so that the gap becomes wide enough for the next flow.
Cut CutAt(uint64_t left, uint64_t lack, uint64_t next_lack, uint64_t min_bytes) {
  if (left <= lack && Fillable(lack - left, min_bytes)) return {left, 0};
  if (left > lack && lack >= min_bytes && left - lack >= min_bytes) return {lack, 0};
  if (lack < min_bytes) return {0, 0};
  // Leave a gap of one minimum, or the whole bin, to the next flow.
  for (const uint64_t now : {lack - min_bytes, uint64_t{0}}) {
    if (now > 0 && (now < min_bytes || left < now + min_bytes)) continue;
    const uint64_t held = left - now;
    if (held <= next_lack && Fillable(next_lack - held, min_bytes)) return {now, held};
  }
  if (left <= lack) return {left, 0};
  return {left >= 2 * min_bytes ? left - min_bytes : 0, 0};
}

void LayInto(uint32_t bin, uint32_t flow, uint64_t offset, uint64_t length, PlanWorkspace* w) {
  if (length == 0) return;
  Lay(bin, flow, offset, length, w);
  w->load[bin] += static_cast<double>(length);
  w->deficit[bin] -= length;
}

// Pass 2 over the first `splittable` flows; what does not fit goes to `rest`.
void WrapAround(const Problem& problem, size_t splittable, PlanWorkspace* w) {
  const size_t bins = w->usable.size();
  w->rest.clear();
  uint32_t bin = 0;
  for (size_t i = 0; i < splittable; ++i) {
    const auto [bytes, flow] = w->order[i];
    uint64_t offset = 0;
    while (offset < bytes && bin < bins) {
      const uint64_t next_lack = bin + 1 < bins ? w->deficit[bin + 1] : 0;
      const Cut cut = CutAt(bytes - offset, w->deficit[bin], next_lack, problem.min_bytes);
      LayInto(bin, flow, offset, cut.now, w);
      LayInto(bin + 1, flow, offset + cut.now, cut.held, w);
      offset += cut.now + cut.held;
      // The tail of a flow that cannot be cut again: the bin may do for the next flow.
      if (cut.now + cut.held == 0 && w->deficit[bin] >= problem.min_bytes) break;
      if (offset < bytes || w->deficit[bin] < problem.min_bytes) ++bin;
    }
    if (offset < bytes) w->rest.push_back({flow, RailIndex(), offset, bytes - offset});
  }
}

// Pass 3: cuts what is left into pieces of one to two minimums, the fewest-first order being longest first.
void LayRest(const Problem& problem, PlanWorkspace* w) {
  std::sort(w->rest.begin(), w->rest.end(), [](const PlanRun& a, const PlanRun& b) {
    return a.length_bytes != b.length_bytes ? a.length_bytes > b.length_bytes : a.flow < b.flow;
  });
  for (const PlanRun& stretch : w->rest) {
    uint64_t offset = stretch.offset_bytes;
    const uint64_t end = stretch.offset_bytes + stretch.length_bytes;
    for (uint64_t pieces = std::max<uint64_t>(1, stretch.length_bytes / problem.min_bytes); pieces > 0; --pieces) {
      const uint64_t length = (end - offset + pieces - 1) / pieces;
      const uint32_t bin = SoonestBin(length, *w);
      PlanRun* last = w->pending.empty() ? nullptr : &w->pending.back();
      if (last != nullptr && last->flow == stretch.flow && last->rail == RailIndex(bin) &&
          last->offset_bytes + last->length_bytes == offset) {
        last->length_bytes += length;
        w->bin_bytes[bin] += length;
      } else {
        Lay(bin, stretch.flow, offset, length, w);
      }
      w->load[bin] += static_cast<double>(length);
      offset += length;
    }
  }
}

// Pass 1 over the flows from `first` on; returns their bytes.
uint64_t LayWhole(size_t first, PlanWorkspace* w) {
  uint64_t sum = 0;
  for (size_t i = first; i < w->order.size(); ++i) {
    const auto [bytes, flow] = w->order[i];
    const uint32_t bin = SoonestBin(bytes, *w);
    Lay(bin, flow, 0, bytes, w);
    w->load[bin] += static_cast<double>(bytes);
    sum += bytes;
  }
  return sum;
}

double SpreadOfLoads(const PlanWorkspace& w) {
  const auto [low, high] = std::minmax_element(w.load.begin(), w.load.end());
  return *high - *low;
}

// On equal bins: lays all flows whole instead when that is more even, so the bounds in plan.h stay. Returns how many
// of the runs pending are flows laid whole that must come last, `whole` when nothing is changed.
size_t TryAllWhole(size_t whole, PlanWorkspace* w) {
  const double spread = SpreadOfLoads(*w);
  w->trial.assign(w->load.begin(), w->load.end());
  w->load.assign(w->load.size(), 0);
  for (const auto& [bytes, flow] : w->order) w->load[SoonestBin(bytes, *w)] += static_cast<double>(bytes);
  if (SpreadOfLoads(*w) >= spread) {
    w->load.swap(w->trial);
    return whole;
  }
  w->load.assign(w->load.size(), 0);
  w->bin_bytes.assign(w->bin_bytes.size(), 0);
  w->pending.clear();
  LayWhole(0, w);
  return 0;  // largest first as they are
}

}  // namespace

void LayLpt(const Problem& problem, uint64_t whole_below, size_t* whole, PlanWorkspace* w) {
  const auto splits = [whole_below](const PlanWorkspace::SizedFlow& flow) { return flow.bytes >= whole_below; };
  const size_t splittable = std::partition_point(w->order.begin(), w->order.end(), splits) - w->order.begin();
  SetOffsets(problem, w);
  const bool equal = AllInterchangeable(*w);
  w->load.assign(w->offset.begin(), w->offset.end());
  if (!equal) {
    const uint64_t largest_piece = splittable > 0 ? whole_below - 1 : w->order[0].bytes;
    AddCarriedError(problem, static_cast<double>(largest_piece), w);
  }
  const uint64_t whole_bytes = LayWhole(splittable, w);
  *whole = w->pending.size();
  if (splittable == 0) return;
  SetDeficits(problem.total_bytes - whole_bytes, w);
  WrapAround(problem, splittable, w);
  LayRest(problem, w);
  // Flows of one to three minimums leave little choice where to cut them: then whole ones may come out more even.
  constexpr double kEvenEnough = 1e-3;  // of what a bin gets
  const double mean = static_cast<double>(problem.total_bytes) / static_cast<double>(w->usable.size());
  if (equal && SpreadOfLoads(*w) > kEvenEnough * mean) *whole = TryAllWhole(*whole, w);
}

void MatchBinsToRails(const Problem& problem, PlanWorkspace* w) {
  const size_t bins = w->usable.size();
  const absl::Span<double> sender = problem.ledger->Sender();
  const absl::Span<double> pair = problem.ledger->Pair(problem.destination);
  const auto lighter_rail = [&](uint32_t a, uint32_t b) {
    const uint32_t rail_a = w->usable[a];
    const uint32_t rail_b = w->usable[b];
    if (sender[rail_a] != sender[rail_b]) return sender[rail_a] < sender[rail_b];
    if (pair[rail_a] != pair[rail_b]) return pair[rail_a] < pair[rail_b];
    const double backlog_a = Backlog(problem.rails[rail_a]);
    const double backlog_b = Backlog(problem.rails[rail_b]);
    return backlog_a != backlog_b ? backlog_a < backlog_b : rail_a < rail_b;
  };
  const auto larger_bin = [&](uint32_t a, uint32_t b) {
    return w->bin_bytes[a] != w->bin_bytes[b] ? w->bin_bytes[a] > w->bin_bytes[b] : a < b;
  };
  for (uint32_t first = 0; first < bins; ++first) {
    // Each group of interchangeable bins once, when its first is met.
    w->bin_order.clear();
    bool met = false;
    for (uint32_t b = 0; b < bins; ++b) {
      if (b != first && !Interchangeable(first, b, *w)) continue;
      met = met || b < first;
      w->bin_order.push_back(b);
    }
    if (met || w->bin_order.size() < 2) continue;
    w->rail_order.assign(w->bin_order.begin(), w->bin_order.end());
    std::sort(w->bin_order.begin(), w->bin_order.end(), larger_bin);
    std::sort(w->rail_order.begin(), w->rail_order.end(), lighter_rail);
    for (size_t i = 0; i < w->bin_order.size(); ++i) {
      w->rail_of_bin[w->bin_order[i]] = w->usable[w->rail_order[i]];
    }
  }

  double sum_of_speeds = 0;
  for (const double speed : w->speed) sum_of_speeds += speed;
  for (size_t b = 0; b < bins; ++b) {
    const double share = static_cast<double>(problem.total_bytes) * w->speed[b] / sum_of_speeds;
    const double error = static_cast<double>(w->bin_bytes[b]) - share;
    sender[w->rail_of_bin[b]] += error;
    pair[w->rail_of_bin[b]] += error;
  }
}

}  // namespace railsd::plan_internal
