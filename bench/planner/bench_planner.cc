// Time and allocations of planning all bytes that one node sends in one job: BuildPlan once per destination, with the
// same ledger and workspace, as in the engine. A plan is a list of runs, not of chunks. `cut` also walks every chunk of
// every run, as rails do later, for a comparison with planners that place chunk by chunk.
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "agent/plan/plan.h"

namespace {
std::atomic<uint64_t> allocations{0};
}

// Not inlined: otherwise the compiler sees malloc() with delete and warns of a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace railsd {
namespace {

constexpr uint64_t kBytesPerDestination = 64 << 20;

struct Shape {
  uint32_t destinations;
  uint32_t rails;
  uint32_t ranks;  // flows per destination: ranks x ranks
  bool equal_rails = true;
  bool odd_sizes = false;  // flows of different sizes, which the planner must sort
  bool cut = false;
  Policy policy = Policy::kLpt;
};

std::vector<PlanFlow> MakeFlows(const Shape& shape) {
  std::vector<PlanFlow> flows;
  const uint64_t mean = kBytesPerDestination / shape.ranks / shape.ranks;
  for (uint32_t s = 0; s < shape.ranks; ++s) {
    for (uint32_t d = 0; d < shape.ranks; ++d) {
      const uint64_t index = flows.size();
      const uint64_t odd = index * 2654435761u % mean;  // one flow of a pair gains what the other loses
      const uint64_t bytes = !shape.odd_sizes ? mean : index % 2 == 0 ? mean + odd / 2 : mean - odd / 2;
      flows.push_back({.bytes = bytes, .source_local_rank = s, .destination_local_rank = d, .hash = index});
    }
  }
  return flows;
}

uint64_t CountChunks(const PlanWorkspace& plan, uint64_t chunk_bytes) {
  uint64_t chunks = 0;
  for (const PlanRun& run : plan.runs) {
    for (uint64_t left = run.length_bytes; left > 0; left -= NextChunkBytes(left, chunk_bytes)) ++chunks;
  }
  return chunks;
}

void Plan(benchmark::State& state, const Shape& shape) {
  const std::vector<PlanFlow> flows = MakeFlows(shape);
  std::vector<PlanRail> rails(shape.rails, PlanRail{.speed_bytes_per_s = 50e9});
  if (!shape.equal_rails) {
    for (uint32_t i = 0; i < shape.rails; ++i) rails[i].speed_bytes_per_s = i % 2 == 0 ? 50e9 : 25e9;
  }
  const PlanOptions options{.policy = shape.policy};
  Ledger ledger(shape.rails);
  PlanWorkspace workspace;
  uint64_t chunks = 0;
  const auto plan_all = [&] {
    for (uint32_t destination = 0; destination < shape.destinations; ++destination) {
      if (!BuildPlan(flows, rails, PeerIndex(destination), options, &ledger, &workspace).ok()) std::abort();
      benchmark::DoNotOptimize(workspace.runs.data());
      if (shape.cut) benchmark::DoNotOptimize(chunks += CountChunks(workspace, options.chunk_bytes));
    }
  };
  plan_all();  // buffers reach their final size here
  chunks = 0;
  const uint64_t before = allocations.load();
  for (auto _ : state) plan_all();
  const double iterations = static_cast<double>(state.iterations());
  const double plans = iterations * shape.destinations;
  state.counters["allocations"] = static_cast<double>(allocations.load() - before) / plans;
  state.counters["runs"] = static_cast<double>(workspace.runs.size()) * shape.destinations;
  if (shape.cut) state.counters["chunks"] = static_cast<double>(chunks) / iterations;
}

// 64 MiB for each destination: 4 GiB for 64 of them, 64 GiB for 1,024.
BENCHMARK_CAPTURE(Plan, 64x8, Shape{64, 8, 1})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 128x8, Shape{128, 8, 1})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 128x8_unequal_rails, Shape{.destinations = 128, .rails = 8, .ranks = 1, .equal_rails = false})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 1024x8, Shape{1024, 8, 1})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 64x8_cut_into_chunks, Shape{.destinations = 64, .rails = 8, .ranks = 1, .cut = true})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 64x8_64_rank_pairs, Shape{64, 8, 8})->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 64x8_64_odd_rank_pairs, Shape{.destinations = 64, .rails = 8, .ranks = 8, .odd_sizes = true})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 1024x8_64_odd_rank_pairs,
                  Shape{.destinations = 1024, .rails = 8, .ranks = 8, .odd_sizes = true})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 64x8_unequal_rails, Shape{.destinations = 64, .rails = 8, .ranks = 1, .equal_rails = false})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 64x8_round_robin,
                  Shape{.destinations = 64, .rails = 8, .ranks = 1, .policy = Policy::kRoundRobin})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(Plan, 1x8_100000_tiny_flows, Shape{1, 8, 316})->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace railsd

BENCHMARK_MAIN();
