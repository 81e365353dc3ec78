// A node that has no rank in a group, and lies about it: nothing of the group changes, and the lie is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

constexpr size_t kStranger = 2;

// Ranks 0 and 1 are on n0 and n1; n2 has none, and knows the epoch, as every node does.
Ready ReadyOf(JobKey job) {
  Ready ready;
  ready.job = job;
  ready.sends = {{Rank(0), Rank(1), 1000}};
  return ready;
}

class StrangerTest : public ::testing::TestWithParam<bool> {
 protected:
  StrangerTest() {
    for (uint32_t rank : {0u, 1u}) exchange_.trainer(rank).Join("pair", 2);
    cluster_.Run();
    EXPECT_TRUE(exchange_.trainer(0).group.ok() && exchange_.trainer(1).group.ok());
    epoch_ = exchange_.trainer(0).group->epoch;
    exchange_.SetLengths({{0, 1000, 0}, {2000, 0, 0}, {0, 0, 0}}, 1);
  }
  void Say(size_t to, ControlMessage message) {
    cluster_.node(kStranger).outbox.emplace_back(cluster_.node(to).name, std::move(message));
  }
  uint64_t Ignored(size_t node) { return cluster_.node(node).engine->Snapshot(0).counters.control_messages_ignored; }
  void Submit(uint64_t seq) {
    for (uint32_t rank : {0u, 1u}) {
      Submission submission = exchange_.For(rank, seq);
      for (auto* flows : {&submission.sends, &submission.receives}) {
        std::erase_if(*flows, [](const FlowRanges& flow) { return flow.peer == Rank(2); });
      }
      const absl::Status status = exchange_.trainer(rank).Submit(std::move(submission));
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void ExpectDone(uint64_t seq) {
    for (uint32_t rank : {0u, 1u}) {
      const auto report = exchange_.trainer(rank).Wait(seq);
      cluster_.Run();
      ASSERT_NE(report, nullptr);
      ASSERT_TRUE(report->ok()) << report->status();
      EXPECT_EQ((*report)->state, JobState::kDone) << (*report)->status;
    }
  }

  Cluster cluster_{{.remote = GetParam(), .nodes = 3, .rails = 2}};
  Exchange exchange_{&cluster_, 3, "g", {.join = false}};
  Epoch epoch_;
};

INSTANTIATE_TEST_SUITE_P(Rails, StrangerTest, ::testing::Bool(), ModeOf);

// The engine has to wake by itself: it has nothing else to do meanwhile.
TEST_P(StrangerTest, AReadyForAnEpochThatNeverBeginsIsAnsweredInAnIdleMinute) {
  Engine& engine = *cluster_.node(0).engine;
  const uint64_t before = Ignored(0);
  Epoch other = epoch_;
  other.counter += 1000;
  Say(0, ReadyOf({other, JobSeq(1)}));
  cluster_.Run();
  EXPECT_EQ(Ignored(0), before);
  EXPECT_LE(engine.NextDeadline(), cluster_.now() + EarlyMessages::kKept);
  cluster_.Hold(0, kStranger);
  cluster_.Advance(EarlyMessages::kKept);
  cluster_.Run();
  EXPECT_EQ(Ignored(0), before + 1);
  const auto& answers = cluster_.node(0).outbox;
  EXPECT_EQ(std::count_if(answers.begin(), answers.end(),
                          [&](const auto& answer) {
                            const auto* abort = std::get_if<Abort>(&answer.second);
                            return abort != nullptr && abort->job == JobKey{other, JobSeq(1)};
                          }),
            1);
}

TEST_P(StrangerTest, EndsNeitherTheGroupNorItsJobs) {
  const std::vector<ControlMessage> lies = {
      GroupBroken{epoch_, JobSeq(0), absl::StatusCode::kAborted, "because I say so"},
      GroupBroken{epoch_, JobSeq(0), absl::StatusCode::kUnavailable, "join again", /*replayable=*/true},
      Abort{{epoch_, JobSeq(1)}, absl::StatusCode::kAborted, "because I say so"},
      Abort{{epoch_, JobSeq(2)}, absl::StatusCode::kAborted, "before it begins"},
      ReadyOf({epoch_, JobSeq(1)}),
      ReadyOf({epoch_, JobSeq(4000)}),
      LateGrant{{epoch_, JobSeq(1)}, {{1, 1}, {}, {}}},
      Quiesced{{epoch_, JobSeq(1)}, {{RailIndex(0), 1}}},
      Tally{{epoch_, JobSeq(1)}, {1 << 20, 1 << 20}},
      Rehome{{{RailIndex(0), 1}}, {{{epoch_, JobSeq(1)}, 0}}},
      Rehomed{{{{epoch_, JobSeq(1)}, Rehomed::State::kComplete, 0, {}}}},
      Leaving{epoch_, JobSeq(9)},
      MayLeave{epoch_, JobSeq(0)},
      Unsubmitted{{epoch_, JobSeq(1)}, {{Rank(1), 1}}}};
  Submit(1);
  for (size_t to : {0, 1}) {
    const uint64_t before = Ignored(to);
    for (const ControlMessage& lie : lies) Say(to, lie);
    cluster_.Run([&] { return cluster_.node(kStranger).outbox.empty(); });
    EXPECT_EQ(Ignored(to), before + lies.size());
  }
  cluster_.Run();
  ExpectDone(1);
  Submit(2);
  cluster_.Run();
  ExpectDone(2);
  exchange_.ExpectBytesBetween({0}, 1);
  exchange_.ExpectBytesBetween({1}, 0);
  cluster_.ExpectNothingOpen();
}

// It has heard the joins, as every node has.
TEST_P(StrangerTest, CommitsNoGroupWhoseRankZeroIsElsewhere) {
  exchange_.trainer(0).Join("next", 2);
  cluster_.Run();
  const GroupJoin join = [&] {
    cluster_.Hold(1, 0);
    exchange_.trainer(1).Join("next", 2);
    return *Outgoing<GroupJoin>(cluster_, 1).at(0);
  }();
  const uint64_t before = Ignored(1);
  Say(1, GroupCommit{join.key, {cluster_.node(kStranger).boot, 7}, {"n2", "n1"}, {}, JobSeq(1)});
  cluster_.Run([&] { return cluster_.node(kStranger).outbox.empty(); });
  EXPECT_EQ(Ignored(1), before + 1);
  cluster_.Release(1, 0);
  cluster_.Run();
  ASSERT_TRUE(exchange_.trainer(1).group.ok()) << exchange_.trainer(1).group.status();
  EXPECT_EQ(exchange_.trainer(1).group->members, (std::vector<std::string>{"n0", "n1"}));
}

TEST_P(StrangerTest, ACommitThatNobodyJoinedLeavesNoNames) {
  const size_t peers = cluster_.node(0).engine->Snapshot(0).peers.size();
  GroupCommit commit{{"t", "invented", {}}, {cluster_.node(kStranger).boot, 7}, {"n2", "n0"}, {}, JobSeq(1)};
  for (int i = 0; i < 1000; ++i) commit.members.push_back(absl::StrCat("nobody", i));
  Say(0, commit);
  cluster_.Run([&] { return cluster_.node(kStranger).outbox.empty(); });
  EXPECT_EQ(cluster_.node(0).engine->Snapshot(0).peers.size(), peers);
  ASSERT_EQ(Outgoing<GroupBroken>(cluster_, 0).size(), 1u) << "who committed must not wait for ranks of n0";
  EXPECT_EQ(Outgoing<GroupBroken>(cluster_, 0)[0]->epoch, commit.epoch);
}

TEST_P(StrangerTest, GroupsThatFormElsewhereTakeNoPlaceHere) {
  for (uint32_t i = 0; i < AgentLimits().max_groups; ++i) {
    Say(0, GroupJoin{{"t", absl::StrCat("elsewhere", i), {}}, 2, Rank(0), {}, JobSeq(1)});
  }
  cluster_.Run();
  for (uint32_t rank : {0u, 1u}) exchange_.trainer(rank).Join("here", 2);
  cluster_.Run();
  EXPECT_TRUE(exchange_.trainer(0).group.ok()) << exchange_.trainer(0).group.status();
}

// One that floods loses its own messages, and is told which of its jobs that ends.
TEST_P(StrangerTest, AFloodOfEarlyMessagesTakesNobodyElsesPlace) {
  const Epoch later{cluster_.node(1).boot, 9};
  cluster_.node(1).outbox.emplace_back("n0", ReadyOf({later, JobSeq(1)}));
  cluster_.Run();
  const Epoch unknown{cluster_.node(kStranger).boot, 9};
  const uint64_t before = Ignored(0);
  for (uint64_t seq = 1; seq <= EarlyMessages::kMaxMessages + 3; ++seq) {
    Say(0, ReadyOf({unknown, JobSeq(seq)}));
  }
  cluster_.Hold(0, kStranger);
  cluster_.Run();
  EXPECT_EQ(Ignored(0), before + 3);
  const auto ends = Outgoing<Abort>(cluster_, 0);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends[0]->job, (JobKey{unknown, JobSeq(1)}));
  EXPECT_EQ(ends[0]->code, absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace railsd::testing
