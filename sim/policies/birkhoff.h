// Birkhoff's decomposition: a matrix with equal row and column sums is a sum of permutations.
#ifndef RAILSD_SIM_POLICIES_BIRKHOFF_H_
#define RAILSD_SIM_POLICIES_BIRKHOFF_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace railsd::sim {

// Each source sends `bytes` to the destination that the stage names. A part of that may be padding.
struct Stage {
  uint64_t bytes = 0;
  std::vector<uint32_t> destinations;  // by source
};

// Pads the matrix of `size` x `size` cells (row by row) until all row and column sums equal the largest one, and
// decomposes it. The stages' bytes add up to that sum. At most size^2 stages; costs O(size^4).
std::vector<Stage> Decompose(std::vector<uint64_t> cells, size_t size);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_POLICIES_BIRKHOFF_H_
