// Seeds of random tests. `--gtest_random_seed=N` gives one; without it every run draws the same. The seed is logged.
#ifndef RAILSD_TESTS_SUPPORT_SEEDS_H_
#define RAILSD_TESTS_SUPPORT_SEEDS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

namespace railsd::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

inline uint64_t SeedOr(uint64_t otherwise) {
  // UnitTest::random_seed() is 0 unless tests are shuffled.
  const int flag = GTEST_FLAG_GET(random_seed);
  return flag > 0 ? static_cast<uint64_t>(flag) : otherwise;
}

// The seed of a test that draws once.
inline uint64_t Seed() {
  const uint64_t seed = SeedOr(1);
  std::printf("seed: --gtest_random_seed=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

inline std::mt19937_64 SeededRandom() { return std::mt19937_64(Seed()); }

// How often a test repeats itself. A build with sanitizers is many times slower and looks for other mistakes than wrong
// results, so it repeats a tenth.
inline uint64_t Rounds(uint64_t count) { return kSanitized ? (count + 9) / 10 : count; }

// The seeds of a test that repeats itself: 1 to Rounds(count), or the one that was given.
inline std::vector<uint64_t> Seeds(uint64_t count) {
  if (const uint64_t given = SeedOr(0); given != 0) return {given};
  std::vector<uint64_t> seeds(Rounds(count));
  for (size_t i = 0; i < seeds.size(); ++i) seeds[i] = i + 1;
  return seeds;
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_SUPPORT_SEEDS_H_
