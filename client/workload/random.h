// Random numbers that are the same on every platform: SplitMix64, without floating point.
#ifndef RAILS_WORKLOAD_RANDOM_H_
#define RAILS_WORKLOAD_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rails::workload {

__extension__ typedef unsigned __int128 Uint128;

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t x = (state_ += 0x9e3779b97f4a7c15ull);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  }
  // Draws 0 to limit - 1. The bias is below limit / 2^64.
  uint64_t Below(uint64_t limit) { return static_cast<uint64_t>((Uint128{Next()} * limit) >> 64); }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }

 private:
  uint64_t state_;
};

// Splits `amount` in proportion to `weights`, whose sum is above zero and below 2^63. The parts sum exactly to
// `amount`; each differs by less than one from its exact share.
inline void Split(uint64_t amount, const std::vector<uint64_t>& weights, std::vector<uint64_t>* parts) {
  uint64_t sum = 0;
  for (const uint64_t weight : weights) sum += weight;
  parts->resize(weights.size());
  uint64_t before = 0;
  uint64_t weight_so_far = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    weight_so_far += weights[i];
    const uint64_t so_far = static_cast<uint64_t>(Uint128{amount} * weight_so_far / sum);
    (*parts)[i] = so_far - before;
    before = so_far;
  }
}

// Draws the most loaded end over the mean, in 65536ths, from the Mixtral trace's quantiles. `experts`: 8 (top-2) or 16
// (top-4).
uint64_t DrawMixtralSkew(int experts, Random* random);
// Weights of `size` ends with a mean of about 2^24. The largest is the mean times a drawn skew.
std::vector<uint64_t> DrawMixtralWeights(size_t size, int experts, Random* random);
// Varies a weight as the trace's sources vary about their mean.
uint64_t VarySource(uint64_t weight, Random* random);

}  // namespace rails::workload

#endif  // RAILS_WORKLOAD_RANDOM_H_
