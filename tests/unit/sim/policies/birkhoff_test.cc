// The decomposition that `fast` runs by.
#include "sim/policies/birkhoff.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "sim/policies/policy.h"

namespace railsd::sim {
namespace {

// The largest sum of a row or column.
uint64_t BusiestEnd(const std::vector<uint64_t>& cells, size_t size) {
  uint64_t most = 0;
  for (size_t i = 0; i < size; ++i) {
    uint64_t row = 0, column = 0;
    for (size_t j = 0; j < size; ++j) {
      row += cells[i * size + j];
      column += cells[j * size + i];
    }
    most = std::max({most, row, column});
  }
  return most;
}

void Check(const std::vector<uint64_t>& cells, size_t size) {
  const std::vector<Stage> stages = Decompose(cells, size);
  std::vector<uint64_t> carried(cells.size(), 0);
  uint64_t sum = 0;
  for (const Stage& stage : stages) {
    EXPECT_GT(stage.bytes, 0);
    sum += stage.bytes;
    std::vector<bool> taken(size, false);
    for (size_t i = 0; i < size; ++i) {
      EXPECT_FALSE(taken[stage.destinations[i]]) << "two senders to one destination";
      taken[stage.destinations[i]] = true;
      carried[i * size + stage.destinations[i]] += stage.bytes;
    }
  }
  EXPECT_EQ(sum, BusiestEnd(cells, size));
  EXPECT_LE(stages.size(), size * size);
  for (size_t cell = 0; cell < cells.size(); ++cell) EXPECT_GE(carried[cell], cells[cell]);
}

TEST(BirkhoffTest, StagesArePermutationsThatCarryEverythingInTheTimeOfTheBusiestEnd) {
  Check({}, 0);
  Check({0}, 1);
  Check({0, 5, 3, 0}, 2);
  Check({0, 1, 2, 3, 0, 4, 5, 6, 0}, 3);
  Check(std::vector<uint64_t>(64, 7), 8);
  uint64_t draw = 1;
  for (const size_t size : {4, 9, 16, 33}) {
    std::vector<uint64_t> cells(size * size);
    for (uint64_t& cell : cells) {
      draw = MixHash(draw);
      cell = draw % 3 == 0 ? draw % 1'000'000 : 0;
    }
    Check(cells, size);
  }
}

}  // namespace
}  // namespace railsd::sim
