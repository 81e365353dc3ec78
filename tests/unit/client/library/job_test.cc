// Waiting for jobs, and what happens to them when the daemon is lost.
#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Fate = FakeDaemon::Fate;

class JobTest : public GroupTest {};

TEST_F(JobTest, ReportsADoneJob) {
  auto job = Submit();
  daemon_->FinishJob(1);
  auto report = job->Wait();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->terminal);
  EXPECT_TRUE(report->status.ok());
  EXPECT_EQ(report->seq, 1u);
  EXPECT_EQ(report->bytes_sent, 11u);
  EXPECT_EQ(report->bytes_received, 22u);
  EXPECT_EQ(report->elapsed, absl::Milliseconds(500));
  EXPECT_EQ(report->to_first_chunk, absl::Milliseconds(250));
  EXPECT_EQ(report->ratio_to_bound, 1.25);
  EXPECT_THAT(report->rail_tx_bytes, ElementsAre(5, 6));
  EXPECT_TRUE(job->Wait().ok()) << "again, without the daemon";
  EXPECT_TRUE(daemon_->waits().empty());
  EXPECT_TRUE(job->Cancel().ok());
  EXPECT_TRUE(daemon_->cancelled().empty());
}

TEST_F(JobTest, AnEndIsReportedUnasked) {
  auto waited = Submit(), followed = Submit(), failed = Submit();
  auto future = followed->Future();
  for (const auto& job : {waited, followed}) daemon_->FinishJob(job->seq());
  daemon_->FinishJob(failed->seq(), absl::UnavailableError("node2: every rail is down"));
  EXPECT_EQ(waited->Wait()->seq, waited->seq());
  EXPECT_EQ(future.get()->seq, followed->seq());
  EXPECT_EQ(failed->Wait()->status, absl::UnavailableError("node2: every rail is down"));
  EXPECT_TRUE(daemon_->waits().empty());
}

TEST_F(JobTest, AnEndThatWasMissedIsAskedForOnce) {
  auto missed = Submit(), reported = Submit();
  daemon_->MissEnd(missed->seq());
  daemon_->FinishJob(missed->seq());
  EXPECT_TRUE(missed->Future().get()->terminal);
  EXPECT_TRUE(Until([&] { return daemon_->waits().size() == 2; }));
  daemon_->FinishJob(reported->seq());
  EXPECT_TRUE(reported->Wait()->terminal);
  EXPECT_THAT(daemon_->waits(), UnorderedElementsAre(1, 2));
}

TEST_F(JobTest, AWaitWithoutTimeAsksNobody) {
  auto job = Submit();
  const uint64_t before = daemon_->records();
  EXPECT_FALSE(job->Wait(absl::ZeroDuration())->terminal);
  daemon_->FinishJob(job->seq());
  EXPECT_TRUE(job->Wait(absl::ZeroDuration())->terminal);
  EXPECT_EQ(daemon_->records(), before);
}

TEST_F(JobTest, TroubleOnTheWayIsNoEnd) {
  auto job = Submit();
  daemon_->MissEnd(1);
  daemon_->FailWaits(1, absl::ResourceExhaustedError("max_waiting_calls"));
  daemon_->FinishJob(1);
  EXPECT_TRUE(job->Future().get()->terminal);
  EXPECT_THAT(daemon_->waits(), ElementsAre(1, 1));
}

TEST_F(JobTest, ForgottenJobIsAnError) {
  auto job = Submit();
  daemon_->MissEnd(1);
  daemon_->FailWaits(1, absl::NotFoundError("job 1 is long forgotten"));
  daemon_->FinishJob(1);
  EXPECT_TRUE(absl::IsNotFound(job->Wait().status()));
}

TEST_F(JobTest, ManyThreadsWaitForOneJob) {
  auto job = Submit();
  std::vector<std::thread> threads;
  std::atomic<int> terminal = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      auto report = job->Wait();
      if (report.ok() && report->terminal) ++terminal;
    });
  }
  EXPECT_FALSE(job->Wait(absl::Milliseconds(1))->terminal) << "one with a limit of its own";
  daemon_->FinishJob(1);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(terminal, 4);
}

TEST_F(JobTest, CallbacksAndFutures) {
  auto job = Submit();
  std::promise<uint64_t> called;
  job->OnDone([&](absl::StatusOr<JobReport> report) { called.set_value(report->seq); });
  std::future<absl::StatusOr<JobReport>> future = job->Future();
  auto next = Submit();
  next->OnDone([](absl::StatusOr<JobReport>) {});
  daemon_->FinishJob(1);
  EXPECT_EQ(called.get_future().get(), 1u);
  EXPECT_TRUE(future.get()->terminal);
  std::promise<std::thread::id> late;
  job->OnDone([&](absl::StatusOr<JobReport>) { late.set_value(std::this_thread::get_id()); });
  EXPECT_NE(late.get_future().get(), std::this_thread::get_id()) << "from a thread of the client, also when late";
  daemon_->FinishJob(2);
  EXPECT_TRUE(next->Wait()->terminal);
}

TEST_F(JobTest, ManyFutures) {
  std::vector<std::future<absl::StatusOr<JobReport>>> futures;
  for (int i = 0; i < 20; ++i) futures.push_back(Submit()->Future());  // the handles are dropped
  for (uint64_t seq = 20; seq > 0; --seq) daemon_->FinishJob(seq);
  for (auto& future : futures) EXPECT_TRUE(future.get()->terminal);
}

TEST_F(JobTest, ManyThreadsUseOneClient) {
  constexpr uint64_t kJobs = 50;
  for (uint64_t seq = 1; seq <= kJobs; ++seq) daemon_->FinishJob(seq);
  std::atomic<uint64_t> done = 0;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto group = client_->JoinGroup({.name = "shared", .world_size = 4, .rank = rank});
      ASSERT_TRUE(group.ok()) << group.status();
      for (uint64_t seq = 1; seq <= kJobs; ++seq) {
        auto send = client_->CreateSegment(4096), receive = client_->CreateSegment(4096);
        ASSERT_TRUE(send.ok() && receive.ok());
        AllToAllv exchange;
        exchange.sends.push_back({(rank + 1) % 4, {{*send, 0, 10}}});
        exchange.receives.push_back({(rank + 2) % 4, {{*receive, 0, 10}}});
        auto job = (*group)->Submit(exchange);
        ASSERT_TRUE(job.ok()) << job.status();
        EXPECT_EQ((*job)->seq(), seq);
        auto report = seq % 2 == 0 ? (*job)->Wait() : (*job)->Future().get();
        if (report.ok() && report->terminal) ++done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, 4 * kJobs);
  EXPECT_TRUE(Until([&] { return daemon_->segments().size() == 2; })) << "the fixture's own";
}

TEST_F(JobTest, ReconnectsOverAndOver) {
  for (uint64_t boot_id = 2; boot_id < 12; ++boot_id) {
    auto job = Submit();
    auto future = job->Future();
    EndDaemon();
    EXPECT_TRUE(absl::IsAborted(future.get().status()));
    StartDaemon(boot_id);
    ASSERT_TRUE(client_->Reconnect().ok());
    group_ = Join();
    EXPECT_EQ(daemon_->segments().size(), 2u);
  }
}

TEST_F(JobTest, Cancels) {
  auto job = Submit();
  EXPECT_TRUE(job->Cancel().ok());
  auto report = job->Wait();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(absl::IsCancelled(report->status));
  EXPECT_THAT(daemon_->cancelled(), ElementsAre(1));
}

TEST_F(JobTest, SegmentsStayUntilTheirJobEnds) {
  auto job = Submit();
  send_.reset();
  receive_.reset();
  auto other = MakeSegment();
  EXPECT_EQ(daemon_->segments().size(), 3u);
  daemon_->FinishJob(1);
  EXPECT_TRUE(job->Wait()->terminal);
  auto another = MakeSegment();
  EXPECT_EQ(daemon_->segments().size(), 2u);
}

TEST_F(JobTest, DroppedJobIsFollowedToItsEnd) {
  Submit().reset();
  send_.reset();
  receive_.reset();
  EXPECT_EQ(daemon_->segments().size(), 2u);
  daemon_->FinishJob(1);
  EXPECT_TRUE(Until([&] { return daemon_->segments().empty(); }));
}

TEST_F(JobTest, LostDaemonEndsEveryJobAndPoisonsItsSegments) {
  auto waiting = Submit(), watched = Submit(), idle = Submit();
  auto future = watched->Future();
  absl::Status seen;
  std::thread thread([&] { seen = waiting->Wait().status(); });
  daemon_->Die();
  thread.join();
  EXPECT_TRUE(absl::IsAborted(seen)) << seen;
  EXPECT_THAT(seen.message(), HasSubstr("fake-node"));
  EXPECT_TRUE(absl::IsAborted(future.get().status()));
  EXPECT_TRUE(absl::IsAborted(idle->Wait().status()));
  EXPECT_TRUE(absl::IsAborted(idle->Cancel()));
  EXPECT_TRUE(absl::IsUnavailable(StatusOfSubmit()));

  const auto old = StartDaemon();
  ASSERT_TRUE(client_->Reconnect().ok());
  EXPECT_EQ(daemon_->segments().size(), 2u);
  auto group = Join();
  auto refused = group->Submit(Exchange(send_, receive_));
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(refused.status().message(), HasSubstr("sends[0].ranges[0].segment"));
  EXPECT_THAT(refused.status().message(), HasSubstr("still runs"));
  auto clean = MakeSegment(), other = MakeSegment();
  EXPECT_TRUE(group->Submit(Exchange(clean, other)).ok()) << "only those of lost jobs";
  old->EndProcess();
  EXPECT_TRUE(group->Submit(Exchange(send_, receive_)).ok());
}

TEST_F(JobTest, FinishedJobsPoisonNothing) {
  auto job = Submit();
  daemon_->FinishJob(1);
  ASSERT_TRUE(job->Wait().ok());
  daemon_->CloseSessions();
  ASSERT_TRUE(Until([&] { return !client_->Connected(); }));
  EXPECT_TRUE(job->Wait()->terminal) << "known for good";
  ASSERT_TRUE(client_->Reconnect().ok());
  EXPECT_TRUE(Join()->Submit(Exchange(send_, receive_)).ok());
}

TEST_F(JobTest, DaemonLostDuringASubmission) {
  daemon_->PlanSubmissions({Fate::kHold});
  absl::Status seen;
  std::thread thread([&] { seen = StatusOfSubmit(); });
  ASSERT_TRUE(Until([&] { return !daemon_->submissions().empty(); }));
  daemon_->Die();
  thread.join();
  EXPECT_TRUE(absl::IsUnavailable(seen)) << seen;
  const auto old = StartDaemon();
  ASSERT_TRUE(client_->Reconnect().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Join()->Submit(Exchange(send_, receive_)).status()))
      << "the daemon may have accepted it";
}

TEST_F(JobTest, DestroyedClientEndsItsJobs) {
  auto job = Submit();
  auto future = job->Future();
  absl::Status seen;
  std::thread thread([&] { seen = Submit()->Wait().status(); });
  ASSERT_TRUE(Until([&] { return daemon_->accepted().size() == 2; }));
  client_.reset();
  thread.join();
  EXPECT_TRUE(absl::IsCancelled(seen)) << seen;
  EXPECT_TRUE(absl::IsCancelled(future.get().status()));
  EXPECT_TRUE(absl::IsCancelled(job->Wait().status()));
  EXPECT_FALSE(group_->Submit(Exchange(send_, receive_)).ok());
}

}  // namespace
}  // namespace rails::testing
