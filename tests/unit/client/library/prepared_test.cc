// Prepared exchanges: what reaches the daemon, when it is released, and what becomes of it when daemons end.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/client/library/fixture.h"

namespace rails::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Fate = FakeDaemon::Fate;

class PreparedTest : public MemoryTest {
 protected:
  std::shared_ptr<Prepared> Prepare(Group& group, const AllToAllv& layout) {
    auto prepared = group.Prepare(layout);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() ? *std::move(prepared) : nullptr;
  }
  // Rank 0 sends to ranks 2, 0 and 1, receives from 0 and 3, and names rank 1 without ranges.
  AllToAllv Layout() const {
    AllToAllv layout;
    layout.sends = {{2, {{send_, 0, 60}, {send_, 100, 40}}}, {0, {{send_, 200, 8}}}, {1, {{send_, 300, 5}}}};
    layout.receives = {{0, {{receive_, 200, 8}}}, {1, {}}, {3, {{receive_, 0, 50}}}};
    return layout;
  }
};

TEST_F(PreparedTest, RangesTravelOnceAndLengthsWithEachJob) {
  auto group = Join();
  const auto prepared = Prepare(*group, Layout());
  const auto layouts = daemon_->preparations();
  ASSERT_EQ(layouts.size(), 1u);
  EXPECT_EQ(layouts[0].epoch().counter(), 7u);
  EXPECT_EQ(layouts[0].rank(), 0u);
  ASSERT_EQ(layouts[0].sends_size(), 3);
  EXPECT_EQ(layouts[0].sends(0).peer_rank(), 2u);
  EXPECT_THAT(layouts[0].sends(0).offsets_bytes(), ElementsAre(0, 100));
  EXPECT_EQ(layouts[0].receives_size(), 2) << "a flow without ranges does not travel";
  EXPECT_EQ(layouts[0].sends(1).peer_rank(), 0u) << "the rank itself";

  auto first =
      group->Submit(prepared, {.sends = {70, 3, 0}, .receives = {3, 0, 50}, .tag = 9, .vote = 8, .urgent = true});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ((*first)->seq(), 1u);
  ASSERT_TRUE(group->Submit(prepared, {.receives = {8, 0, 4}, .timeout = absl::Microseconds(1500)}).ok());
  ASSERT_TRUE(group->Submit(prepared, {}).ok());
  ASSERT_TRUE(group->Submit(prepared, {.sends = {1, 2, 3}, .capacities = true}).ok());
  const auto jobs = daemon_->prepared_submissions();
  ASSERT_EQ(jobs.size(), 4u);
  EXPECT_FALSE(jobs[2].capacities());
  EXPECT_TRUE(jobs[3].capacities());
  EXPECT_THAT(jobs[3].lengths_bytes(), ElementsAre(1, 2, 3, 8, 50));
  EXPECT_EQ(jobs[0].prepared_id(), layouts[0].prepared_id());
  EXPECT_EQ(jobs[0].job().seq(), 1u);
  EXPECT_EQ(jobs[0].tag(), 9u);
  EXPECT_EQ(jobs[0].vote(), 8u);
  EXPECT_TRUE(jobs[0].urgent());
  EXPECT_FALSE(jobs[1].urgent()) << "not of the job before";
  EXPECT_THAT(jobs[0].lengths_bytes(), ElementsAre(70, 3, 0, 3, 50));
  EXPECT_THAT(jobs[1].lengths_bytes(), ElementsAre(100, 8, 5, 8, 4));
  EXPECT_EQ(jobs[1].timeout_milliseconds(), 2u);
  EXPECT_THAT(jobs[2].lengths_bytes(), IsEmpty()) << "all bytes";
  EXPECT_EQ(daemon_->preparations().size(), 1u);
}

TEST_F(PreparedTest, LengthsAreCheckedBeforeTheDaemonSeesThem) {
  auto group = Join();
  const auto prepared = Prepare(*group, Layout());
  const auto refused = [&](const Lengths& lengths) {
    return std::string(group->Submit(prepared, lengths).status().message());
  };
  EXPECT_EQ(refused({.sends = {101, 8, 0}}), "lengths.sends[0]: 101 bytes to rank 2, more than its capacity of 100");
  EXPECT_EQ(refused({.receives = {8, 1, 0}}), "lengths.receives[1]: 1 bytes from rank 1, more than its capacity of 0");
  EXPECT_EQ(refused({.sends = {1}}), "lengths.sends: 1 entries, and the layout has 3 flows");
  EXPECT_THAT(refused({.timeout = -absl::Seconds(1)}), HasSubstr("is negative"));
  EXPECT_THAT(daemon_->prepared_submissions(), IsEmpty());
  EXPECT_TRUE(absl::IsInvalidArgument(group->Submit(nullptr, {}).status()));
  auto other = Join(1);
  EXPECT_THAT(other->Submit(prepared, {}).status().message(), HasSubstr("made for another group"));
  AllToAllv bad = Layout();
  bad.sends[0].rank = 7;
  EXPECT_THAT(group->Prepare(bad).status().message(), HasSubstr("sends[0].rank 7"));
  daemon_->RefusePreparations(absl::ResourceExhaustedError("limits.max_prepared_per_session: 64"));
  EXPECT_EQ(group->Prepare(Layout()).status().message(), "limits.max_prepared_per_session: 64");
}

TEST_F(PreparedTest, IsReleasedAfterItsJobsAndBeforeItsSegments) {
  auto group = Join();
  auto prepared = Prepare(*group, Layout());
  auto job = group->Submit(prepared, {});
  ASSERT_TRUE(job.ok()) << job.status();
  prepared.reset();
  send_.reset();
  receive_.reset();
  EXPECT_EQ(daemon_->prepared().size(), 1u) << "job 1 uses it";
  EXPECT_EQ(daemon_->segments().size(), 2u);
  daemon_->FinishJob(1);
  ASSERT_TRUE((*job)->Wait().ok());
  EXPECT_TRUE(Until([&] { return daemon_->segments().empty(); }));
  EXPECT_THAT(daemon_->prepared(), IsEmpty());
  EXPECT_EQ(daemon_->too_early(), 0);
}

TEST_F(PreparedTest, OutlivesItsGroupAndItsClient) {
  auto group = Join();
  auto prepared = Prepare(*group, Layout());
  EXPECT_TRUE(group->Leave().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(group->Submit(prepared, {}).status()));
  group.reset();
  group = Join();
  EXPECT_THAT(group->Submit(prepared, {}).status().message(), HasSubstr("made for another group"));
  group.reset();
  client_.reset();
  prepared.reset();
}

TEST_F(PreparedTest, IsLostWithTheDaemonInAGroupThatIsLostWithIt) {
  auto group = Join();
  const auto prepared = Prepare(*group, Layout());
  auto job = group->Submit(prepared, {});
  ASSERT_TRUE(job.ok()) << job.status();
  daemon_->Die();
  EXPECT_TRUE(absl::IsAborted((*job)->Wait().status()));
  EXPECT_FALSE(group->Submit(prepared, {}).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(group->Prepare(Layout()).status())) << "its segments are poisoned";
}

TEST_F(PreparedTest, IsPreparedAnewAfterARestartAndItsJobsAreReplayed) {
  auto group = JoinKept();
  auto prepared = Prepare(*group, Layout());
  auto first = group->Submit(prepared, {.sends = {70, 8, 0}, .tag = 4, .vote = 5});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto before = daemon_->prepared_submissions();
  EndDaemon();
  StartDaemon();
  ASSERT_TRUE(Until([&] { return daemon_->prepared_submissions().size() == 1; }));
  const auto replayed = daemon_->prepared_submissions();
  EXPECT_EQ(replayed[0].job().epoch().boot_id(), 2u);
  EXPECT_EQ(replayed[0].job().seq(), 1u);
  EXPECT_EQ(replayed[0].tag(), 4u);
  EXPECT_EQ(replayed[0].vote(), 5u);
  EXPECT_THAT(replayed[0].lengths_bytes(), ElementsAre(70, 8, 0, 8, 50)) << "with the same meaning";
  ASSERT_EQ(daemon_->preparations().size(), 1u);
  EXPECT_EQ(daemon_->preparations()[0].epoch().boot_id(), 2u);
  EXPECT_EQ(daemon_->preparations()[0].prepared_id(), replayed[0].prepared_id());
  EXPECT_THAT(daemon_->preparations()[0].sends(0).offsets_bytes(), ElementsAre(0, 100));
  // A later job uses what was prepared for the replayed one.
  auto second = group->Submit(prepared, {});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(daemon_->preparations().size(), 1u);
  daemon_->FinishJob(1);
  daemon_->FinishJob(2);
  const auto report = (*first)->Wait();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->replays, 1u);
  ASSERT_TRUE((*second)->Wait().ok());
  prepared.reset();
  EXPECT_TRUE(Until([&] { return daemon_->prepared().empty(); }));
}

TEST_F(PreparedTest, ThreadsSubmitItAtOnce) {
  constexpr uint64_t kThreads = 4, kJobs = 25;
  auto group = Join();
  for (uint64_t seq = 1; seq <= kThreads * kJobs; ++seq) daemon_->FinishJob(seq);
  auto prepared = Prepare(*group, Layout());
  std::vector<std::thread> threads;
  for (uint64_t t = 1; t <= kThreads; ++t) {
    threads.emplace_back([&, t, prepared] {
      for (uint64_t i = 0; i < kJobs; ++i) {
        auto job = group->Submit(prepared, {.sends = {t, 0, t}, .receives = {0, 0, t}, .tag = t});
        ASSERT_TRUE(job.ok()) << job.status();
        if (i % 2 == 0) {
          ASSERT_TRUE((*job)->Wait().ok());
        }
      }
    });
  }
  prepared.reset();
  for (std::thread& thread : threads) thread.join();
  const auto jobs = daemon_->prepared_submissions();
  ASSERT_EQ(jobs.size(), kThreads * kJobs);
  for (uint64_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(jobs[i].job().seq(), i + 1);
    EXPECT_THAT(jobs[i].lengths_bytes(), ElementsAre(jobs[i].tag(), 0, jobs[i].tag(), 0, jobs[i].tag()));
  }
  EXPECT_EQ(daemon_->preparations().size(), 1u);
  EXPECT_TRUE(Until([&] { return daemon_->prepared().empty(); }));
}

// The daemon runs on; another node's has ended.
TEST_F(PreparedTest, IsPreparedAnewInTheNextEpochOfTheSameSession) {
  auto group = JoinKept();
  const auto prepared = Prepare(*group, Layout());
  auto job = group->Submit(prepared, {});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto followed = (*job)->Future();
  daemon_->EndEpoch();
  ASSERT_TRUE(Until([&] { return daemon_->prepared_submissions().size() == 2; }));
  auto second = group->Submit(prepared, {});
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_EQ(daemon_->preparations().size(), 2u);
  const auto jobs = daemon_->prepared_submissions();
  ASSERT_EQ(jobs.size(), 3u);
  EXPECT_EQ(jobs[1].job().seq(), 1u);
  EXPECT_EQ(jobs[1].prepared_id(), daemon_->preparations()[1].prepared_id());
  EXPECT_EQ(jobs[2].job().seq(), 2u);
  EXPECT_EQ(jobs[2].prepared_id(), jobs[1].prepared_id());
}

}  // namespace
}  // namespace rails::testing
