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
#include <numeric>
#include <utility>

#include "agent/plan/plan_internal.h"

namespace railsd::plan_internal {
namespace {

using Bin = PlanWorkspace::Bin;

// Backlog past the threshold counts as load.
void SetLoads(double threshold_bytes, absl::Span<Bin> bins) {
  const auto seconds = [](const Bin& bin) { return static_cast<double>(bin.backlog_bytes) / bin.speed; };
  double least = seconds(bins[0]);
  for (const Bin& bin : bins) least = std::min(least, seconds(bin));
  for (Bin& bin : bins) {
    bin.load = std::max(0.0, static_cast<double>(bin.backlog_bytes) - least * bin.speed - threshold_bytes);
  }
}

// Bins of one speed without a load are interchangeable.
void FormGroups(uint64_t chunk_bytes, PlanWorkspace* w) {
  const absl::Span<Bin> bins = absl::MakeSpan(w->bins);
  const double threshold = static_cast<double>(kBacklogThresholdChunks) * static_cast<double>(chunk_bytes);
  uint64_t most_bytes = 0;
  for (const Bin& bin : bins) most_bytes = std::max(most_bytes, bin.backlog_bytes);
  if (static_cast<double>(most_bytes) > threshold) SetLoads(threshold, bins);
  for (uint32_t b = 0; b < bins.size(); ++b) {
    uint32_t first = 0;
    const auto alike = [](const Bin& x, const Bin& y) { return x.speed == y.speed && x.load == 0 && y.load == 0; };
    while (first < b && !alike(bins[first], bins[b])) ++first;
    bins[b].group = first;
  }
}

// Bytes that the sender has planned too much or too little on rails of one speed, up to one piece, count as load. Later
// plans thus even out errors between rails of different speeds. Errors between interchangeable rails are evened out by
// the matching, so only their mean is taken; if all rails are equal, that mean is zero by definition.
void AddCarriedError(const Problem& problem, double largest_piece, PlanWorkspace* w) {
  const absl::Span<const double> sender = problem.ledger->Sender();
  double sum_of_errors = 0, sum_of_speeds = 0;
  for (const Bin& bin : w->bins) {
    sum_of_errors += sender[bin.rail];
    sum_of_speeds += bin.speed;
    Bin& first = w->bins[bin.group];
    first.error += sender[bin.rail];
    ++first.alike;
  }
  for (Bin& bin : w->bins) {
    const Bin& first = w->bins[bin.group];
    const double mean = first.error / static_cast<double>(first.alike) - sum_of_errors * bin.speed / sum_of_speeds;
    bin.load += std::clamp(mean, -largest_piece, largest_piece);
  }
}

bool AllInterchangeable(const PlanWorkspace& w) {
  return std::all_of(w.bins.begin(), w.bins.end(), [](const Bin& bin) { return bin.group == 0; });
}

// The bin where `bytes` more would finish soonest; the first of several.
uint32_t SoonestBin(uint64_t bytes, const PlanWorkspace& w) {
  const auto finish = [bytes](const Bin& bin) { return (bin.load + static_cast<double>(bytes)) / bin.speed; };
  uint32_t best = 0;
  double soonest = finish(w.bins[0]);
  for (uint32_t b = 1; b < w.bins.size(); ++b) {
    const double other = finish(w.bins[b]);
    if (other >= soonest) continue;
    best = b;
    soonest = other;
  }
  return best;
}

// Sets each bin's deficit: what it lacks up to the finishing time at which `bytes` more fill all bins, in whole bytes
// that sum to `bytes`. Bins beyond that time lack nothing.
void SetDeficits(uint64_t bytes, PlanWorkspace* w) {
  const absl::Span<Bin> bins = absl::MakeSpan(w->bins);
  // Leaving out the bins beyond the level lowers it. Rounding could bring one back, hence the limit on rounds.
  double level = std::numeric_limits<double>::max();
  const auto lacks = [&level](const Bin& bin) { return level * bin.speed - bin.load; };
  size_t taking_part = bins.size() + 1;
  for (size_t round = 0; round <= bins.size(); ++round) {
    double sum_of_loads = static_cast<double>(bytes), sum_of_speeds = 0;
    size_t count = 0;
    for (const Bin& bin : bins) {
      if (lacks(bin) <= 0) continue;
      sum_of_loads += bin.load;
      sum_of_speeds += bin.speed;
      ++count;
    }
    if (count == taking_part || count == 0) break;
    taking_part = count;
    level = sum_of_loads / sum_of_speeds;
  }
  uint64_t left = bytes;
  for (Bin& bin : bins) {
    const double exact = std::max(0.0, lacks(bin));
    bin.deficit = exact >= static_cast<double>(left) ? left : static_cast<uint64_t>(exact);
    left -= bin.deficit;
  }
  // Rounding down leaves less than a byte a bin (more only where doubles are coarser than bytes).
  Bin* last = nullptr;
  for (size_t b = 0; b < bins.size() && left > 0; ++b) {
    if (lacks(bins[b]) <= 0) continue;
    last = &bins[b];
    ++last->deficit;
    --left;
  }
  if (left > 0) (last != nullptr ? *last : bins[SoonestBin(0, *w)]).deficit += left;
}

// The cut of a flow at the end of a bin: `now` bytes here and `held` bytes at the start of the next bin; what
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
  w->bins[bin].load += static_cast<double>(length);
  w->bins[bin].deficit -= length;
}

// Pass 2 over the first `splittable` flows; what does not fit goes to `rest`.
void WrapAround(const Problem& problem, size_t splittable, PlanWorkspace* w) {
  const size_t bins = w->bins.size();
  w->rest.clear();
  uint32_t bin = 0;
  for (size_t i = 0; i < splittable; ++i) {
    const auto [bytes, flow] = w->order[i];
    uint64_t offset = 0;
    while (offset < bytes && bin < bins) {
      const uint64_t next_lack = bin + 1 < bins ? w->bins[bin + 1].deficit : 0;
      const Cut cut = CutAt(bytes - offset, w->bins[bin].deficit, next_lack, problem.min_bytes);
      LayInto(bin, flow, offset, cut.now, w);
      LayInto(bin + 1, flow, offset + cut.now, cut.held, w);
      offset += cut.now + cut.held;
      // The tail of a flow that cannot be cut again: the bin may do for the next flow.
      if (cut.now + cut.held == 0 && w->bins[bin].deficit >= problem.min_bytes) break;
      if (offset < bytes || w->bins[bin].deficit < problem.min_bytes) ++bin;
    }
    if (offset < bytes) w->rest.push_back({flow, RailIndex(), offset, bytes - offset});
  }
}

// Pass 3: cuts the stretches that are left into pieces of one to two minimums, the longest stretch first.
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
        w->bins[bin].bytes += length;
      } else {
        Lay(bin, stretch.flow, offset, length, w);
      }
      w->bins[bin].load += static_cast<double>(length);
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
    w->bins[bin].load += static_cast<double>(bytes);
    sum += bytes;
  }
  return sum;
}

double SpreadOfLoads(const PlanWorkspace& w) {
  const auto less = [](const Bin& a, const Bin& b) { return a.load < b.load; };
  const auto [low, high] = std::minmax_element(w.bins.begin(), w.bins.end(), less);
  return high->load - low->load;
}

// On equal bins: lays all flows whole instead when that is more even, so the bounds in plan.h stay. Returns how many
// of the runs pending are flows laid whole that must come last, `whole` when nothing is changed.
size_t TryAllWhole(size_t whole, PlanWorkspace* w) {
  const double spread = SpreadOfLoads(*w);
  w->split_bins = w->bins;
  w->split_runs.swap(w->pending);
  w->pending.clear();
  for (Bin& bin : w->bins) {
    bin.load = 0;
    bin.bytes = 0;
  }
  LayWhole(0, w);
  if (SpreadOfLoads(*w) < spread) return 0;  // largest first as they are
  w->bins.swap(w->split_bins);
  w->pending.swap(w->split_runs);
  return whole;
}

}  // namespace

void LayLpt(const Problem& problem, uint64_t whole_below, size_t* whole, PlanWorkspace* w) {
  const auto splits = [whole_below](const PlanWorkspace::SizedFlow& flow) { return flow.bytes >= whole_below; };
  const size_t splittable = std::partition_point(w->order.begin(), w->order.end(), splits) - w->order.begin();
  FormGroups(problem.chunk_bytes, w);
  const bool equal = AllInterchangeable(*w);
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
  const double mean = static_cast<double>(problem.total_bytes) / static_cast<double>(w->bins.size());
  if (equal && SpreadOfLoads(*w) > kEvenEnough * mean) *whole = TryAllWhole(*whole, w);
}

void MatchBinsToRails(const Problem& problem, PlanWorkspace* w) {
  const absl::Span<Bin> bins = absl::MakeSpan(w->bins);
  const absl::Span<double> sender = problem.ledger->Sender();
  const absl::Span<double> pair = problem.ledger->Pair(problem.destination);
  // Within each group the bin with most bytes is the rail that has least so far.
  const auto larger = [bins](uint32_t a, uint32_t b) {
    if (bins[a].group != bins[b].group) return bins[a].group < bins[b].group;
    return bins[a].bytes != bins[b].bytes ? bins[a].bytes > bins[b].bytes : a < b;
  };
  const auto lighter = [](const PlanWorkspace::RailKey& a, const PlanWorkspace::RailKey& b) {
    if (a.group != b.group) return a.group < b.group;
    if (a.sender != b.sender) return a.sender < b.sender;
    if (a.pair != b.pair) return a.pair < b.pair;
    return a.backlog_bytes != b.backlog_bytes ? a.backlog_bytes < b.backlog_bytes : a.rail < b.rail;
  };
  double sum_of_speeds = 0;
  for (const Bin& bin : bins) sum_of_speeds += bin.speed;
  if (w->pending.size() == 1) {  // only one rail is to be found
    const uint32_t laid = w->pending[0].rail.value();
    const auto fits = [&](uint32_t b) { return bins[b].group == bins[laid].group; };
    double least = sender[bins[laid].rail];
    uint64_t least_backlog = bins[laid].backlog_bytes;
    for (uint32_t b = 0; b < bins.size(); ++b) {
      if (!fits(b)) continue;
      least = std::min(least, sender[bins[b].rail]);
      least_backlog = std::min(least_backlog, bins[b].backlog_bytes);
    }
    OneRunChoice choice(problem, least, least_backlog);
    const uint32_t first_rail = problem.first_rail % static_cast<uint32_t>(problem.rails);
    const auto before = [](const Bin& bin, uint32_t rail) { return bin.rail < rail; };
    const auto first = std::lower_bound(bins.begin(), bins.end(), first_rail, before);  // bins are in order of rails
    for (uint32_t i = 0; i < bins.size(); ++i) {
      const auto b = static_cast<uint32_t>((first - bins.begin() + i) % bins.size());
      if (fits(b)) choice.Offer(bins[b].rail, sender[bins[b].rail], pair[bins[b].rail], bins[b].backlog_bytes);
    }
    const auto best = std::find_if(bins.begin(), bins.end(), [&](const Bin& bin) { return bin.rail == choice.rail(); });
    std::swap(bins[laid].matched, best->matched);
  } else {
    w->rail_order.resize(bins.size());
    for (uint32_t b = 0; b < bins.size(); ++b) {
      const uint32_t rail = bins[b].rail;
      w->rail_order[b] = {bins[b].group, rail, sender[rail], pair[rail], bins[b].backlog_bytes};
    }
    w->bin_order.resize(bins.size());
    std::iota(w->bin_order.begin(), w->bin_order.end(), 0);
    std::sort(w->bin_order.begin(), w->bin_order.end(), larger);
    std::sort(w->rail_order.begin(), w->rail_order.end(), lighter);
    for (size_t i = 0; i < bins.size(); ++i) bins[w->bin_order[i]].matched = w->rail_order[i].rail;
  }
  for (const Bin& bin : bins) {
    const double error =
        static_cast<double>(bin.bytes) - static_cast<double>(problem.total_bytes) * bin.speed / sum_of_speeds;
    sender[bin.matched] += error;
    pair[bin.matched] += error;
  }
}

}  // namespace railsd::plan_internal
