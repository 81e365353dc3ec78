// One rank of `./dev bench latency`: runs all-to-all jobs back to back and reports how long they took.
//
//   bench_rank --sockets DIR --group G --world N --rank R --max-bytes B [--spin MICROSECONDS]
//
// Reads lines "BYTES JOBS" from standard input. In each job the rank sends BYTES in equal parts to all other ranks, or
// to itself if the group has one rank. A rank submits the next job as soon as the one before has ended.
// Answers each line with one JSON object: microseconds of the jobs. Content is filled before the jobs of a line and
// checked after them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "rails/client.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string sockets, group = "latency";
  uint32_t world = 2, rank = 0;
  uint64_t max_bytes = 1 << 20;
  int64_t spin_microseconds = 0;
};

template <typename T>
T Must(absl::StatusOr<T> value, const char* doing) {
  if (value.ok()) return *std::move(value);
  std::cerr << "bench_rank: " << doing << ": " << value.status() << "\n";
  std::exit(1);
}

// The byte at `offset` of the flow from `source` to `destination`, the same in all jobs of line number `line`.
std::byte Content(uint64_t line, uint32_t source, uint32_t destination, uint64_t offset) {
  return static_cast<std::byte>(line * 131 + source * 31 + destination * 7 + offset * 3 + (offset >> 8));
}

class Rank {
 public:
  explicit Rank(const Options& options) : options_(options) {
    client_ = Must(rails::Client::Connect({.socket_dir = options.sockets,
                                           .client_name = "bench_rank",
                                           .spin = absl::Microseconds(options.spin_microseconds)}),
                   "connect");
    send_ = Must(client_->CreateSegment(std::max<uint64_t>(options.max_bytes, 1)), "segment");
    receive_ = Must(client_->CreateSegment(std::max<uint64_t>(options.max_bytes, 1)), "segment");
    group_ =
        Must(client_->JoinGroup({.name = options.group, .world_size = options.world, .rank = options.rank}), "join");
  }

  nlohmann::json Run(uint64_t bytes, uint32_t jobs) {
    const uint64_t part = bytes / std::max(1u, options_.world - 1);
    ++line_;
    Fill(part);
    const rails::AllToAllv exchange = Exchange(part);
    std::vector<double> microseconds;
    microseconds.reserve(jobs);
    for (uint32_t job = 0; job < jobs; ++job) {
      const Clock::time_point begin = Clock::now();
      auto submitted = Must(group_->Submit(exchange), "submit");
      const rails::JobReport report = Must(submitted->Wait(), "wait");
      if (!report.status.ok()) Must(absl::StatusOr<int>(report.status), "job");
      microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    std::sort(microseconds.begin(), microseconds.end());
    return {{"p50_us", microseconds[jobs / 2]},
            {"p99_us", microseconds[jobs * 99 / 100]},
            {"min_us", microseconds.front()},
            {"wrong_bytes", WrongBytes(part)}};
  }

 private:
  template <typename Do>
  void ForEachPart(uint64_t part, Do call) const {
    uint64_t at = 0;
    for (uint32_t other = 0; other < options_.world; ++other) {
      if (other == options_.rank && options_.world > 1) continue;
      call(other, at);
      at += part;
    }
  }

  rails::AllToAllv Exchange(uint64_t part) const {
    rails::AllToAllv exchange;
    if (part == 0) return exchange;
    ForEachPart(part, [&](uint32_t other, uint64_t at) {
      exchange.sends.push_back({other, {{send_, at, part}}});
      exchange.receives.push_back({other, {{receive_, at, part}}});
    });
    return exchange;
  }

  void Fill(uint64_t part) {
    ForEachPart(part, [&](uint32_t other, uint64_t at) {
      for (uint64_t i = 0; i < part; ++i) {
        send_->bytes()[at + i] = Content(line_, options_.rank, other, i);
        receive_->bytes()[at + i] = ~Content(line_, other, options_.rank, i);
      }
    });
  }

  uint64_t WrongBytes(uint64_t part) const {
    uint64_t wrong = 0;
    ForEachPart(part, [&](uint32_t other, uint64_t at) {
      for (uint64_t i = 0; i < part; ++i) {
        wrong += receive_->bytes()[at + i] != Content(line_, other, options_.rank, i) ? 1 : 0;
      }
    });
    return wrong;
  }

  const Options options_;
  std::unique_ptr<rails::Client> client_;
  std::shared_ptr<rails::Segment> send_, receive_;
  std::unique_ptr<rails::Group> group_;
  uint64_t line_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("One rank of a latency benchmark.");
  app.add_option("--sockets", options.sockets)->required();
  app.add_option("--group", options.group);
  app.add_option("--world", options.world)->required()->check(CLI::Range(1, 4096));
  app.add_option("--rank", options.rank)->required();
  app.add_option("--max-bytes", options.max_bytes);
  app.add_option("--spin", options.spin_microseconds, "How long a wait polls before it sleeps.");
  CLI11_PARSE(app, argc, argv);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);  // as in the daemon, and in librails.so
  Rank rank(options);
  uint64_t bytes = 0;
  uint32_t jobs = 0;
  std::cout << "{}" << std::endl;
  while (std::cin >> bytes >> jobs) {
    if (jobs == 0 || bytes > options.max_bytes) {
      std::cerr << "bench_rank: " << jobs << " jobs of " << bytes << " bytes: at least one, of --max-bytes at most\n";
      return 1;
    }
    std::cout << rank.Run(bytes, jobs) << std::endl;
  }
  return 0;
}
