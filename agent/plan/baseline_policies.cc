// The policies that `lpt` is compared with.
#include <algorithm>

#include "agent/plan/plan_internal.h"

namespace railsd::plan_internal {
namespace {

// The bin of the rail that `rank` owns. Ranks whose rail is dead are dealt out over the usable ones; the others stay.
uint32_t BinOfRank(uint32_t rank, const Problem& problem, const PlanWorkspace& w) {
  const uint32_t own = rank % static_cast<uint32_t>(problem.rails);
  for (uint32_t b = 0; b < w.bins.size(); ++b) {
    if (w.bins[b].rail == own) return b;
  }
  return rank % static_cast<uint32_t>(w.bins.size());
}

// Finaliser of SplitMix64: hashes of neighbouring ranks spread over all bits.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

void LayByName(const Problem& problem, Policy policy, PlanWorkspace* w) {
  for (const auto& [bytes, index] : w->order) {
    const PlanFlow& flow = problem.flows[index];
    const uint32_t rank = policy == Policy::kPinned ? flow.source_local_rank : flow.destination_local_rank;
    const bool hashed = policy == Policy::kEcmp;
    Lay(hashed ? static_cast<uint32_t>(Mix(flow.hash) % w->bins.size()) : BinOfRank(rank, problem, *w), index, 0, bytes,
        w);
  }
}

void LayRoundRobin(const Problem& problem, PlanWorkspace* w) {
  const uint64_t bins = w->bins.size();
  // How many of `count` chunks dealt in turn fall on the place `place`.
  const auto dealt = [bins](uint64_t count, uint64_t place) {
    return count > place ? (count - place + bins - 1) / bins : 0;
  };
  uint64_t& turn = problem.ledger->Turn();
  for (const auto& [bytes, flow] : w->order) {
    const uint64_t chunks = (bytes - 1) / problem.chunk_bytes + 1;
    const uint64_t shorter = bytes / chunks;      // length of a chunk,
    const uint64_t longer_ones = bytes % chunks;  // the first few being one byte longer
    uint64_t offset = 0;
    for (uint64_t place = 0; place < std::min(bins, chunks); ++place) {
      const uint64_t length = dealt(chunks, place) * shorter + dealt(longer_ones, place);
      Lay(static_cast<uint32_t>((turn + place) % bins), flow, offset, length, w);
      offset += length;
    }
    turn = (turn + chunks % bins) % bins;
  }
}

}  // namespace railsd::plan_internal
