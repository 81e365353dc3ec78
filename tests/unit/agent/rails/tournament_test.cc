#include "agent/rails/tournament.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace railsd {
namespace {

TEST(TournamentTest, FindsTheFirstLargestFromAnywhere) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Tournament<uint64_t> tree;
    std::vector<uint64_t> keys(1 + random() % 40);
    for (int i = 0; i < 200; ++i) {
      const size_t entry = random() % keys.size();
      keys[entry] = random() % 4;
      tree.Set(entry, keys[entry]);
      const uint64_t largest = *std::max_element(keys.begin(), keys.end());
      ASSERT_EQ(tree.largest(), largest);
      if (largest == 0) continue;
      const size_t start = random() % 2 == 0 ? random() % 80 : size_t{UINT32_MAX} + 1;
      size_t expected = keys.size();
      for (size_t k = start; k < keys.size() && expected == keys.size(); ++k)
        expected = keys[k] == largest ? k : expected;
      for (size_t k = 0; k < keys.size() && expected == keys.size(); ++k) expected = keys[k] == largest ? k : expected;
      ASSERT_EQ(tree.Find(start), expected);
    }
  }
}

}  // namespace
}  // namespace railsd
