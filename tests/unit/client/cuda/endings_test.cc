// Groups on device memory that end in any way at any moment: nothing hangs, and no access lacks an order.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/support/seeds.h"
#include "tests/unit/client/cuda/rank.h"

namespace railsd::testing {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);

void ExpectNoViolation() {
  fakeDrain(10000);
  for (uint64_t i = 0; i < fakeViolations() && i < 3; ++i) ADD_FAILURE() << fakeViolation(i);
  fakeReset();
}

// The flows of job `number`, from every rank to every rank, drawn alike by all of them.
rails::AllToAllv Draw(uint64_t seed, uint32_t world_size, uint32_t rank, bool capacities,
                      const std::shared_ptr<rails::Segment>& send, const std::shared_ptr<rails::Segment>& receive) {
  std::mt19937_64 random(seed);
  rails::AllToAllv exchange{.capacities = capacities};
  for (uint32_t from = 0; from < world_size; ++from) {
    for (uint32_t to = 0; to < world_size; ++to) {
      const uint64_t bytes = random() % 3 == 0 ? 0 : random() % 700, room = bytes + random() % 300;
      if (from == rank) exchange.sends.push_back({to, {{send, to * 700, bytes}}});
      if (to == rank) exchange.receives.push_back({from, {{receive, from * 1000, capacities ? room : bytes}}});
    }
  }
  return exchange;
}

TEST(CudaEndingsTest, AtRandomMoments) {
  for (const uint64_t seed : Seeds(60)) {
    SCOPED_TRACE(seed);
    fakeReset();
    std::mt19937_64 random(seed);
    fakeSetDelays(seed, random() % 3 == 0 ? 2000 : 100);
    fakeSetAttribute(124, static_cast<int>(random() % 2));
    const auto world_size = static_cast<uint32_t>(1 + random() % 3),
               nodes = static_cast<uint32_t>(1 + random() % world_size);
    const rails::cuda::Staging staging{.slice_bytes = 64 * world_size + random() % 300,
                                       .slices = static_cast<uint32_t>(1 + random() % 4),
                                       .local_copies = random() % 5 != 0};
    const bool capacities = random() % 2 == 0;
    const uint64_t ending = random() % 4;
    MemoryCluster cluster(world_size, seed, nodes);
    if (ending == 0) cluster.FailJob(3 + random() % 40, absl::UnavailableError("node n7 is lost"));
    std::barrier together(world_size);
    std::atomic<bool> stuck = false;
    OnRanks(world_size, [&](uint32_t number) {
      std::mt19937_64 own(seed * 31 + number);
      Rank rank(cluster, number, world_size, staging);
      ASSERT_TRUE(rank.status.ok()) << rank.status;
      const auto send = *rank.device->Allocate(700 * world_size);
      std::vector<std::shared_ptr<rails::cuda::Memory>> receives;
      std::vector<std::shared_ptr<rails::cuda::Job>> jobs;
      const uint64_t stop = own() % 60;
      for (uint64_t i = 0; i < 40 && rank.group != nullptr; ++i) {
        receives.push_back(*rank.device->Allocate(1000 * world_size));
        auto job = rank.group->Submit(Draw(seed * 1000 + i, world_size, number, capacities, send, receives.back()),
                                      rank.stream, kLimit);
        if (!job.ok()) break;
        if (own() % 2 == 0) (*job)->WaitOn(rank.stream).IgnoreError();
        jobs.push_back(*std::move(job));
        if (i != stop) continue;
        if (ending == 1) jobs[own() % jobs.size()]->Cancel().IgnoreError();
        if (ending == 2) rank.group->Leave().IgnoreError();
        if (ending == 3) rank.group = nullptr;
      }
      for (const auto& job : jobs) stuck = stuck || !job->Wait(kPatience)->terminal;
      receives.clear();
      rank.driver->cuStreamSynchronize(rank.stream);
      together.arrive_and_wait();  // ranks of a node may read what the others have sent
    });
    ASSERT_FALSE(stuck);
    ExpectNoViolation();
    if (HasFailure()) return;
  }
}

// One call of the driver fails, anywhere from the join on.
TEST(CudaEndingsTest, ByAnyCallOfTheDriver) {
  for (const std::string function :
       {"cuMemcpyAsync", "cuLaunchHostFunc", "cuStreamWaitEvent", "cuStreamCreate", "cuMemHostRegister_v2",
        "cuEventCreate", "cuEventRecord", "cuIpcGetMemHandle", "cuMemGetAddressRange_v2", "cuMemAlloc_v2",
        "cuStreamWaitValue32_v2", "cuStreamQuery", "cuStreamSynchronize", "cuCtxPushCurrent_v2"}) {
    for (const uint64_t call : Seeds(8)) {
      SCOPED_TRACE(function + ", call " + std::to_string(call));
      fakeReset();
      fakeSetDelays(call, 1000);
      MemoryCluster cluster(2, call, /*nodes=*/1 + call % 2);
      std::barrier together(2);
      std::atomic<bool> stuck = false;
      OnRanks(2, [&](uint32_t number) {
        Rank rank(cluster, number, 2, {.slice_bytes = 200, .slices = 3}, [&] {
          together.arrive_and_wait();
          if (number == 0) fakeFail(function.c_str(), static_cast<int>(call), 2);
          together.arrive_and_wait();
        });
        std::vector<std::shared_ptr<rails::cuda::Job>> jobs;
        std::vector<std::shared_ptr<rails::cuda::Memory>> memory;
        for (int i = 0; i < 4 && rank.group != nullptr; ++i) {
          auto send = rank.device->Allocate(1400), receive = rank.device->Allocate(2000);
          if (!send.ok() || !receive.ok()) break;
          memory.insert(memory.end(), {*send, *receive});
          auto job = rank.group->Submit(Draw(i, 2, number, false, *send, *receive), rank.stream, kLimit);
          if (!job.ok()) break;
          (*job)->WaitOn(rank.stream).IgnoreError();
          jobs.push_back(*std::move(job));
        }
        if (rank.group != nullptr && jobs.size() < 4) rank.group->Leave().IgnoreError();
        for (const auto& job : jobs) stuck = stuck || !job->Wait(kPatience)->terminal;
        rank.driver->cuStreamSynchronize(rank.stream);
        rank.driver->cuStreamSynchronize(rank.stream);  // the first one may be the call that fails
        together.arrive_and_wait();
      });
      ASSERT_FALSE(stuck);
      ExpectNoViolation();
      if (HasFailure()) return;
    }
  }
}

// More slices than a daemon takes jobs.
TEST(CudaEndingsTest, NotByADaemonThatTakesFewJobs) {
  fakeReset();
  MemoryCluster cluster(2, 1);
  cluster.LimitJobs(2);
  OnRanks(2, [&](uint32_t number) {
    Rank rank(cluster, number, 2, {.slice_bytes = 200, .slices = 5});
    const auto send = *rank.device->Allocate(2000), receive = *rank.device->Allocate(2000);
    const uint32_t peer = 1 - number;
    auto job = rank.group->Submit({.sends = {{peer, {{send, 0, 2000}}}}, .receives = {{peer, {{receive, 0, 2000}}}}},
                                  rank.stream, kLimit);
    ASSERT_TRUE(job.ok());
    EXPECT_TRUE((*job)->Wait(kPatience)->status.ok());
    EXPECT_GT((*job)->copies().slices, 5u);
  });
  ExpectNoViolation();
}

// A daemon that drops votes would cut a job short.
TEST(CudaEndingsTest, ByDaemonsWithoutVotes) {
  fakeReset();
  MemoryCluster cluster(2, 1);
  cluster.IgnoreVotes();
  OnRanks(2, [&](uint32_t number) {
    Rank rank(cluster, number, 2, {.slice_bytes = 200, .slices = 2});
    const auto send = *rank.device->Allocate(2000), receive = *rank.device->Allocate(2000);
    const uint32_t peer = 1 - number;
    auto job = rank.group->Submit({.sends = {{peer, {{send, 0, 2000}}}}, .receives = {{peer, {{receive, 0, 2000}}}}},
                                  rank.stream, kLimit);
    ASSERT_TRUE(job.ok());
    EXPECT_FALSE((*job)->Wait(kPatience)->status.ok());
  });
  ExpectNoViolation();
}

}  // namespace
}  // namespace railsd::testing
