// Helpers of the planner's tests: they build inputs and check that a plan is valid.
#ifndef RAILSD_TESTS_UNIT_AGENT_PLAN_PLAN_TEST_UTIL_H_
#define RAILSD_TESTS_UNIT_AGENT_PLAN_PLAN_TEST_UTIL_H_

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <map>
#include <random>
#include <vector>

#include "agent/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/support/seeds.h"

namespace railsd::plan_test {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

using testing::Rounds;
using testing::Seed;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  uint64_t Below(uint64_t limit) { return engine_() % limit; }
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  // Sizes over all magnitudes up to `high`.
  uint64_t Size(uint64_t high) { return Below(2 + (high >> Below(30))); }

 private:
  std::mt19937_64 engine_;
};

inline std::vector<PlanFlow> Flows(const std::vector<uint64_t>& bytes) {
  std::vector<PlanFlow> flows;
  for (const uint64_t b : bytes) flows.push_back({.bytes = b});
  return flows;
}

inline std::vector<PlanRail> EqualRails(size_t count, double speed = 1e9) {
  return std::vector<PlanRail>(count, PlanRail{.speed_bytes_per_s = speed});
}

inline uint64_t EffectiveMin(const PlanOptions& options) {
  return std::min(options.min_chunk_bytes, options.chunk_bytes - options.chunk_bytes / 2);
}

// The largest piece that cannot be split, as plan.h defines it.
inline uint64_t LargestPiece(const std::vector<PlanFlow>& flows, const PlanOptions& options) {
  uint64_t largest = 0;
  for (const PlanFlow& flow : flows) largest = std::max(largest, flow.bytes);
  if (options.policy == Policy::kLptFlow) return largest;
  return std::min(largest, 2 * EffectiveMin(options) - 1);
}

inline uint64_t SpreadOf(const std::vector<uint64_t>& bytes) {
  const auto [low, high] = std::minmax_element(bytes.begin(), bytes.end());
  return *high - *low;
}

// Each byte exactly once, on usable rails only; chunks as promised; sums and grouping right.
inline void ExpectIsPlan(const std::vector<PlanFlow>& flows, const std::vector<PlanRail>& rails,
                         const PlanOptions& options, const PlanWorkspace& plan) {
  std::vector<std::vector<PlanRun>> by_flow(flows.size());
  std::vector<uint64_t> rail_bytes(rails.size(), 0);
  uint32_t rail_before = 0;
  for (const PlanRun& run : plan.runs) {
    ASSERT_LT(run.flow, flows.size());
    ASSERT_LT(run.rail.value(), rails.size());
    ASSERT_GT(rails[run.rail.value()].speed_bytes_per_s, 0) << "rail " << run.rail.value();
    ASSERT_GE(run.rail.value(), rail_before) << "not grouped by rail";
    rail_before = run.rail.value();
    ASSERT_GT(run.length_bytes, 0u);
    by_flow[run.flow].push_back(run);
    rail_bytes[run.rail.value()] += run.length_bytes;
    const uint64_t chunks = (run.length_bytes + options.chunk_bytes - 1) / options.chunk_bytes;
    const uint64_t shortest = run.length_bytes / chunks;
    ASSERT_GE(shortest, std::min(EffectiveMin(options), flows[run.flow].bytes)) << "run of " << run.length_bytes;
  }
  ASSERT_EQ(plan.rail_bytes, rail_bytes);
  for (size_t f = 0; f < flows.size(); ++f) {
    std::sort(by_flow[f].begin(), by_flow[f].end(),
              [](const PlanRun& a, const PlanRun& b) { return a.offset_bytes < b.offset_bytes; });
    uint64_t next = 0;
    for (const PlanRun& run : by_flow[f]) {
      ASSERT_EQ(run.offset_bytes, next) << "flow " << f;
      next += run.length_bytes;
    }
    ASSERT_EQ(next, flows[f].bytes) << "flow " << f;
  }
}

}  // namespace railsd::plan_test

#endif  // RAILSD_TESTS_UNIT_AGENT_PLAN_PLAN_TEST_UTIL_H_
