// Groups that wait for daemons: what the library does by itself when one has ended.
#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <future>

#include "absl/synchronization/notification.h"
#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Stops the first thread that reads a page of `ranges`, until Open(): by a signal handler, for the length of the fault.
class FaultGate {
 public:
  explicit FaultGate(std::vector<Range>* ranges) {
    const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    ranges->reserve(4 * page_bytes / sizeof(Range));
    page_ = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(ranges->data()) / page_bytes + 1) * page_bytes);
    entered_ = open_ = false;
  }
  // `ranges` is filled.
  void Close() {
    struct sigaction action = {};
    action.sa_sigaction = &OnFault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
    ASSERT_EQ(mprotect(page_, static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_NONE), 0);
  }
  bool entered() const { return entered_; }
  void Open() { open_ = true; }
  ~FaultGate() { sigaction(SIGSEGV, &before_, nullptr); }

 private:
  static void OnFault(int, siginfo_t* info, void*) {
    const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto* const at = static_cast<std::byte*>(info->si_addr);
    const auto* const page = static_cast<std::byte*>(page_);
    if (at < page || at >= page + bytes) _exit(139);
    entered_ = true;
    while (!open_) usleep(1000);
    mprotect(page_, bytes, PROT_READ | PROT_WRITE);
  }

  static inline void* page_ = nullptr;
  static inline std::atomic<bool> entered_ = false, open_ = false;
  struct sigaction before_ = {};
};

class RestartTest : public MemoryTest {
 protected:
  void Restart() {
    EndDaemon();
    StartDaemon();
  }
  std::vector<uint64_t> Numbers() const {
    std::vector<uint64_t> numbers;
    for (const auto& submission : daemon_->submissions()) numbers.push_back(submission.job().seq());
    return numbers;
  }
  static void ExpectDone(Job& job, uint32_t replays) {
    const auto report = job.Wait(absl::Minutes(1));
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->terminal);
    EXPECT_TRUE(report->status.ok()) << report->status;
    EXPECT_EQ(report->replays, replays);
  }
};

TEST_F(RestartTest, ItsDaemonComesBackAndUnfinishedJobsAreHandedOverAgain) {
  const auto group = JoinKept();
  const auto first = Submit(*group), second = Submit(*group), third = Submit(*group);
  daemon_->FinishJob(1);
  ExpectDone(*first, 0);
  std::future<absl::StatusOr<JobReport>> future = third->Future();
  Restart();
  ASSERT_TRUE(Until([&] { return Numbers() == std::vector<uint64_t>{2, 3}; }));
  EXPECT_THAT(daemon_->joins(), ElementsAre(2));
  EXPECT_EQ(daemon_->submissions()[0].job().epoch().boot_id(), 2u);
  EXPECT_EQ(daemon_->segments().size(), 2u);
  daemon_->FinishJob(2);
  daemon_->FinishJob(3);
  ExpectDone(*second, 1);
  ExpectDone(*third, 1);
  EXPECT_EQ(future.get()->replays, 1u);
  EXPECT_EQ(Submit(*group)->seq(), 4u);
  EXPECT_TRUE(client_->Connected());
}

TEST_F(RestartTest, ADaemonThatDiesTwiceMeanwhile) {
  const auto group = JoinKept();
  const auto job = Submit(*group);
  for (uint32_t life = 1; life <= 3; ++life) {
    Restart();
    ASSERT_TRUE(Until([&] { return !daemon_->accepted().empty(); }));
  }
  daemon_->FinishJob(1);
  ExpectDone(*job, 3);
}

TEST_F(RestartTest, AnEndThatOvertakesTheAcceptanceIsNoReplay) {
  const auto group = JoinKept();
  constexpr int kJobs = 500;  // each is a race of two threads of the library
  daemon_->PlanSubmissions(std::vector<FakeDaemon::Fate>(kJobs, FakeDaemon::Fate::kEndAndAccept));
  for (int i = 0; i < kJobs; ++i) ExpectDone(*Submit(*group), 0);
  EXPECT_EQ(Numbers().size(), kJobs);
}

TEST_F(RestartTest, AnIdleRankJoinsAgainToo) {
  const auto group = JoinKept();
  Restart();
  ASSERT_TRUE(Until([&] { return daemon_->joins() == std::vector<uint64_t>{1}; }));
  EXPECT_EQ(Submit(*group)->seq(), 1u);
}

TEST_F(RestartTest, AnotherNodesDaemonHasEnded) {
  const auto group = JoinKept();
  const auto job = Submit(*group);
  daemon_->EndEpoch();
  ASSERT_EQ(job->Wait(absl::Milliseconds(1))->terminal, false);
  ASSERT_TRUE(Until([&] { return daemon_->joins() == std::vector<uint64_t>{1, 1}; }));
  ASSERT_TRUE(Until([&] { return Numbers() == std::vector<uint64_t>{1, 1}; }));
  daemon_->FinishJob(1);
  ExpectDone(*job, 1);
  // Without a job under way, the next submission tells.
  daemon_->EndEpoch();
  const auto next = Submit(*group);
  EXPECT_EQ(next->seq(), 2u);
  EXPECT_THAT(daemon_->joins(), ElementsAre(1, 1, 2));
  daemon_->FinishJob(2);
  ExpectDone(*next, 0);
}

// The submission has found the epoch alive and builds its request when the epoch ends.
TEST_F(RestartTest, ASubmissionWaitsForARecoveryUntilItsOwnLimit) {
  const auto group = JoinKept(absl::Milliseconds(300));
  const auto job = Submit(*group);
  const auto end = job->Future();  // so that somebody hears of the epoch's end
  AllToAllv exchange = Exchange(send_, receive_);
  std::vector<Range>& ranges = exchange.sends[0].ranges;
  FaultGate gate(&ranges);
  while (ranges.size() < ranges.capacity()) ranges.push_back({send_, ranges.size(), 1});
  gate.Close();
  daemon_->HoldJoins(true);
  std::future<absl::Status> submitted =
      std::async(std::launch::async, [&] { return group->Submit(exchange).status(); });
  ASSERT_TRUE(Until([&] { return gate.entered(); }));
  daemon_->EndEpoch();
  ASSERT_TRUE(Until([&] { return daemon_->joins().size() == 2; }));
  gate.Open();
  EXPECT_EQ(submitted.get().code(), absl::StatusCode::kUnavailable) << "the join goes on";
  EXPECT_EQ(daemon_->joins().size(), 2u);
  daemon_->HoldJoins(false);
  ASSERT_TRUE(Until([&] { return Numbers() == std::vector<uint64_t>{1, 1}; }));
  daemon_->FinishJob(1);
  ExpectDone(*job, 1);
  EXPECT_EQ(Submit(*group)->seq(), 2u);
}

TEST_F(RestartTest, NothingIsHandedOverWhileTheOldProcessLives) {
  const auto group = JoinKept();
  const auto job = Submit(*group);
  daemon_->Die();
  const auto old = StartDaemon();
  ASSERT_TRUE(Until([&] { return daemon_->segments().size() == 2; }));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_THAT(daemon_->joins(), ElementsAre());
  old->EndProcess();
  ASSERT_TRUE(Until([&] { return !daemon_->accepted().empty(); }));
  daemon_->FinishJob(1);
  ExpectDone(*job, 1);
}

TEST_F(RestartTest, RanksThatDisagreeEndTheGroup) {
  const auto group = JoinKept();
  const auto job = Submit(*group);
  daemon_->RefuseJoins(absl::FailedPreconditionError("next_seq: rank 1 has finished its jobs up to 1"));
  daemon_->EndEpoch();
  const auto report = job->Wait(absl::Minutes(1));
  EXPECT_EQ(report.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(report.status().message(), HasSubstr("cannot be replayed: next_seq: rank 1 has finished"));
  EXPECT_EQ(group->Submit(Exchange(send_, receive_)).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Numbers().size(), 1u);
}

TEST_F(RestartTest, AJobThatEndedBeforeAnEarlierOneEndsTheGroup) {
  const auto group = JoinKept();
  const auto first = Submit(*group), second = Submit(*group), third = Submit(*group);
  daemon_->FinishJob(2);
  ExpectDone(*second, 0);
  Restart();
  for (const auto& job : {first, third}) {
    const auto report = job->Wait(absl::Minutes(1));
    EXPECT_EQ(report.status().code(), absl::StatusCode::kAborted);
    EXPECT_THAT(report.status().message(), HasSubstr("job 2 has ended, and job 1 has not"));
  }
  EXPECT_THAT(daemon_->joins(), ElementsAre());
}

TEST_F(RestartTest, ACallbackMayDropTheGroup) {
  auto group = JoinKept();
  auto job = Submit(*group);
  absl::Notification dropped;
  job->OnDone([&](const absl::StatusOr<JobReport>& report) {
    EXPECT_EQ(report.status().code(), absl::StatusCode::kAborted);
    group.reset();
    dropped.Notify();
  });
  daemon_->RefuseJoins(absl::FailedPreconditionError("ranks disagree"));
  daemon_->EndEpoch();
  job->Wait(absl::Minutes(1)).IgnoreError();
  EXPECT_TRUE(dropped.WaitForNotificationWithTimeout(absl::Minutes(1)));
}

TEST_F(RestartTest, TheLimitIsALimit) {
  const auto group = JoinKept(absl::Milliseconds(300));
  const auto job = Submit(*group);
  EndDaemon();
  const auto report = job->Wait(absl::Minutes(1));
  EXPECT_EQ(report.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(report.status().message(), HasSubstr("restart_limit 300ms has passed"));
}

TEST_F(RestartTest, ADrainIsWaitedFor) {
  const auto group = JoinKept();
  daemon_->PlanSubmissions(std::vector<FakeDaemon::Fate>(9, FakeDaemon::Fate::kRefuse),
                           absl::UnavailableError("the daemon drains"));
  EXPECT_EQ(Submit(*group)->seq(), 1u);
  EXPECT_GE(Numbers().size(), 10u);
}

TEST_F(RestartTest, WhoLeavesMeanwhileWaitsForNobody) {
  auto group = JoinKept();
  const auto job = Submit(*group);
  EndDaemon();
  ASSERT_TRUE(Until([&] { return !client_->Connected(); }));
  EXPECT_EQ(job->Cancel().code(), absl::StatusCode::kUnavailable);
  group.reset();
  EXPECT_EQ(job->Wait().status().code(), absl::StatusCode::kAborted);
}

TEST_F(RestartTest, AClientThatIsDestroyedEndsItsJobs) {
  auto group = JoinKept();
  const auto job = Submit(*group);
  EndDaemon();
  client_.reset();
  EXPECT_FALSE(job->Wait().ok());
  group.reset();
}

TEST_F(RestartTest, WithoutALimitItIsAsWithOtherGroups) {
  const auto group = JoinKept(absl::ZeroDuration());
  const auto job = Submit(*group);
  Restart();
  EXPECT_EQ(job->Wait().status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(group->Submit(Exchange(send_, receive_)).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace rails::testing
