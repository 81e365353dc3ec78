// Deadlines, and what a step of the wall clock does to waits: nothing.
#include "client/src/deadline.h"

#include <future>
#include <thread>

#include "tests/support/wall_clock.h"
#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using internal::Deadline;
using internal::WaitQueue;
using railsd::testing::WallClockStep;

TEST(DeadlineTest, PassesWhenItsTimeIsOver) {
  EXPECT_TRUE(Deadline::After(absl::ZeroDuration()).passed());
  EXPECT_TRUE(Deadline::After(-absl::Seconds(1)).passed());
  EXPECT_LT(Deadline::After(-absl::Seconds(1)).left(), absl::ZeroDuration());
  const Deadline later = Deadline::After(absl::Hours(1));
  EXPECT_FALSE(later.passed());
  EXPECT_LE(later.left(), absl::Hours(1));
  EXPECT_GT(later.left(), absl::ZeroDuration());
}

TEST(DeadlineTest, LongTimesAreNoLimit) {
  EXPECT_EQ(Deadline::Never().left(), absl::InfiniteDuration());
  EXPECT_EQ(Deadline::After(absl::InfiniteDuration()), Deadline::Never());
  EXPECT_EQ(Deadline::After(absl::Hours(24 * 365 * 1000)), Deadline::Never());
  EXPECT_LT(Deadline::After(absl::Hours(24 * 365 * 99)), Deadline::Never());
  EXPECT_TRUE(Deadline::After(-absl::Hours(24 * 365 * 99)).passed());
}

TEST(WaitQueueTest, LooksAtTheConditionFirstAndLast) {
  absl::Mutex mutex;
  WaitQueue queue;
  absl::MutexLock lock(&mutex);
  EXPECT_TRUE(queue.Await(
      mutex, [] { return true; }, Deadline::After(-absl::Seconds(1))));
  EXPECT_FALSE(queue.Await(
      mutex, [] { return false; }, Deadline::After(-absl::Seconds(1))));
  int looks = 0;
  EXPECT_TRUE(queue.Await(
      mutex, [&looks] { return ++looks == 2; }, Deadline::After(absl::Milliseconds(1))));
}

TEST(WaitQueueTest, WakesThoseWhoWait) {
  for (const Deadline deadline : {Deadline::Never(), Deadline::After(absl::Hours(1))}) {
    absl::Mutex mutex;
    WaitQueue queue;
    bool done = false, looked = false;
    std::thread changer([&] {
      const auto waits = [&] {
        absl::MutexLock lock(&mutex);
        return looked;
      };
      EXPECT_TRUE(Until(waits));
      absl::MutexLock lock(&mutex);
      done = true;
      queue.WakeAll();
    });
    {
      absl::MutexLock lock(&mutex);
      const auto condition = [&] {
        looked = true;
        return done;
      };
      EXPECT_TRUE(queue.Await(mutex, condition, deadline));
    }
    changer.join();
  }
}

class WallClockTest : public ClientTest {
 protected:
  WallClockTest() : group_(Join()), job_(Submit()) {}

  std::shared_ptr<Job> Submit() { return *group_->Submit(Exchange(MakeSegment(), MakeSegment())); }
  std::future<absl::StatusOr<JobReport>> BeginWait(absl::Duration timeout) {
    return std::async(std::launch::async, [this, timeout] { return job_->Wait(timeout); });
  }
  static bool Ready(const std::future<absl::StatusOr<JobReport>>& result) {
    return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::unique_ptr<Group> group_;
  std::shared_ptr<Job> job_;
};

TEST_F(WallClockTest, AStepForwardEndsNoWait) {
  auto result = BeginWait(absl::Hours(1));
  const WallClockStep step(absl::Hours(2));
  for (uint64_t seq = 2; seq <= 20; ++seq) {  // wakes whoever reads the ring, which then looks at its deadline
    auto other = Submit();
    daemon_->FinishJob(seq);
    EXPECT_TRUE(other->Wait(absl::Hours(1))->terminal);
  }
  EXPECT_FALSE(Ready(result)) << "an hour has not passed";
  daemon_->FinishJob(1);
  const absl::StatusOr<JobReport> report = result.get();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->terminal);
}

TEST_F(WallClockTest, AStepBackProlongsNoWait) {
  auto result = BeginWait(absl::Milliseconds(500));
  const WallClockStep step(-absl::Hours(2));
  EXPECT_TRUE(Until([&] { return Ready(result); }));
  daemon_->FinishJob(1);
  const absl::StatusOr<JobReport> report = result.get();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->terminal);
}

}  // namespace
}  // namespace rails::testing
