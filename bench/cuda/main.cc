// Ranks with device memory, one thread each: checks every byte of jobs between whose kernels the host waits for
// nothing, and measures staging beside the two things that it overlaps. Prints a JSON object for each result.
//
//   rails_cuda_ranks [OPTIONS] SOCKET_DIR...
#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/cuda/rank.h"

namespace railsd::bench {
namespace {

// Seconds of a round by rank; the slowest one counts.
struct Ways {
  std::vector<double> rails, copies, staged;
};

// The threads of all ranks. A rank that fails ends the program, because the others would wait for it.
class Ranks {
 public:
  // `only`: the others run in other processes.
  Ranks(const CudaOptions& options, uint32_t rounds, std::optional<uint32_t> only)
      : options_(options), only_(only), ways_(rounds), together_(only ? 1 : options.world_size) {
    const std::vector<double> none(options.world_size);
    for (Ways& round : ways_) round = {none, none, none};
  }

  void Run() {
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < options_.world_size; ++rank) {
      if (rank == only_.value_or(rank)) threads.emplace_back([this, rank] { RunRank(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Ways& round : ways_) {
      std::printf("{\"rails_seconds\": %.6f, \"copies_seconds\": %.6f, \"staged_seconds\": %.6f}\n",
                  Slowest(round.rails), Slowest(round.copies), Slowest(round.staged));
    }
  }

 private:
  static double Slowest(const std::vector<double>& seconds) {
    return *std::max_element(seconds.begin(), seconds.end());
  }

  void RunRank(uint32_t number) {
    absl::StatusOr<std::unique_ptr<CudaRank>> joined = CudaRank::Join(options_, number);
    Require(joined.status(), number);
    CudaRank& rank = **joined;
    if (number == only_.value_or(0)) {
      std::printf("{\"device\": \"%s\", \"driver_version\": %d, \"stream_waits\": %s, \"dma_buf\": \"%s\"}\n",
                  rank.capabilities().device.c_str(), rank.capabilities().driver_version,
                  rank.capabilities().stream_waits.present ? "true" : "false",
                  rank.capabilities().dma_buf.present ? "" : rank.capabilities().dma_buf.reason.c_str());
    }
    Require(rank.CheckBytes(), number);
    together_.arrive_and_wait();
    std::printf("{\"rank\": %u, \"turns\": %u, \"bytes\": %llu, \"local_bytes\": %llu, \"wrong\": 0}\n", number,
                options_.turns, static_cast<unsigned long long>(options_.bytes),
                static_cast<unsigned long long>(rank.local_bytes()));
    for (Ways& round : ways_) {
      Time(&CudaRank::TimeRails, rank, number, &round.rails[number]);
      Time(&CudaRank::TimeCopies, rank, number, &round.copies[number]);
      Time(&CudaRank::TimeStaged, rank, number, &round.staged[number]);
    }
    together_.arrive_and_wait();  // a rank that leaves ends the group
  }

  void Time(absl::StatusOr<double> (CudaRank::*way)(), CudaRank& rank, uint32_t number, double* seconds) {
    together_.arrive_and_wait();
    const absl::StatusOr<double> taken = (rank.*way)();
    Require(taken.status(), number);
    *seconds = *taken;
  }

  static void Require(const absl::Status& status, uint32_t rank) {
    if (status.ok()) return;
    static std::mutex one;
    const std::lock_guard<std::mutex> lock(one);
    std::fprintf(stderr, "rank %u: %s\n", rank, status.ToString().c_str());
    std::fflush(nullptr);
    // 3: there is no device to try this on.
    std::_Exit(status.code() == absl::StatusCode::kNotFound ? 3 : 1);
  }

  const CudaOptions options_;
  const std::optional<uint32_t> only_;
  std::vector<Ways> ways_;
  std::barrier<> together_;
};

}  // namespace
}  // namespace railsd::bench

int main(int argc, char** argv) {
  railsd::bench::CudaOptions options;
  uint32_t rounds = 0;
  std::optional<uint32_t> only;
  CLI::App app("Ranks with device memory: every byte checked, staging measured.");
  app.add_option("--driver", options.driver, "the driver's library");
  app.add_option("--device", options.device, "ordinal of the device");
  app.add_option("--world", options.world_size,
                 "ranks; rank r uses the daemon of SOCKET_DIR number r modulo their count")
      ->check(CLI::Range(2, 64));
  app.add_option("--rank", only, "the only rank that runs here");
  app.add_option("--bytes", options.bytes, "bytes that each rank sends");
  app.add_option("--turns", options.turns, "jobs whose bytes are checked");
  app.add_option("--seed", options.seed, "seed of the bytes");
  app.add_option("--rounds", rounds, "rounds of measurements");
  app.add_option("--slice-bytes", options.staging.slice_bytes, "Staging::slice_bytes");
  app.add_option("--slices", options.staging.slices, "Staging::slices");
  app.add_option("--local-copies", options.staging.local_copies, "Staging::local_copies");
  app.add_option("SOCKET_DIR", options.socket_dirs, "folders of the daemons' sockets")->required();
  CLI11_PARSE(app, argc, argv);
  railsd::bench::Ranks(options, rounds, only).Run();
  return 0;
}
