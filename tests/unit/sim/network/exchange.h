// Fabrics and matrices that the tests of the simulator share.
#ifndef RAILSD_TESTS_UNIT_SIM_NETWORK_EXCHANGE_H_
#define RAILSD_TESTS_UNIT_SIM_NETWORK_EXCHANGE_H_

#include <string_view>
#include <vector>

#include "client/workload/workload.h"
#include "gtest/gtest.h"
#include "sim/simulate.h"

namespace railsd::sim {

inline constexpr double kSpeed = 50e9;  // 400 Gbit/s
inline constexpr uint64_t kMiB = 1 << 20;

inline Fabric MakeFabric(size_t nodes, size_t rails = 8, size_t gpus = 8) {
  return {.nodes = nodes,
          .gpus_per_node = gpus,
          .rail_bytes_per_second = std::vector<double>(rails, kSpeed),
          .spines = rails};
}

inline Outcome MustSimulate(const Request& request) {
  const absl::StatusOr<Outcome> outcome = Simulate(request);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return outcome.ok() ? *outcome : Outcome();
}

// A generated exchange between GPUs, scaled to so many bytes a rank.
inline rails::workload::TrafficMatrix MakeMatrix(rails::workload::Generator generator, size_t nodes,
                                                 uint64_t bytes_per_rank, uint64_t seed = 1, uint32_t gpus = 8) {
  auto steps = rails::workload::Generate(
      {.generator = generator, .size = nodes, .seed = seed, .bytes_per_source = bytes_per_rank * gpus});
  EXPECT_TRUE(steps.ok()) << steps.status();
  const auto ranks = rails::workload::SpreadToRanks((*steps)[0].dispatch, gpus, rails::workload::Spread::kSkewed, seed);
  EXPECT_TRUE(ranks.ok()) << ranks.status();
  return *ranks;
}

}  // namespace railsd::sim

#endif  // RAILSD_TESTS_UNIT_SIM_NETWORK_EXCHANGE_H_
