// Jobs on rails whose devices are broken (tests/support/fake/faulty_transport.h), over many seeds.
// `--gtest_random_seed=N` runs seed N alone; without it every run draws the same.
#include <gtest/gtest.h>

#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/fault_world.h"

namespace railsd::testing {
namespace {

using Code = absl::StatusCode;

enum class Rails { kPlacing, kWriting, kWeak };

class FaultTest : public ::testing::TestWithParam<Rails> {
 protected:
  static FaultWorldOptions Options() {
    FaultWorldOptions options;
    options.remote = GetParam() != Rails::kPlacing;
    options.weak_zones = GetParam() == Rails::kWeak;
    return options;
  }
  // Runs a world for each seed; stops at the first that fails.
  template <typename Body>
  void ForSeeds(FaultWorldOptions options, uint64_t count, Body body) {
    FaultCounts sum;
    uint64_t done = 0, failed = 0;
    for (uint64_t seed : Seeds(count)) {
      SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed));
      options.seed = seed;
      FaultWorld world(options);
      world.Live();
      world.Settle();
      body(world);
      if (HasFailure()) return;
      sum += world.counts();
      done += world.done();
      for (const auto& [code, n] : world.failed()) failed += n;
    }
    std::cout << "parts done " << done << ", failed as promised " << failed << "; partial posts " << sum.parts_of_posts
              << ", failed posts " << sum.failed_posts << ", broken connections " << sum.broken << ", late " << sum.late
              << ", lost sends " << sum.lost_sends << ", lost arrivals " << sum.lost_arrivals << ", repeated arrivals "
              << sum.repeated_arrivals << "\n";
    EXPECT_TRUE(done > 0 || Seeds(count).size() == 1);
  }
};

// Queues that are full, completions that are late and in any order, posts that fail, connections that break, sometimes
// all of a node: jobs end well all the same.
TEST_P(FaultTest, JobsEndWellWhateverOrderThingsHappenIn) {
  FaultWorldOptions options = Options();
  options.rates = {.part_of_post = 200, .failed_post = 20, .broken = 4, .late = 200, .shuffled = true};
  options.drains = true;
  ForSeeds(options, 15, [](FaultWorld& world) {
    world.ExpectAllDone();
    world.Check({});
  });
}

// The same where nothing breaks: each byte crosses once.
TEST_P(FaultTest, NothingIsSentInVainWhileNoConnectionBreaks) {
  FaultWorldOptions options = Options();
  options.rates = {.part_of_post = 200, .late = 200, .shuffled = true};
  options.drains = true;
  ForSeeds(options, 10, [](FaultWorld& world) {
    world.ExpectAllDone();
    world.Check({});
  });
}

// Two nodes may have no rail in common that neither has drained. Their jobs end over drained rails or fail as
// UNAVAILABLE; no job waits for its deadline.
TEST_P(FaultTest, JobsEndWhereRailsStayDrained) {
  FaultWorldOptions options = Options();
  options.rates = {.part_of_post = 200, .failed_post = 10, .broken = 4, .late = 200, .shuffled = true};
  options.drains = options.keeps_drained = true;
  ForSeeds(options, 15, [](FaultWorld& world) { world.Check({Code::kUnavailable}); });
}

// A completion that is lost for ever cannot be told from one that takes long: the job ends at its deadline, with an
// error, and nothing of it is used again before everything has come back.
TEST_P(FaultTest, WhatIsLostForEverEndsAtTheDeadline) {
  FaultWorldOptions options = Options();
  options.rates = {.late = 100, .shuffled = true, .lost_sends = 8, .lost_arrivals = 8};
  ForSeeds(options, 15, [](FaultWorld& world) {
    const FaultCounts counts = world.counts();
    if (counts.lost_sends + counts.lost_arrivals == 0) world.ExpectAllDone();
    world.Check({Code::kDeadlineExceeded, Code::kUnavailable, Code::kAborted});
  });
}

// An arrival that is told twice is never counted twice: the job fails, or had ended before.
TEST_P(FaultTest, WhatArrivesTwiceIsNotCountedTwice) {
  FaultWorldOptions options = Options();
  // Where bytes are not seen, two fences of a rail cannot be told from one that comes twice; RC delivers each once.
  if (options.remote) GTEST_SKIP();
  options.rates = {.late = 100, .shuffled = true, .repeated_arrivals = 8};
  ForSeeds(options, 15, [](FaultWorld& world) {
    if (world.counts().repeated_arrivals == 0) world.ExpectAllDone();
    world.Check({Code::kInternal});
  });
}

// All of it, with trainers that cancel, die and are impatient, rails that die and are drained, peers that are lost.
TEST_P(FaultTest, WhateverHappensNoByteIsWrongAndNothingIsLeft) {
  FaultWorldOptions options = Options();
  options.rates = {.part_of_post = 100,
                   .failed_post = 10,
                   .broken = 4,
                   .late = 200,
                   .shuffled = true,
                   .lost_sends = 4,
                   .lost_arrivals = 4,
                   .repeated_arrivals = options.remote ? 0u : 4u};
  options.cancels = options.deaths = options.deadlines = options.drains = options.lost_peers = options.dead_rails =
      true;
  ForSeeds(options, 25, [](FaultWorld& world) {
    world.Check({Code::kInternal, Code::kDeadlineExceeded, Code::kUnavailable, Code::kAborted, Code::kCancelled});
  });
}

INSTANTIATE_TEST_SUITE_P(Rails, FaultTest, ::testing::Values(Rails::kPlacing, Rails::kWriting, Rails::kWeak),
                         [](const auto& info) {
                           return std::string(info.param == Rails::kPlacing   ? "Placing"
                                              : info.param == Rails::kWriting ? "Writing"
                                                                              : "WeakZones");
                         });

}  // namespace
}  // namespace railsd::testing
