// Forked children of a process with a client.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

TEST_F(ClientTest, ForkedChildIsRefused) {
  auto segment = MakeSegment();
  auto group = Join();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = absl::IsFailedPrecondition(client_->CreateSegment(4096).status()) &&
                         absl::IsFailedPrecondition(group->Submit(Exchange(segment, segment)).status());
    segment->bytes()[0] = std::byte{42};
    segment.reset();
    group.reset();
    client_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(segment->bytes()[0], std::byte{42});
  EXPECT_TRUE(client_->Connected());
  EXPECT_EQ(daemon_->segments().size(), 1u);
  EXPECT_EQ(daemon_->leaves(), 0);
  EXPECT_TRUE(group->Submit(Exchange(segment, segment)).ok());
}

// `test` runs in a forked child, and says what went wrong there; empty: nothing. A child that hangs is killed.
std::string InChild(const std::function<std::string()>& test) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    const std::string wrong = test();
    [[maybe_unused]] const ssize_t written = write(pipe_fds[1], wrong.data(), wrong.size());
    _exit(0);
  }
  close(pipe_fds[1]);
  char text[1000];
  const ssize_t got = read(pipe_fds[0], text, sizeof(text));
  close(pipe_fds[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return absl::StrCat("the child ended with signal ", WTERMSIG(status));
  return std::string(text, static_cast<size_t>(std::max<ssize_t>(got, 0)));
}

TEST_F(ClientTest, EveryCallOfAForkedChildIsRefusedAtOnce) {
  const auto segment = MakeSegment(), other = MakeSegment();
  auto group = Join();
  auto kept = JoinKept();
  for (Group* of : {group.get(), kept.get()}) {
    auto job = of->Submit(Exchange(segment, other));
    ASSERT_TRUE(job.ok()) << job.status();
    std::shared_ptr<Job> first = *job;
    const std::string wrong = InChild([&] {
      absl::Status told;
      first->OnDone([&](const absl::StatusOr<JobReport>& report) { told = report.status(); });
      const std::vector<std::pair<const char*, absl::Status>> answers = {
          {"Wait", first->Wait().status()},
          {"OnDone", told},
          {"Future", first->Future().get().status()},
          {"Cancel", first->Cancel()},
          {"Submit", of->Submit(Exchange(segment, other)).status()},
          {"Leave", of->Leave()},
          {"JoinGroup", client_->JoinGroup({.name = "g", .world_size = 1}).status()},
          {"CreateSegment", client_->CreateSegment(4096).status()},
          {"ImportSegment", client_->ImportSegment(0, 4096).status()},
          {"Reconnect", client_->Reconnect()},
      };
      for (const auto& [call, status] : answers) {
        if (!absl::IsFailedPrecondition(status)) return absl::StrCat(call, ": ", status.ToString());
      }
      if (client_->Connected()) return std::string("Connected");
      first.reset();
      job->reset();
      group.reset();
      kept.reset();
      client_.reset();
      return std::string();
    });
    EXPECT_EQ(wrong, "");
    daemon_->FinishJob(first->seq());
    EXPECT_TRUE(first->Wait()->terminal);
  }
  EXPECT_EQ(daemon_->leaves(), 0);
  EXPECT_TRUE(client_->Connected());
}

TEST_F(ClientTest, AForkedChildMayConnectAndHarmsNobody) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start one";
#endif
  const auto segment = MakeSegment(), other = MakeSegment();
  const auto group = Join();
  const auto running = group->Submit(Exchange(MakeSegment(), MakeSegment()));
  ASSERT_TRUE(running.ok()) << running.status();
  auto waiting = std::async(std::launch::async, [&] { return (*running)->Wait(); });  // leads at the fork
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(InChild([&]() -> std::string {
                auto own = Connect();
                if (!own.ok()) return own.status().ToString();
                client_.reset();  // the parent's ring is not mapped here, and the own one may be where it was
                auto own_segment = (*own)->CreateSegment(4096), own_other = (*own)->CreateSegment(4096);
                if (!own_segment.ok() || !own_other.ok()) return own_other.status().ToString();
                auto joined = (*own)->JoinGroup({.name = "child", .world_size = 4, .rank = 2});
                if (!joined.ok()) return joined.status().ToString();
                auto job = (*joined)->Submit(Exchange(*own_segment, *own_other));
                if (!job.ok()) return job.status().ToString();
                if ((*job)->Wait(absl::Milliseconds(1))->terminal) return "the child's job has ended";
                return absl::IsFailedPrecondition(group->Submit({}).status()) ? "" : "the parent's group works";
              }),
              "");
    auto job = group->Submit(Exchange(segment, other));
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ((*job)->seq(), i + 2);
    daemon_->FinishJob((*job)->seq());
    EXPECT_TRUE((*job)->Wait()->terminal);
  }
  daemon_->FinishJob(1);
  EXPECT_TRUE(waiting.get()->terminal);
  EXPECT_TRUE(client_->Connected());
  EXPECT_TRUE(Until([&] { return daemon_->sessions_open() == 1; }));
}

// The child's threads may have the handles that the parent's had.
TEST_F(ClientTest, AForkedChildKeepsItsThreadsWhenItDropsTheParentsClient) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start one";
#endif
  auto group = JoinKept();
  EXPECT_EQ(InChild([&]() -> std::string {
              std::atomic<bool> stop{false};
              std::vector<std::thread> threads;
              for (int i = 0; i < 32; ++i) {
                threads.emplace_back([&stop] {
                  while (!stop) absl::SleepFor(absl::Milliseconds(1));
                });
              }
              group.reset();
              client_.reset();
              stop = true;
              for (std::thread& thread : threads) thread.join();  // throws for one that was detached
              return "";
            }),
            "");
}

}  // namespace
}  // namespace rails::testing
