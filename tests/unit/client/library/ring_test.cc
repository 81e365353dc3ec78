// The ring: who reads it, long requests, room, and its end.
#include "common/ring/ring.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RingTest : public GroupTest {
 protected:
  RingTest() { send_ = MakeSegment(1 << 20); }
  // A request of 3 bytes for each range, and a few more.
  AllToAllv Long(size_t ranges) {
    AllToAllv exchange = Exchange(send_, receive_);
    exchange.sends[0].ranges.clear();
    for (size_t i = 0; i < ranges; ++i) exchange.sends[0].ranges.push_back({send_, 1000 + i % 10'000, 1 + i % 100});
    return exchange;
  }
  // How often threads of the client have gone to sleep. One that sleeps all the time does not count up. `awake` counts
  // threads that do not sleep now.
  static uint64_t Sleeps(int* awake = nullptr) {
    uint64_t sleeps = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::ifstream name(thread.path() / "comm"), status(thread.path() / "status");
      std::string line;
      if (!std::getline(name, line) || line.rfind("rails-", 0) != 0) continue;
      while (std::getline(status, line)) {
        const std::string state = "State:\t", field = "voluntary_ctxt_switches:";
        if (awake != nullptr && line.rfind(state, 0) == 0 && line[state.size()] != 'S') ++*awake;
        if (line.rfind(field, 0) == 0) sleeps += std::stoull(line.substr(field.size()));
      }
    }
    return sleeps;
  }
  // Waits until all threads of the client have slept for some time. Returns their sleeps so far.
  static uint64_t SleepsOnceIdle() {
    uint64_t sleeps = 0;
    EXPECT_TRUE(Until([&sleeps] {
      int awake = 0;
      const uint64_t before = Sleeps(&awake);
      absl::SleepFor(absl::Milliseconds(100));
      sleeps = Sleeps(&awake);
      return awake == 0 && sleeps == before;
    }));
    return sleeps;
  }
  // Counts sleeps of the client's threads for some time, once they are idle.
  static uint64_t SleepsWhileIdle() {
    const uint64_t before = SleepsOnceIdle();
    absl::SleepFor(absl::Milliseconds(300));
    return Sleeps() - before;
  }
};

// The first to wait reads for all. It leaves first, last, or in between.
TEST_F(RingTest, EachOfManyWaitingThreadsIsWokenByItsOwnJob) {
  constexpr size_t kThreads = 6;
  for (size_t first = 0; first < kThreads; ++first) {
    std::vector<std::shared_ptr<Job>> jobs;
    std::vector<std::future<absl::StatusOr<JobReport>>> ends;
    for (size_t i = 0; i < kThreads; ++i) {
      jobs.push_back(Submit());
      ends.push_back(std::async(std::launch::async, [job = jobs.back()] { return job->Wait(); }));
    }
    for (size_t i = 0; i < kThreads; ++i) {
      const size_t now = (first + i) % kThreads;
      daemon_->FinishJob(jobs[now]->seq());
      EXPECT_EQ(ends[now].get()->seq, jobs[now]->seq());
    }
  }
  EXPECT_TRUE(daemon_->waits().empty());
}

TEST_F(RingTest, AThreadThatGivesUpWaitingPassesTheReadingOn) {
  auto job = Submit();
  for (int i = 0; i < 50; ++i) {
    auto next = Submit();
    auto brief = std::async(std::launch::async, [&] { return job->Wait(absl::Milliseconds(1 + i % 3)); });
    auto end = std::async(std::launch::async, [&] { return next->Wait(); });
    EXPECT_FALSE(brief.get()->terminal);
    daemon_->FinishJob(next->seq());
    EXPECT_TRUE(end.get()->terminal);
  }
}

TEST_F(RingTest, CallbacksComeWhileOthersWaitAndAfterwards) {
  for (int i = 0; i < 50; ++i) {
    auto first = Submit(), waited = Submit(), last = Submit();
    auto first_end = first->Future(), last_end = last->Future();
    auto end = std::async(std::launch::async, [&] { return waited->Wait(); });
    daemon_->FinishJob(first->seq());
    EXPECT_TRUE(first_end.get()->terminal) << "while another thread reads";
    daemon_->FinishJob(waited->seq());
    EXPECT_TRUE(end.get()->terminal);
    daemon_->FinishJob(last->seq());
    EXPECT_TRUE(last_end.get()->terminal) << "when no thread waits any more";
  }
}

TEST_F(RingTest, NoThreadWakesWhileNothingHappens) {
  EXPECT_EQ(SleepsWhileIdle(), 0u) << "connected";
  auto done = Submit(), waited = Submit(), pending = Submit();
  auto end = done->Future();
  daemon_->FinishJob(done->seq());
  EXPECT_TRUE(end.get()->terminal);
  daemon_->FinishJob(waited->seq());
  EXPECT_TRUE(waited->Wait()->terminal);
  EXPECT_EQ(SleepsWhileIdle(), 0u) << "after jobs";
  end = pending->Future();
  EXPECT_EQ(SleepsWhileIdle(), 0u) << "with a callback outstanding";
  daemon_->FinishJob(pending->seq());
  EXPECT_TRUE(end.get()->terminal);
}

// Jobs whose callers wait wake no thread of the client.
TEST_F(RingTest, AWaitingThreadIsWokenWithoutAnotherThread) {
  const uint64_t before = SleepsOnceIdle();
  for (int i = 0; i < 100; ++i) {
    auto job = Submit();
    daemon_->FinishJob(job->seq());
    EXPECT_TRUE(job->Wait()->terminal);
  }
  EXPECT_EQ(Sleeps(), before);
}

TEST_F(RingTest, SpinningIsNoOtherWaiting) {
  client_ = *Client::Connect({.socket_dir = directory_.path(), .spin = absl::Milliseconds(2)});
  send_ = MakeSegment();
  receive_ = MakeSegment();
  group_ = Join();
  for (int i = 0; i < 20; ++i) {
    auto job = Submit();
    EXPECT_FALSE(job->Wait(absl::Milliseconds(i % 5))->terminal);
    daemon_->FinishJob(job->seq());
    EXPECT_TRUE(job->Wait()->terminal);
  }
}

TEST_F(RingTest, RecordsWrapAroundTheEnd) {
  const AllToAllv exchange = Long(30'000);
  for (uint64_t seq = 1; seq <= 60; ++seq) {
    auto job = group_->Submit(exchange);
    ASSERT_TRUE(job.ok()) << job.status();
    daemon_->FinishJob(seq, absl::UnavailableError(std::string(50'000, static_cast<char>('a' + seq % 26))));
    EXPECT_EQ((*job)->Wait()->status.message(), std::string(50'000, static_cast<char>('a' + seq % 26)));
  }
  for (const auto& submission : daemon_->submissions()) {
    ASSERT_EQ(submission.sends(0).lengths_bytes_size(), 30'000);
    for (int i = 0; i < 30'000; ++i) ASSERT_EQ(submission.sends(0).lengths_bytes(i), 1u + i % 100);
  }
}

TEST_F(RingTest, ALongRequestTravelsInParts) {
  const std::unique_ptr<Group> other = Join();  // is answered when the removal of the fixture's segment has been taken
  const uint64_t before = daemon_->records();
  ASSERT_TRUE(group_->Submit(Long(1'000'000)).ok());
  EXPECT_EQ(daemon_->records() - before, 6u) << "of half a MiB, twice around the ring";
  const auto submission = daemon_->submissions().at(0);
  ASSERT_EQ(submission.sends(0).lengths_bytes_size(), 1'000'000);
  for (int i = 0; i < 1'000'000; ++i) ASSERT_EQ(submission.sends(0).offsets_bytes(i), 1000u + i % 10'000);
}

TEST_F(RingTest, RequestsWaitForRoom) {
  std::vector<std::unique_ptr<Group>> groups;
  std::vector<std::future<absl::Status>> ends;
  for (int i = 0; i < 5; ++i) groups.push_back(Join());
  const AllToAllv exchange = Long(150'000);
  daemon_->HoldRequests(true);
  for (const auto& group : groups) {
    ends.push_back(std::async(std::launch::async, [&] { return group->Submit(exchange).status(); }));
  }
  ASSERT_TRUE(Until([this] { return daemon_->untaken_bytes() > 800'000; }));
  daemon_->HoldRequests(false);
  for (auto& end : ends) EXPECT_EQ(end.get(), absl::OkStatus());
  EXPECT_EQ(daemon_->submissions().size(), 5u);
}

// Two requests of 450 KB fill the ring.
class FullRingTest : public RingTest {
 protected:
  FullRingTest() {
    for (int i = 0; i < 2; ++i) fillers_.push_back(Join());
    daemon_->HoldRequests(true);
    for (const auto& group : fillers_) {
      ends_.push_back(std::async(std::launch::async, [&] { return group->Submit(Long(150'000)).status(); }));
    }
    EXPECT_TRUE(Until([this] { return daemon_->untaken_bytes() > 800'000; }));
  }
  void Release() {
    daemon_->HoldRequests(false);
    for (auto& end : ends_) EXPECT_EQ(end.get(), absl::OkStatus());
  }

  std::vector<std::unique_ptr<Group>> fillers_;
  std::vector<std::future<absl::Status>> ends_;
};

TEST_F(FullRingTest, ARequestThatFindsNoRoomInTimeCostsNothing) {
  const absl::Status status = group_->Submit(Long(100'000), absl::Milliseconds(20)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("the request was not sent"));
  Release();
  EXPECT_EQ(Submit()->seq(), 1u) << "its number and the segments are free";
}

TEST_F(RingTest, ARequestOfWhichAPartIsWrittenIsNotCutOff) {
  auto filler = Join();
  const AllToAllv half = Long(150'000), two_parts = Long(250'000);
  daemon_->HoldRequests(true);
  auto filled = std::async(std::launch::async, [&] { return filler->Submit(half).status(); });
  ASSERT_TRUE(Until([this] { return daemon_->untaken_bytes() > 400'000; }));
  const absl::Status status = group_->Submit(two_parts, absl::Milliseconds(20)).status();
  EXPECT_THAT(status.message(), HasSubstr("is not known after 20ms"));
  daemon_->HoldRequests(false);
  EXPECT_EQ(filled.get(), absl::OkStatus());
  auto again = Join(1);  // writes the rest first
  ASSERT_EQ(daemon_->submissions().size(), 2u);
  EXPECT_EQ(daemon_->submissions().at(1).sends(0).lengths_bytes_size(), 250'000);
}

TEST_F(RingTest, ReportsOfADeadDaemonAreStillRead) {
  auto done = Submit(), failed = Submit(), lost = Submit();
  daemon_->FinishJob(done->seq());
  daemon_->FinishJob(failed->seq(), absl::UnavailableError("node2: every rail is down"));
  EndDaemon();
  ASSERT_TRUE(Until([&] { return !client_->Connected(); }));
  EXPECT_TRUE(absl::IsAborted(lost->Wait().status()));
  auto report = done->Wait();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->terminal);
  EXPECT_EQ(failed->Wait()->status, absl::UnavailableError("node2: every rail is down"));
}

TEST_F(RingTest, ARingThatIsNoneEndsTheSession) {
  auto job = Submit();
  daemon_->BreakRings();
  EXPECT_TRUE(absl::IsAborted(job->Wait().status()));
  EXPECT_FALSE(client_->Connected());
  EXPECT_THAT(client_->CreateSegment(4096).status().message(),
              AllOf(HasSubstr("this client closed its session"), HasSubstr("wrote no valid record")));
  EXPECT_TRUE(client_->Reconnect().ok());
}

TEST_F(RingTest, AJoinThatIsGivenUpAndAnsweredLeaves) {
  auto group = JoinKept();
  auto end = MemoryTest::Submit(*group)->Future();
  daemon_->HoldJoins(true);
  daemon_->EndEpoch();
  ASSERT_TRUE(Until([&] { return daemon_->joins().size() == 3; }));
  group.reset();
  EXPECT_TRUE(absl::IsAborted(end.get().status()));
  EXPECT_TRUE(Until([&] { return daemon_->given_up().size() == 1; }));
  EXPECT_EQ(daemon_->leaves(), 0);
  daemon_->HoldJoins(false);
  EXPECT_TRUE(Until([&] { return daemon_->leaves() == 1; })) << "without a call of the program";
}

}  // namespace
}  // namespace rails::testing
