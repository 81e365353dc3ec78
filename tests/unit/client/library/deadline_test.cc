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
  WallClockTest() : group_(Join()), job_(*group_->Submit(Exchange(MakeSegment(), MakeSegment()))) {}

  // Waits on another thread, and returns when the daemon has been asked.
  std::future<absl::StatusOr<JobReport>> BeginWait(absl::Duration timeout) {
    auto result = std::async(std::launch::async, [this, timeout] { return job_->Wait(timeout); });
    EXPECT_TRUE(Until([this] { return !daemon_->waits().empty(); }));
    return result;
  }
  static bool Ready(const std::future<absl::StatusOr<JobReport>>& result) {
    return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  std::unique_ptr<Group> group_;
  std::shared_ptr<Job> job_;
};

TEST_F(WallClockTest, AStepForwardEndsNoWait) {
  daemon_->AnswerEarly(1'000'000);
  auto result = BeginWait(absl::Hours(1));
  const WallClockStep step(absl::Hours(2));
  const size_t before = daemon_->waits().size();
  EXPECT_TRUE(Until([&] { return daemon_->waits().size() > before + 2 || Ready(result); }));
  EXPECT_FALSE(Ready(result)) << "an hour has not passed";
  daemon_->FinishJob(1);
  daemon_->AnswerEarly(0);
  const absl::StatusOr<JobReport> report = result.get();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->terminal);
}

TEST_F(WallClockTest, AStepBackProlongsNoWait) {
  auto result = BeginWait(absl::Milliseconds(500));
  {
    const WallClockStep step(-absl::Hours(2));
    EXPECT_TRUE(Until([&] { return daemon_->waits().size() > 1 || Ready(result); }));
  }
  EXPECT_TRUE(Ready(result)) << "it was asked for again, " << daemon_->waits().size() << " times";
  daemon_->FinishJob(1);
  const absl::StatusOr<JobReport> report = result.get();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->terminal);
}

}  // namespace
}  // namespace rails::testing
