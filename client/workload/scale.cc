// Scales an exchange by a factor, and spreads it over ranks.
#include "absl/strings/str_cat.h"
#include "client/workload/random.h"
#include "client/workload/workload.h"

namespace rails::workload {
namespace {

constexpr size_t kMostEnds = 8192;

// Scales a row by num / den. Its sum is scaled as one number, rounded down.
void ScaleRow(size_t source, uint64_t num, uint64_t den, TrafficMatrix* matrix) {
  uint64_t before = 0;
  uint64_t sum = 0;
  for (size_t d = 0; d < matrix->size(); ++d) {
    sum += matrix->at(source, d);
    const uint64_t so_far = static_cast<uint64_t>(Uint128{sum} * num / den);
    matrix->at(source, d) = so_far - before;
    before = so_far;
  }
}

}  // namespace

absl::StatusOr<double> ScaleToBytesPerRank(uint64_t bytes_per_rank, uint32_t ranks_per_end, std::vector<Step>* steps) {
  const Step* largest = nullptr;
  for (const Step& step : *steps) {
    if (step.dispatch.size() == 0) continue;
    // Compares the mean bytes of an end.
    if (largest == nullptr || Uint128{step.dispatch.Total()} * largest->dispatch.size() >
                                  Uint128{largest->dispatch.Total()} * step.dispatch.size()) {
      largest = &step;
    }
  }
  if (largest == nullptr || largest->dispatch.Total() == 0) {
    return absl::InvalidArgumentError("no step moves a byte: there is nothing to scale");
  }
  const Uint128 wanted = Uint128{bytes_per_rank} * ranks_per_end * largest->dispatch.size();
  if (bytes_per_rank == 0 || ranks_per_end == 0 || wanted > kMostBytesInAll) {
    return absl::InvalidArgumentError(absl::StrCat("bytes_per_rank ", bytes_per_rank, " with ", ranks_per_end,
                                                   " ranks for each of ", largest->dispatch.size(),
                                                   " ends is not between 1 and 2^62 bytes in all"));
  }
  const uint64_t num = static_cast<uint64_t>(wanted);
  const uint64_t den = largest->dispatch.Total();
  for (Step& step : *steps) {
    for (size_t s = 0; s < step.dispatch.size(); ++s) ScaleRow(s, num, den, &step.dispatch);
  }
  return static_cast<double>(num) / static_cast<double>(den);
}

absl::StatusOr<TrafficMatrix> SpreadToRanks(const TrafficMatrix& nodes, uint32_t ranks_per_node, Spread spread,
                                            uint64_t seed) {
  const size_t per_node = ranks_per_node;
  if (per_node == 0 || per_node > kMostEnds || nodes.size() * per_node > kMostEnds) {
    return absl::InvalidArgumentError(absl::StrCat("ranks_per_node ", ranks_per_node, " on ", nodes.size(),
                                                   " nodes is not between 1 and ", kMostEnds, " ranks in all"));
  }
  Random random(seed);
  TrafficMatrix ranks(nodes.size() * per_node);
  // The same ranks of a node are popular for all sources.
  std::vector<std::vector<uint64_t>> popular(nodes.size(), std::vector<uint64_t>(per_node, 1));
  if (spread == Spread::kSkewed) {
    for (auto& weights : popular) weights = DrawMixtralWeights(per_node, 8, &random);
  }
  std::vector<uint64_t> weights(per_node * per_node);
  std::vector<uint64_t> parts;
  for (size_t s = 0; s < nodes.size(); ++s) {
    for (size_t d = 0; d < nodes.size(); ++d) {
      for (size_t i = 0; i < weights.size(); ++i) {
        const uint64_t weight = popular[d][i % per_node];
        weights[i] = spread == Spread::kSkewed ? VarySource(weight, &random) : weight;
      }
      Split(nodes.at(s, d), weights, &parts);
      for (size_t i = 0; i < parts.size(); ++i) {
        ranks.at(s * per_node + i / per_node, d * per_node + i % per_node) = parts[i];
      }
    }
  }
  return ranks;
}

}  // namespace rails::workload
