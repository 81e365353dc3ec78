// Failures of a group on device memory: of a job, the driver, the device, its caller.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cuda/local_peers.h"
#include "tests/cuda/fake_driver/fake_driver.h"
#include "tests/support/until.h"
#include "tests/unit/client/cuda/rank.h"

namespace railsd::testing {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kRanks = 2;
constexpr uint64_t kBytes = 1000;
constexpr uint64_t kJoinJobs = 2;  // the first jobs of a group agree on how it works
const rails::cuda::Staging kStaging{.slice_bytes = 200, .slices = 2};

class CudaFailureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fakeReset();
    fakeSetDelays(1, 50);
  }
  void TearDown() override {
    for (uint64_t i = 0; i < fakeViolations(); ++i) ADD_FAILURE() << fakeViolation(i);
    fakeReset();
  }
};

// All ranks exchange `kBytes` with each other and with themselves.
struct Exchange {
  explicit Exchange(Rank& rank)
      : send(*rank.device->Allocate(kRanks * kBytes)), receive(*rank.device->Allocate(kRanks * kBytes)) {
    for (uint32_t peer = 0; peer < kRanks; ++peer) {
      job.sends.push_back({peer, {{send, peer * kBytes, kBytes}}});
      job.receives.push_back({peer, {{receive, peer * kBytes, kBytes}}});
    }
  }
  std::shared_ptr<rails::cuda::Memory> send, receive;
  rails::AllToAllv job;
};

absl::Status EndOf(rails::cuda::Job& job) {
  const auto report = job.Wait(absl::InfiniteDuration());
  if (!report.ok()) return report.status();
  EXPECT_TRUE(report->terminal);
  return report->status;
}

// For ranks that wait for each other after it: they must come there even if a submission fails.
absl::Status EndOf(const absl::StatusOr<std::shared_ptr<rails::cuda::Job>>& job) {
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? EndOf(**job) : job.status();
}

TEST_F(CudaFailureTest, AFailedSliceFailsItsJobAndTheGroup) {
  for (uint64_t slice = 0; slice < 6; ++slice) {
    MemoryCluster cluster(kRanks, slice);
    cluster.FailJob(kJoinJobs + 1 + slice, absl::UnavailableError("node n7 is lost"));
    OnRanks(kRanks, [&](uint32_t number) {
      Rank rank(cluster, number, kRanks, kStaging);
      Exchange exchange(rank);
      auto job = rank.group->Submit(exchange.job, rank.stream, kLimit);
      ASSERT_TRUE(job.ok());
      (*job)->WaitOn(rank.stream).IgnoreError();  // it may have failed already
      const absl::Status status = EndOf(**job);
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      rank.driver->cuStreamSynchronize(rank.stream);  // does not hang
      EXPECT_EQ((*job)->WaitOn(rank.stream).code(), absl::StatusCode::kUnavailable);
      const absl::Status later = rank.group->Submit(exchange.job, rank.stream, kLimit).status();
      EXPECT_EQ(later.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(later.message(), HasSubstr("the group is over: "));
    });
  }
}

// Ranks of one node read each other's memory: a failed job's reader may still do so, and only all ranks together may
// free.
TEST_F(CudaFailureTest, AFailureWhileRanksOfANodeRead) {
  std::barrier together(kRanks);
  for (uint64_t slice = 0; slice < 2; ++slice) {
    fakeSetDelays(slice, 2000);
    MemoryCluster cluster(kRanks, slice, /*nodes=*/1);
    cluster.FailJob(kJoinJobs + 1 + slice, absl::UnavailableError("node n7 is lost"));
    OnRanks(kRanks, [&](uint32_t number) {
      Rank rank(cluster, number, kRanks, kStaging);
      Exchange exchange(rank);
      auto job = rank.group->Submit(exchange.job, rank.stream, kLimit);
      EXPECT_EQ(EndOf(job).code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(job.ok() ? (*job)->copies().local_bytes : 0, slice * kBytes);
      together.arrive_and_wait();
    });
  }
}

// A sender of this node that means more bytes than the receiver expects.
TEST_F(CudaFailureTest, LengthsOfANodesRanksAreCompared) {
  MemoryCluster cluster(kRanks, 1, /*nodes=*/1);
  std::barrier together(kRanks);
  OnRanks(kRanks, [&](uint32_t number) {
    Rank rank(cluster, number, kRanks, kStaging);
    const auto memory = *rank.device->Allocate(kBytes);
    rails::AllToAllv exchange;
    if (number == 0) exchange.sends = {{1, {{memory, 0, kBytes}}}};
    if (number == 1) exchange.receives = {{0, {{memory, 0, kBytes - 1}}}};
    auto job = rank.group->Submit(exchange, rank.stream, kLimit);
    const absl::Status status = EndOf(job);
    EXPECT_FALSE(status.ok());
    if (number == 1) {
      EXPECT_THAT(status.message(), HasSubstr("rank 0 sends 1000 bytes, and this rank expects 999"));
    }
    together.arrive_and_wait();
  });
}

// A note or a length that makes no sense fails the job, and no byte goes where it must not.
TEST_F(CudaFailureTest, TamperedNotesAndLengthsAreFoundOut) {
  using rails::cuda::LocalNote;
  const auto note = [](auto change) {
    return [change](std::string* bytes) { change(reinterpret_cast<LocalNote*>(bytes->data())); };
  };
  const auto prefix = [](uint64_t length) {
    return [length](std::string* bytes) { std::memcpy(bytes->data(), &length, sizeof(length)); };
  };
  const struct {
    uint32_t nodes;
    bool capacities;
    std::function<void(std::string*)> change;
    const char* says;
  } kCases[] = {
      {1, false, note([](LocalNote* n) { n->part_count = LocalNote::kMaxParts + 1; }), "has 33 parts"},
      {1, false, note([](LocalNote* n) { n->part_count = UINT32_MAX; }), "parts"},
      {1, false, note([](LocalNote* n) { n->parts[0].length_bytes = UINT64_MAX; }), "has longer parts than bytes"},
      {1, false, note([](LocalNote* n) { n->parts[0].length_bytes = 1; }), "has shorter parts than bytes"},
      {1, false, note([](LocalNote* n) { n->length_bytes = kBytes + 1; }),
       "sends 1001 bytes, and this rank expects 1000"},
      {1, false, note([](LocalNote* n) { n->length_bytes = n->parts[0].length_bytes = 5; }),
       "sends 5 bytes, and this rank"},
      {2, true, prefix(UINT64_MAX), "more than the capacity of 1000"},
      {2, true, prefix(kBytes + 1), "more than the capacity of 1000"},
      {2, true, prefix(3), "has sent 108 bytes of its first slice, and its length 3 needs 11"},
  };
  std::barrier together(kRanks);
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.says);
    MemoryCluster cluster(kRanks, 1, one.nodes);
    cluster.Tamper(kJoinJobs + 1, 0, one.change);
    OnRanks(kRanks, [&](uint32_t number) {
      Rank rank(cluster, number, kRanks, kStaging);
      const auto memory = *rank.device->Allocate(kBytes);
      rails::AllToAllv exchange{.capacities = one.capacities};
      if (number == 0) exchange.sends = {{1, {{memory, 0, kBytes}}}};
      if (number == 1) exchange.receives = {{0, {{memory, 0, kBytes}}}};
      auto job = rank.group->Submit(exchange, rank.stream, kLimit);
      const absl::Status status = EndOf(job);
      EXPECT_FALSE(status.ok());
      if (number == 1) {
        EXPECT_THAT(status.message(), HasSubstr(one.says));
      }
      together.arrive_and_wait();
    });
  }
}

TEST_F(CudaFailureTest, JobsBehindAFailedOneFailToo) {
  MemoryCluster cluster(kRanks, 1);
  cluster.FailJob(kJoinJobs + 1, absl::UnavailableError("node n7 is lost"));
  OnRanks(kRanks, [&](uint32_t number) {
    Rank rank(cluster, number, kRanks, kStaging);
    Exchange first(rank), second(rank);
    cluster.Hold(true);
    auto one = rank.group->Submit(first.job, rank.stream, kLimit);
    auto two = rank.group->Submit(second.job, rank.stream, kLimit);
    cluster.Hold(false);
    ASSERT_TRUE(one.ok());
    EXPECT_EQ(EndOf(**one).code(), absl::StatusCode::kUnavailable);
    if (two.ok()) {
      EXPECT_FALSE(EndOf(**two).ok());
    }
  });
}

// Each call of the driver fails once, at each place where a job makes it.
TEST_F(CudaFailureTest, AFailedCallOfTheDriverIsNamed) {
  for (const std::string function : {"cuMemcpyAsync", "cuLaunchHostFunc", "cuStreamWaitEvent"}) {
    for (int call = 1; call < 12; ++call) {
      fakeSetDelays(static_cast<uint64_t>(call), 1000);  // copies are under way when the call fails
      MemoryCluster cluster(kRanks, 1);
      absl::Status ends[kRanks];
      OnRanks(kRanks, [&](uint32_t number) {
        Rank rank(cluster, number, kRanks, kStaging);
        Exchange exchange(rank);
        if (number == 0) fakeFail(function.c_str(), call, 2);
        auto job = rank.group->Submit(exchange.job, rank.stream, kLimit);
        ASSERT_TRUE(job.ok());
        (*job)->WaitOn(rank.stream).IgnoreError();  // it may have failed already
        ends[number] = EndOf(**job);
        rank.driver->cuStreamSynchronize(rank.stream);
      });
      // At least the rank whose call has failed says so; the other one may have ended before.
      const bool named = absl::StrContains(absl::StrCat(ends[0].message(), ends[1].message()), function);
      EXPECT_TRUE(named || (ends[0].ok() && ends[1].ok())) << ends[0] << ends[1];
      fakeDrain(10000);
      for (uint64_t i = 0; i < fakeViolations(); ++i) ADD_FAILURE() << fakeViolation(i);
      fakeReset();
    }
  }
}

TEST_F(CudaFailureTest, ADeviceThatFailsEndsTheJob) {
  MemoryCluster cluster(kRanks, 1);
  std::barrier together(kRanks);
  OnRanks(kRanks, [&](uint32_t number) {
    Rank rank(cluster, number, kRanks, kStaging);
    cluster.Hold(true);
    Exchange exchange(rank);
    auto job = rank.group->Submit(exchange.job, rank.stream, kLimit);
    EXPECT_TRUE(Until([&] { return cluster.jobs() == kJoinJobs + 1; }));  // the first slice is with the daemons of both
    together.arrive_and_wait();
    if (number == 0) {
      fakeBreakContext(700);
      cluster.Hold(false);
    }
    EXPECT_FALSE(EndOf(job).ok());
  });
}

TEST_F(CudaFailureTest, CancelEndsTheGroup) {
  MemoryCluster cluster(kRanks, 1);
  OnRanks(kRanks, [&](uint32_t number) {
    Rank rank(cluster, number, kRanks, kStaging);
    Exchange exchange(rank);
    cluster.Hold(true);
    auto job = rank.group->Submit(exchange.job, rank.stream, kLimit);
    ASSERT_TRUE(job.ok());
    if (number == 0) {
      EXPECT_TRUE((*job)->Cancel().ok());
      EXPECT_EQ(EndOf(**job).code(), absl::StatusCode::kCancelled);
    } else {
      EXPECT_FALSE(EndOf(**job).ok());
    }
  });
}

// Cancel() ends a submission that waits for a daemon: the worker is told of the end before it is told why.
TEST_F(CudaFailureTest, CancelOfASubmissionThatWaits) {
  MemoryCluster cluster(kRanks, 1);
  std::barrier together(kRanks);
  OnRanks(kRanks, [&](uint32_t number) {
    Rank rank(cluster, number, kRanks, kStaging);
    Exchange exchange(rank);
    together.arrive_and_wait();
    cluster.StallSubmissions();
    together.arrive_and_wait();
    auto job = rank.group->Submit(exchange.job, rank.stream, kLimit);
    EXPECT_TRUE(Until([&] { return cluster.stalled() == kRanks; }));
    together.arrive_and_wait();
    EXPECT_TRUE(number != 0 || (*job)->Cancel().ok());
    const absl::StatusCode code = EndOf(job).code();
    EXPECT_EQ(code, number == 0 ? absl::StatusCode::kCancelled : absl::StatusCode::kFailedPrecondition);
  });
}

TEST_F(CudaFailureTest, ADroppedGroupEndsItsJobs) {
  MemoryCluster cluster(kRanks, 1);
  OnRanks(kRanks, [&](uint32_t number) {
    Rank rank(cluster, number, kRanks, kStaging);
    Exchange exchange(rank);
    cluster.Hold(true);
    std::vector<std::shared_ptr<rails::cuda::Job>> jobs;
    for (int i = 0; i < 5; ++i) {
      auto job = rank.group->Submit(exchange.job, rank.stream, kLimit);
      if (!job.ok()) break;  // the other rank has dropped its group
      (*job)->WaitOn(rank.stream).IgnoreError();
      jobs.push_back(*std::move(job));
    }
    rank.group = nullptr;
    for (const auto& job : jobs) EXPECT_FALSE(EndOf(*job).ok());
    rank.driver->cuStreamSynchronize(rank.stream);
  });
}

TEST_F(CudaFailureTest, TheNumberOfUnfinishedJobsIsLimited) {
  MemoryCluster cluster(1, 1);
  Rank rank(cluster, 0, 1, kStaging);
  cluster.Hold(true);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(rank.group->Submit(rails::AllToAllv{}, rank.stream, kLimit).ok());
  EXPECT_EQ(rank.group->Submit(rails::AllToAllv{}, rank.stream, absl::ZeroDuration()).status().code(),
            absl::StatusCode::kUnavailable);
  cluster.Hold(false);
  EXPECT_TRUE(rank.group->Submit(rails::AllToAllv{}, rank.stream, kLimit).ok());
}

TEST_F(CudaFailureTest, RanksMustAgreeOnTheStaging) {
  MemoryCluster cluster(kRanks, 1);
  OnRanks(kRanks, [&](uint32_t number) {
    const Rank rank(cluster, number, kRanks, {.slice_bytes = 200 + number, .slices = 2});
    EXPECT_EQ(rank.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(rank.status.message(), HasSubstr("the ranks differ in slice_bytes"));
  });
}

// Flows of one rank, with `wrong` in place of the right ones.
TEST_F(CudaFailureTest, WrongExchangesAreRefusedByName) {
  MemoryCluster cluster(1, 1);
  Rank rank(cluster, 0, 1, kStaging);
  const auto memory = *rank.device->Allocate(100);
  const auto host = *rank.client->CreateSegment(100, {});
  const auto alias = *rank.device->Import(memory->address() + 10, 20);
  const auto other_client = cluster.MakeClient();
  const auto other_device = *rails::cuda::Device::Open(*other_client, {.driver = FAKE_CUDA_DRIVER});
  const auto foreign = *other_device->Allocate(10);
  const struct {
    rails::AllToAllv exchange;
    const char* says;
  } kCases[] = {
      {{.sends = {{1, {}}}}, "sends[0].rank 1 is outside the world of 1 ranks"},
      {{.sends = {{0, {}}, {0, {}}}}, "sends[1].rank 0 appears twice"},
      {{.sends = {{0, {{nullptr, 0, 1}}}}}, "sends[0].ranges[0].segment is null"},
      {{.sends = {{0, {{memory, 60, 41}}}}}, "offset_bytes 60 + length_bytes 41 is past the end of its 100 bytes"},
      {{.sends = {{0, {{memory, UINT64_MAX, 2}}}}}, "is past the end of its 100 bytes"},
      {{.receives = {{0, {{foreign, 0, 1}}}}}, "receives[0].ranges[0].segment is memory of another device"},
      {{.sends = {{0, {{memory, 0, 10}}}}, .receives = {{0, {{memory, 50, 9}}}}},
       "rank 0 sends 10 bytes to itself, and receives 9"},
      {{.sends = {{0, {{memory, 0, 10}}}}, .receives = {{0, {{alias, 5, 5}, {memory, 14, 5}}}}}, "overlaps"},
      {{.sends = {{0, {{memory, 0, 11}}}}, .receives = {{0, {{alias, 0, 11}}}}},
       "receives[0].ranges[0] overlaps sends[0].ranges[0]"},
      {{.sends = {{0, {{host, 0, 11}}}}, .receives = {{0, {{host, 10, 11}}}}}, "overlaps"},
      {{.timeout = -absl::Seconds(1)}, "timeout -1s is negative"},
  };
  for (const auto& wrong : kCases) {
    const absl::Status status = rank.group->Submit(wrong.exchange, rank.stream, kLimit).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong.says;
    EXPECT_THAT(status.message(), HasSubstr(wrong.says));
  }
  // In place is no overlap, and costs no copy.
  auto job = rank.group->Submit({.sends = {{0, {{memory, 10, 20}}}}, .receives = {{0, {{alias, 0, 20}}}}}, rank.stream,
                                kLimit);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(EndOf(**job).ok());
  EXPECT_EQ((*job)->copies().own_bytes, 0u);
}

// Freeing memory waits for the device, on which a stream waits for the next job: the worker must not do it.
TEST_F(CudaFailureTest, MemoryThatTheCallerHasDroppedIsFreedByTheCaller) {
  MemoryCluster cluster(1, 1);
  Rank rank(cluster, 0, 1, kStaging);
  auto memory = *rank.device->Allocate(100);
  cluster.Hold(true);
  auto job = *rank.group->Submit({.sends = {{0, {{memory, 0, 100}}}}, .receives = {{0, {{memory, 0, 100}}}}},
                                 rank.stream, kLimit);
  memory = nullptr;
  cluster.Hold(false);
  EXPECT_TRUE(EndOf(*job).ok());
  EXPECT_EQ(fakeCalls("cuMemFree_v2"), fakeCalls("cuMemAlloc_v2") - 1);
  EXPECT_TRUE(rank.group->Submit(rails::AllToAllv{}, rank.stream, kLimit).ok());
  EXPECT_EQ(fakeCalls("cuMemFree_v2"), fakeCalls("cuMemAlloc_v2"));
}

// A capacity costs nothing, only the bytes that come.
TEST_F(CudaFailureTest, CapacitiesCostNoSlices) {
  const struct {
    uint64_t bytes;
    uint32_t slices;
  } kCases[] = {{0, 1}, {100, 1}, {101, 2}, {200, 2}, {201, 3}, {1000, 6}};
  for (const auto& one : kCases) {
    MemoryCluster cluster(kRanks, 1);
    OnRanks(kRanks, [&](uint32_t number) {
      Rank rank(cluster, number, kRanks, kStaging);  // 100 bytes of each flow in a slice that leads
      const auto send = *rank.device->Allocate(1000), receive = *rank.device->Allocate(100000);
      rails::AllToAllv exchange{.capacities = true};
      if (number == 0) exchange.sends = {{1, {{send, 0, one.bytes}}}};
      if (number == 1) exchange.receives = {{0, {{receive, 0, 100000}}}};
      auto job = rank.group->Submit(exchange, rank.stream, kLimit);
      ASSERT_TRUE(job.ok());
      EXPECT_TRUE(EndOf(**job).ok());
      EXPECT_EQ((*job)->copies().slices, one.slices) << one.bytes;
    });
  }
}

TEST_F(CudaFailureTest, MemoryIsNamedAsTheDriverKnowsIt) {
  MemoryCluster cluster(1, 1);
  Rank rank(cluster, 0, 1, kStaging);
  const auto memory = *rank.device->Allocate(100);
  EXPECT_EQ((*rank.device->Import(memory->address() + 40, 60))->length_bytes(), 60u);
  EXPECT_THAT(rank.device->Import(memory->address() + 40, 61).status().message(),
              HasSubstr("its allocation has 60 bytes from there on"));
  EXPECT_EQ(rank.device->Import(12345, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rank.device->Allocate(0).status().code(), absl::StatusCode::kInvalidArgument);
  fakeFail("cuMemAlloc_v2", 1, 2);
  EXPECT_EQ(rank.device->Allocate(100).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CudaFailureTest, AMissingDriverOrDeviceIsToldWithWhatToDo) {
  MemoryCluster cluster(1, 1);
  const auto client = cluster.MakeClient();
  const absl::Status no_driver = rails::cuda::Device::Open(*client, {.driver = "libcuda-none.so.1"}).status();
  EXPECT_EQ(no_driver.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(no_driver.message(), HasSubstr("libcuda-none.so.1"));
  const absl::Status no_device =
      rails::cuda::Device::Open(*client, {.ordinal = 3, .driver = FAKE_CUDA_DRIVER}).status();
  EXPECT_EQ(no_device.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(no_device.message(), HasSubstr("there is no CUDA device 3: this process sees 1"));
}

TEST_F(CudaFailureTest, MemoryThatTheDaemonDoesNotTakeIsStaged) {
  fakeSetAttribute(124, 1);
  MemoryCluster cluster(1, 1);
  cluster.UseTcp();
  Rank rank(cluster, 0, 1, kStaging);
  EXPECT_FALSE(rank.device->capabilities().dma_buf.present);
  EXPECT_EQ(rank.device->capabilities().dma_buf.reason, "rail 0 is over TCP");
  EXPECT_EQ((*rank.device->Allocate(100))->staged_because(), "rail 0 is over TCP");
}

TEST_F(CudaFailureTest, MemoryIsRegisteredOnceAndNotForItsSuccessor) {
  fakeSetAttribute(124, 1);
  MemoryCluster cluster(1, 1);
  Rank rank(cluster, 0, 1, kStaging);
  EXPECT_TRUE(rank.device->capabilities().dma_buf.present);
  const uint64_t before = fakeCalls("cuMemGetHandleForAddressRange");
  const auto memory = *rank.device->Allocate(10000);
  rails::cuda::Address mine = 0;  // memory of the caller
  EXPECT_EQ(memory->staged_because(), "");
  for (uint64_t offset = 0; offset < 5; ++offset) {
    EXPECT_EQ((*rank.device->Import(memory->address() + offset, 10))->staged_because(), "");
  }
  rank.driver->cuMemAlloc_v2(&mine, 5000);
  for (int turn = 0; turn < 3; ++turn) EXPECT_EQ((*rank.device->Import(mine, 10))->staged_because(), "");
  EXPECT_EQ(fakeCalls("cuMemGetHandleForAddressRange"), before + 2);
  rank.driver->cuMemFree_v2(mine);
  fakeFail("cuMemGetHandleForAddressRange", 1, 801);
  EXPECT_THAT((*rank.device->Allocate(10000))->staged_because(), HasSubstr("cuMemGetHandleForAddressRange failed"));
}

// The exit status of a child is the number of calls that were not refused. A child that hangs is killed.
TEST_F(CudaFailureTest, AForkedChildIsRefusedAndGivesNothingBack) {
  MemoryCluster cluster(1, 1);
  Rank rank(cluster, 0, 1, kStaging);
  auto memory = *rank.device->Allocate(100);
  cluster.Hold(true);
  auto job = *rank.group->Submit(rails::AllToAllv{}, rank.stream, kLimit);
  const FakeLive live = fakeLive();
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    absl::Status told;
    job->OnDone([&](const absl::StatusOr<rails::JobReport>& report) { told = report.status(); });
    int others = 0;
    for (const absl::Status& status :
         {job->Wait(absl::InfiniteDuration()).status(), told, job->Future().get().status(), job->Cancel(),
          job->WaitOn(rank.stream), rank.group->Submit(rails::AllToAllv{}, rank.stream, kLimit).status(),
          rank.group->Leave(), rank.device->Allocate(1).status(), rank.device->Import(memory->address(), 1).status(),
          rank.device->JoinGroup({.name = "g", .world_size = 1}).status()}) {
      others += !absl::IsFailedPrecondition(status);
    }
    memory = nullptr;
    job = nullptr;
    rank.group = nullptr;
    rank.device = nullptr;
    _exit(others);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  cluster.Hold(false);
  EXPECT_TRUE(EndOf(*job).ok());
  EXPECT_EQ(fakeLive().allocations, live.allocations);
}

// Without waits of streams, WaitOn() waits itself.
TEST_F(CudaFailureTest, StreamsThatCannotWaitAreWaitedFor) {
  fakeFail("cuStreamWaitValue32_v2", 1, 801);
  MemoryCluster cluster(1, 1);
  Rank rank(cluster, 0, 1, kStaging);
  EXPECT_FALSE(rank.device->capabilities().stream_waits.present);
  EXPECT_THAT(rank.device->capabilities().stream_waits.reason, HasSubstr("cuStreamWaitValue32"));
  auto job = rank.group->Submit(rails::AllToAllv{}, rank.stream, kLimit);
  EXPECT_TRUE((*job)->WaitOn(rank.stream).ok());
  EXPECT_TRUE((*job)->Wait(absl::ZeroDuration())->terminal);
}

}  // namespace
}  // namespace railsd::testing
