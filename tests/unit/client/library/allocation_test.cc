// Allocations of the client library for a job, on the thread that submits it and waits for it.
#include "tests/support/allocations.h"
#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using railsd::testing::AllocationsOfThisThread;

constexpr uint64_t kWarmUp = 32, kJobs = 32;

class AllocationTest : public ClientTest {
 protected:
  // Per job.
  template <typename Submit>
  double CostOf(Submit submit) {
    for (uint64_t seq = 1; seq <= kWarmUp + kJobs; ++seq) daemon_->FinishJob(seq);
    uint64_t count = 0;
    for (uint64_t i = 0; i < kWarmUp + kJobs; ++i) {
      const uint64_t before = AllocationsOfThisThread().count;
      {
        const absl::StatusOr<std::shared_ptr<Job>> job = submit();
        if (!job.ok()) ADD_FAILURE() << job.status();
        const absl::StatusOr<JobReport> report = (*job)->Wait();
        EXPECT_TRUE(report.ok() && report->status.ok());
      }
      if (i >= kWarmUp) count += AllocationsOfThisThread().count - before;
    }
    return static_cast<double>(count) / kJobs;
  }
};

TEST_F(AllocationTest, APreparedJob) {
  auto send = MakeSegment(), receive = MakeSegment();
  auto group = Join();
  AllToAllv layout;
  for (uint32_t rank = 1; rank < 4; ++rank) {
    layout.sends.push_back({rank, {}});
    layout.receives.push_back({rank, {}});
    for (uint64_t i = 0; i < 100; ++i) {
      layout.sends.back().ranges.push_back({send, (rank * 100 + i) * 64, 32});
      layout.receives.back().ranges.push_back({receive, (rank * 100 + i) * 64, 32});
    }
  }
  const auto prepared = group->Prepare(layout);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  Lengths lengths = {.sends = {1, 2, 3}, .receives = {4, 5, 6}};
  // Two for the lease of a request and the attempt, two for the job and its handle, two for the rails' bytes in the
  // report and two for the caller's copy, two for the report's job in the message that it comes in, and two when the
  // thread sleeps: a condition variable.
  EXPECT_LE(CostOf([&] { return group->Submit(*prepared, lengths); }), 13);
}

}  // namespace
}  // namespace rails::testing
