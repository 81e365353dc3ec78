// Counts what one job in the steady state costs the engine's thread of one node of a cluster (world.h), from the
// submissions of its ranks to the end of their waits. Work of other threads of a daemon is not counted: checking
// submissions, streams of many ranges, rails, copies, the link.
//
//   bench_engine [nodes=N] [rails=N] [partners=N] [exchange_bytes=N] [chunk_bytes=N] [eager_bytes=N] [single=1]
//   [warm_up=N] [jobs=N]
//
// Prints one JSON object of counts for each job. Instructions are counted from outside: by callgrind, with
// --toggle-collect=CountedTurn.
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "bench/engine/world.h"
#include "tests/support/allocations.h"

// Has a C name, so that the callgrind option --toggle-collect can name it.
extern "C" [[gnu::noinline]] void CountedTurn(absl::FunctionRef<void()> turn) { turn(); }

namespace railsd {
namespace {

using Turn = absl::FunctionRef<void()>;

// Runs turns one by one on a thread of its own, as a daemon does. malloc gives this thread its own arena, so it does
// not reuse blocks that the other nodes of the cluster have freed. Lives until the process exits.
class EngineThread {
 public:
  EngineThread() {
    std::thread([this] {
      for (;; done_.release()) {
        given_.acquire();
        (*turn_)();
      }
    }).detach();
  }
  void Run(Turn turn) {
    turn_ = &turn;
    given_.release();
    done_.acquire();
  }

 private:
  const Turn* turn_ = nullptr;
  std::binary_semaphore given_{0}, done_{0};
};

int Run(std::map<std::string, uint64_t> numbers) {
  Shape shape;
  shape.nodes = numbers["nodes"];
  shape.rails = numbers["rails"];
  shape.partners = static_cast<uint32_t>(numbers["partners"]);
  shape.exchange_bytes = numbers["exchange_bytes"];
  shape.chunk_bytes = numbers["chunk_bytes"];
  shape.eager_bytes = numbers["eager_bytes"];
  shape.single = numbers["single"] != 0;
  World world(shape);
  EngineThread thread;
  for (uint64_t i = 0; i < numbers["warm_up"]; ++i) world.RunJob([&](Turn turn) { thread.Run(turn); });
  testing::Allocations allocations;
  const Messages messages_before = world.messages();
  const uint64_t chunks_before = world.Chunks(), turns_before = world.turns();
  for (uint64_t i = 0; i < numbers["jobs"]; ++i) {
    const auto counted = [&](Turn turn) {
      const testing::Allocations before = testing::AllocationsOfThisThread();
      CountedTurn(turn);
      const testing::Allocations after = testing::AllocationsOfThisThread();
      allocations.count += after.count - before.count;
      allocations.bytes += after.bytes - before.bytes;
    };
    world.RunJob([&](Turn turn) { thread.Run([&] { counted(turn); }); });
  }
  const double jobs = static_cast<double>(numbers["jobs"]);
  const auto each = [&](uint64_t total) { return static_cast<double>(total) / jobs; };
  const Messages& messages = world.messages();
  const nlohmann::json report = {
      {"nodes", shape.nodes},
      {"jobs", numbers["jobs"]},
      {"flows", world.flows()},
      {"chunks", each(world.Chunks() - chunks_before) / 2},
      {"turns", each(world.turns() - turns_before)},
      {"allocations", each(allocations.count)},
      {"allocated_bytes", each(allocations.bytes)},
      {"messages_out", each(messages.out - messages_before.out)},
      {"messages_in", each(messages.in - messages_before.in)},
      {"ready", each(messages.ready - messages_before.ready)},
      {"late_grant", each(messages.late_grant - messages_before.late_grant)},
      {"tally", each(messages.tally - messages_before.tally)},
      {"other", each(messages.other - messages_before.other)},
  };
  std::cout << report.dump() << "\n" << std::flush;
  std::_Exit(0);  // skips the destructors of the cluster, which take longer than a job
}

}  // namespace
}  // namespace railsd

int main(int argc, char** argv) {
  std::map<std::string, uint64_t> numbers = {{"nodes", 2},
                                             {"rails", 8},
                                             {"partners", 8},
                                             {"exchange_bytes", 128 << 10},
                                             {"chunk_bytes", 16 << 10},
                                             {"eager_bytes", 0},
                                             {"single", 0},
                                             {"warm_up", 6},
                                             {"jobs", 4}};
  for (int i = 1; i < argc; ++i) {
    const std::pair<std::string, std::string> word = absl::StrSplit(argv[i], absl::MaxSplits('=', 1));
    const auto number = numbers.find(word.first);
    if (number == numbers.end() || !absl::SimpleAtoi(word.second, &number->second)) {
      std::cerr << "bench_engine: what is " << argv[i] << "?\n";
      return 2;
    }
  }
  return railsd::Run(std::move(numbers));
}
