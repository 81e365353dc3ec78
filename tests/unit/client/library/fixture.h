// A client connected to a fake daemon, with two segments and a group of four ranks.
#ifndef RAILS_TESTS_UNIT_CLIENT_LIBRARY_FIXTURE_H_
#define RAILS_TESTS_UNIT_CLIENT_LIBRARY_FIXTURE_H_

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "rails/client.h"
#include "tests/unit/client/library/fake_daemon.h"

namespace rails::testing {

class ClientTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = 64 * 1024;

  ClientTest() : daemon_(std::make_unique<FakeDaemon>(directory_.path(), 1)) {
    auto client = Connect();
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  absl::StatusOr<std::unique_ptr<Client>> Connect() {
    return Client::Connect(
        {.socket_dir = directory_.path(), .client_name = "test", .connect_timeout = absl::Minutes(1)});
  }
  std::shared_ptr<Segment> MakeSegment(uint64_t bytes = kBytes) {
    auto segment = client_->CreateSegment(bytes);
    EXPECT_TRUE(segment.ok()) << segment.status();
    return segment.ok() ? *segment : nullptr;
  }
  std::unique_ptr<Group> Join(uint32_t rank = 0) {
    auto group = client_->JoinGroup({.name = "moe", .join_key = "secret", .world_size = 4, .rank = rank});
    EXPECT_TRUE(group.ok()) << group.status();
    return group.ok() ? *std::move(group) : nullptr;
  }
  // A group that outlives its daemons.
  std::unique_ptr<Group> JoinKept(absl::Duration restart_limit = absl::Minutes(1)) {
    auto group = client_->JoinGroup({.name = "moe",
                                     .join_key = "secret",
                                     .world_size = 4,
                                     .recovery = Recovery::kWait,
                                     .wait_limit = absl::Seconds(1),
                                     .restart_limit = restart_limit});
    EXPECT_TRUE(group.ok()) << group.status();
    return group.ok() ? *std::move(group) : nullptr;
  }
  void EndDaemon() {
    daemon_->Die();
    daemon_->EndProcess();
  }
  // The next daemon comes; returns the one before.
  std::unique_ptr<FakeDaemon> StartDaemon(uint64_t boot_id = 2) {
    return std::exchange(daemon_, std::make_unique<FakeDaemon>(directory_.path(), boot_id));
  }
  // Sends to and receives from rank 1.
  static AllToAllv Exchange(std::shared_ptr<Segment> send, std::shared_ptr<Segment> receive) {
    AllToAllv exchange;
    exchange.sends.push_back({1, {{std::move(send), 0, 100}}});
    exchange.receives.push_back({1, {{std::move(receive), 0, 200}}});
    return exchange;
  }

  TemporaryFolder directory_;
  std::unique_ptr<FakeDaemon> daemon_;
  std::unique_ptr<Client> client_;
};

// With memory for jobs.
class MemoryTest : public ClientTest {
 protected:
  std::shared_ptr<Job> Submit(Group& group) {
    auto job = group.Submit(Exchange(send_, receive_));
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? *job : nullptr;
  }

  std::shared_ptr<Segment> send_ = MakeSegment(), receive_ = MakeSegment();
};

// And as rank 0 of a group.
class GroupTest : public MemoryTest {
 protected:
  std::shared_ptr<Job> Submit() { return MemoryTest::Submit(*group_); }
  absl::Status StatusOfSubmit() { return group_->Submit(Exchange(send_, receive_)).status(); }

  std::unique_ptr<Group> group_ = Join();
};

}  // namespace rails::testing

#endif  // RAILS_TESTS_UNIT_CLIENT_LIBRARY_FIXTURE_H_
