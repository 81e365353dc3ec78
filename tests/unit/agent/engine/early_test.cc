#include "agent/engine/early.h"

#include <gtest/gtest.h>

#include <optional>

#include "agent/control/held_bytes.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd {
namespace {

constexpr Epoch kOne{BootId(1), 1}, kTwo{BootId(1), 2};

EarlyMessages::Message From(uint32_t peer, Epoch epoch, uint64_t seq, size_t flows = 0, absl::Time at = {}) {
  Ready ready;
  ready.job = {epoch, JobSeq(seq)};
  ready.sends = std::vector<Ready::Flow>(flows);
  return {PeerIndex(peer), epoch, at, std::move(ready)};
}
uint64_t SeqOf(const EarlyMessages::Message& message) { return std::get<Ready>(message.message).job.seq.value(); }

TEST(EarlyMessagesTest, AreTakenInTheirOrderOnceTheirEpochIsKnown) {
  EarlyMessages early;
  EXPECT_TRUE(early.Keep(From(1, kOne, 1)).empty());
  EXPECT_TRUE(early.Keep(From(1, kTwo, 2)).empty());
  EXPECT_TRUE(early.Keep(From(1, kOne, 3)).empty());
  const auto is_one = [](Epoch epoch) { return epoch == kOne; };
  EXPECT_EQ(SeqOf(*early.Take(is_one)), 1u);
  EXPECT_EQ(SeqOf(*early.Take(is_one)), 3u);
  EXPECT_FALSE(early.Take(is_one).has_value());
  EXPECT_EQ(SeqOf(*early.Take([](Epoch) { return true; })), 2u);
}

TEST(EarlyMessagesTest, APeersOldestOnesGoWhenItHasTooMany) {
  EarlyMessages early;
  EXPECT_TRUE(early.Keep(From(2, kOne, 77)).empty());
  for (uint64_t seq = 1; seq <= EarlyMessages::kMaxMessages; ++seq) EXPECT_TRUE(early.Keep(From(1, kOne, seq)).empty());
  const auto dropped = early.Keep(From(1, kOne, 5000));
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(SeqOf(dropped[0]), 1u);
  EXPECT_EQ(SeqOf(*early.Take([](Epoch) { return true; })), 77u) << "of another peer, which has kept its place";
}

TEST(EarlyMessagesTest, APeersOldestOnesGoWhenTheyAreTooLarge) {
  EarlyMessages early;
  const size_t half = EarlyMessages::kMaxBytes / 2 / sizeof(Ready::Flow) - 100;
  EXPECT_TRUE(early.Keep(From(1, kOne, 1, half)).empty());
  EXPECT_TRUE(early.Keep(From(1, kOne, 2)).empty());
  EXPECT_TRUE(early.Keep(From(2, kOne, 3, half)).empty()) << "of another peer";
  const auto dropped = early.Keep(From(1, kOne, 4, 2 * half));
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(SeqOf(dropped[0]), 1u);
  const auto too_large = early.Keep(From(1, kOne, 5, 4 * half));
  ASSERT_EQ(too_large.size(), 1u);
  EXPECT_EQ(SeqOf(too_large[0]), 5u);
  early.Forget(PeerIndex(1));
  EXPECT_EQ(SeqOf(*early.Take([](Epoch) { return true; })), 3u);
  EXPECT_FALSE(early.Take([](Epoch) { return true; }).has_value());
  EXPECT_TRUE(early.Keep(From(1, kOne, 6, 2 * half)).empty()) << "what was forgotten is not counted any more";
}

TEST(EarlyMessagesTest, NoneIsKeptForever) {
  EarlyMessages early;
  EXPECT_EQ(early.NextDeadline(), absl::InfiniteFuture());
  const absl::Time start = absl::UnixEpoch();
  early.Keep(From(1, kOne, 1, 0, start));
  early.Keep(From(1, kOne, 2, 0, start + absl::Seconds(1)));
  EXPECT_TRUE(early.TakeOld(start + EarlyMessages::kKept - absl::Milliseconds(1)).empty());
  EXPECT_EQ(early.NextDeadline(), start + EarlyMessages::kKept);
  const auto old = early.TakeOld(early.NextDeadline());
  ASSERT_EQ(old.size(), 1u);
  EXPECT_EQ(SeqOf(old[0]), 1u);
  EXPECT_EQ(early.NextDeadline(), start + absl::Seconds(1) + EarlyMessages::kKept);
}

// READYs for jobs that ranks of the receiver have not submitted.
class EarlyReadyTest : public ::testing::TestWithParam<bool> {
 protected:
  // All ranks of a node share a session; even ranks are on n0.
  void Join(uint32_t world) {
    world_ = world;
    for (size_t n : {0u, 1u}) sessions_[n] = cluster_.OpenSession(n);
    for (uint32_t r = 0; r < world; ++r) {
      cluster_.node(r % 2).engine->Join({sessions_[r % 2], "g", "secret", world, Rank(r), absl::Seconds(60)},
                                        [this](absl::StatusOr<GroupView> view) { epoch_ = view.value().epoch; });
    }
    cluster_.Run();
    ASSERT_NE(epoch_.counter, 0u);
  }
  void Say(uint64_t seq, std::vector<Ready::Flow> sends, std::vector<Ready::Flow> receives = {},
           std::optional<Grant> grant = std::nullopt) {
    Ready ready;
    ready.job = {epoch_, JobSeq(seq)};
    ready.sends = std::move(sends);
    ready.receives = std::move(receives);
    ready.grant = std::move(grant);
    cluster_.node(1).outbox.emplace_back("n0", std::move(ready));
    cluster_.Run([&] { return cluster_.node(1).outbox.empty(); });
  }
  uint64_t Ignored() { return cluster_.node(0).engine->Snapshot(0).counters.control_messages_ignored; }
  // The job's state at its receiver; OK: it waits for the ranks.
  absl::Status Outcome(uint64_t seq) {
    for (uint32_t r = 0; r < world_; r += 2) {
      Submission submission;
      submission.session = sessions_[0];
      submission.job = {epoch_, JobSeq(seq)};
      submission.rank = Rank(r);
      Engine& engine = *cluster_.node(0).engine;
      engine.Submit(engine.Check(submission), [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
    }
    absl::Status outcome;
    cluster_.node(0).engine->Wait(sessions_[0], {epoch_, JobSeq(seq)}, Rank(0), absl::ZeroDuration(),
                                  [&](absl::StatusOr<JobReport> report) { outcome = report.value().status; });
    return outcome;
  }

  testing::Cluster cluster_{{.remote = GetParam(), .nodes = 2, .rails = 1, .limits = {.max_jobs_per_group = 512}}};
  SessionId sessions_[2];
  Epoch epoch_;
  uint32_t world_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Rails, EarlyReadyTest, ::testing::Bool(), testing::ModeOf);

TEST_P(EarlyReadyTest, HasNoMoreFlowsThanThereArePairsOfRanks) {
  Join(4);
  const uint64_t before = Ignored();
  Say(1, {{Rank(1), Rank(0), 8},
          {Rank(3), Rank(0), 8},
          {Rank(1), Rank(2), 8},
          {Rank(3), Rank(2), 8},
          {Rank(3), Rank(2), 8}});
  EXPECT_EQ(Ignored(), before + 1);
  EXPECT_EQ(Outcome(1),
            absl::InternalError("READY of n1 for job 1 has a flow from rank 3 to rank 2, which it cannot have "
                                "there"));
  Say(2, {}, {{Rank(0), Rank(1), 8}, {Rank(2), Rank(1), 8}, {Rank(0), Rank(3), 8}, {Rank(0), Rank(3), 8}});
  EXPECT_EQ(Ignored(), before + 2);
  EXPECT_EQ(Outcome(2),
            absl::InternalError("READY of n1 for job 2 has a flow from rank 0 to rank 3, which it cannot have "
                                "there"));
}

TEST_P(EarlyReadyTest, AllOfOnePeerHaveABoundInBytes) {
  Join(128);
  std::vector<Ready::Flow> flows;
  for (uint32_t destination = 0; destination < 128; destination += 2) {
    for (uint32_t source = 1; source < 128; source += 2) flows.push_back({Rank(source), Rank(destination), 8});
  }
  const uint64_t room = HeldReadys::kMaxBytes / (flows.size() * sizeof(Ready::Flow));
  const uint64_t before = Ignored();
  for (uint64_t seq = 1; seq <= room; ++seq) Say(seq, flows);
  EXPECT_EQ(Ignored(), before);
  Say(room + 1, flows);
  EXPECT_EQ(Ignored(), before + 1);
  EXPECT_EQ(Outcome(1).code(), absl::StatusCode::kInvalidArgument) << "it is looked at now, and needs no room any more";
  Say(room + 2, flows);
  EXPECT_EQ(Ignored(), before + 1);
  for (uint64_t seq = 2; seq <= room; ++seq) EXPECT_FALSE(Outcome(seq).ok());
  EXPECT_EQ(Outcome(room + 1).code(), absl::StatusCode::kResourceExhausted);
}

// A grant rides in READY, and nothing in the group bounds how many ranges and keys it has.
TEST_P(EarlyReadyTest, GrantsThatRideTakeOfTheBound) {
  Join(4);
  constexpr size_t kHalf = HeldReadys::kMaxBytes / 2 - sizeof(Ready::Flow);
  const std::vector<Ready::Flow> flow = {{Rank(1), Rank(0), 8}};
  Grant ranges, keys;
  ranges.ranges.resize(kHalf / sizeof(Grant::Range));
  keys.keys.push_back({{RailIndex(0), 1}, std::vector<uint32_t>(kHalf / sizeof(uint32_t))});
  const uint64_t before = Ignored();
  Say(1, flow, {}, ranges);
  Say(2, flow, {}, keys);
  EXPECT_EQ(Ignored(), before);
  Say(3, flow);
  EXPECT_EQ(Ignored(), before + 1);
  EXPECT_EQ(Outcome(1).code(), absl::StatusCode::kInvalidArgument) << "nobody expects the flow";
  Say(4, flow, {}, ranges);
  EXPECT_EQ(Ignored(), before + 1) << "job 1 is over and holds nothing";
  Say(5, flow);
  EXPECT_EQ(Ignored(), before + 2);
  Say(5, flow, {}, ranges);
  EXPECT_EQ(Ignored(), before + 2) << "a tombstone answers, and keeps nothing";
  EXPECT_EQ(Outcome(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Outcome(3).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Outcome(4).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Outcome(5).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace railsd
