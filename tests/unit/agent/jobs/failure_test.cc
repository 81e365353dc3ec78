// Groups that form and break; trainers, peers and daemons that go away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>

#include <sstream>
#include <tuple>
#include <vector>

#include "agent/base/failed_ranks.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Text(const absl::Status& status) { return status.ToString(); }

// Over rails that receive frames, and over rails that write into remote memory.
class GroupTest : public ::testing::TestWithParam<bool> {};
class PeerTest : public ::testing::TestWithParam<bool> {};
class DrainTest : public ::testing::TestWithParam<bool> {};
class SegmentTest : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Rails, GroupTest, ::testing::Bool(), ModeOf);
INSTANTIATE_TEST_SUITE_P(Rails, PeerTest, ::testing::Bool(), ModeOf);
INSTANTIATE_TEST_SUITE_P(Rails, DrainTest, ::testing::Bool(), ModeOf);
INSTANTIATE_TEST_SUITE_P(Rails, SegmentTest, ::testing::Bool(), ModeOf);

TEST_P(GroupTest, WorldSizeThatRanksDisagreeOnIsToldToAll) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g", {.join = false});
  exchange.trainer(0).Join("g", 2);
  exchange.trainer(1).Join("g", 3);
  cluster.Run();
  for (uint32_t r : {0u, 1u}) {
    EXPECT_EQ(exchange.trainer(r).group.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(exchange.trainer(r).group.status()), AllOf(HasSubstr("says 3"), HasSubstr("says 2")));
  }
  exchange.JoinAll();
}

TEST_P(GroupTest, BadJoins) {
  Cluster cluster({.remote = GetParam(),
                   .nodes = 1,
                   .rails = 1,
                   .limits = {.max_groups = 1, .max_world_size = 8, .max_name_bytes = 5}});
  Exchange exchange(&cluster, 2, "g", {.join = false});
  Trainer& trainer = exchange.trainer(0);
  const auto join = [&](const std::string& name, uint32_t world, uint32_t rank) {
    trainer.rank = Rank(rank);
    trainer.Join(name, world);
    return Text(trainer.group.status());
  };
  EXPECT_THAT(join("g", 0, 0), HasSubstr("world_size: 0"));
  EXPECT_THAT(join("g", 9, 0), HasSubstr("world_size: 9"));
  EXPECT_THAT(join("g", 2, 2), HasSubstr("rank: 2"));
  EXPECT_THAT(join("", 2, 0), HasSubstr("name: 0 bytes"));
  EXPECT_THAT(join("sixsix", 2, 0), HasSubstr("name: 6 bytes; give 1 to 5 (limits.max_name)"));
  EXPECT_THAT(join("g", 2, 0), HasSubstr("joining"));
  EXPECT_THAT(join("g", 2, 0), HasSubstr("ALREADY_EXISTS"));
  exchange.trainer(1).rank = Rank(0);
  exchange.trainer(1).Join("g", 2);
  EXPECT_EQ(exchange.trainer(1).group.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(join("other", 2, 0), HasSubstr("limits.max_groups"));
}

TEST_P(GroupTest, BrokenGroupsTakeAPlaceUntilTheirRanksHaveLeft) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1, .limits = {.max_groups = 3}});
  Exchange exchange(&cluster, 2, "g", {.join = false});
  Trainer &stays = exchange.trainer(0), &leaves = exchange.trainer(1);
  const auto form_and_break = [&](const std::string& name) {
    stays.Join(name, 2);
    leaves.Join(name, 2);
    if (!stays.group.ok()) return Text(stays.group.status());
    cluster.node(0).engine->Leave(leaves.session, leaves.group->epoch, Rank(1), [](absl::Status) {});
    cluster.Run();
    return std::string("broken");
  };
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(form_and_break(name), "broken");
  EXPECT_THAT(form_and_break("d"), HasSubstr("limits.max_groups: n0 has 3 groups"));
  cluster.Run();
  EXPECT_EQ(cluster.node(0).engine->Snapshot(0).groups.size(), 3u);
  // Ranks that meet again take their old place, and whoever leaves gives it back.
  for (const char* name : {"b", "a", "c"}) EXPECT_EQ(form_and_break(name), "broken");
  EXPECT_EQ(cluster.node(0).engine->Snapshot(0).groups.size(), 3u);
  cluster.node(0).engine->Leave(stays.session, stays.group->epoch, Rank(0), [](absl::Status) {});
  EXPECT_EQ(form_and_break("d"), "broken");
}

TEST_P(GroupTest, SameRankTwiceOnDifferentNodes) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1});
  Exchange exchange(&cluster, 3, "g", {.join = false});
  exchange.trainer(0).Join("g", 3);
  cluster.Run();
  exchange.trainer(1).Join("g", 3);
  cluster.Run();
  exchange.trainer(2).rank = Rank(1);
  exchange.trainer(2).Join("g", 3);
  cluster.Run();
  EXPECT_EQ(exchange.trainer(2).group.status().code(), absl::StatusCode::kAlreadyExists);
  exchange.trainer(2).rank = Rank(2);
  exchange.trainer(2).Join("g", 3);
  cluster.Run();
  EXPECT_TRUE(exchange.trainer(2).group.ok()) << exchange.trainer(2).group.status();
}

TEST_P(GroupTest, MissingRanksAreNamed) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 4, "g", {.join = false});
  exchange.trainer(0).Join("g", 4, absl::Seconds(10));
  exchange.trainer(1).Join("g", 4);
  cluster.Run();
  for (uint32_t n : {0u, 1u}) {
    const std::vector<FormingView> forming = cluster.node(n).engine->Snapshot(0).forming;
    ASSERT_EQ(forming.size(), 1u);
    EXPECT_EQ(forming[0].joined, 2u);
    EXPECT_EQ(forming[0].local_ranks, std::vector<Rank>{Rank(n)});
    EXPECT_EQ(forming[0].missing, (std::vector<Rank>{Rank(2), Rank(3)}));
  }
  cluster.RunFor(absl::Seconds(11));
  EXPECT_EQ(exchange.trainer(0).group.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Text(exchange.trainer(0).group.status()), HasSubstr("missing: 2, 3"));
  EXPECT_THAT(Text(exchange.trainer(1).group.status()), HasSubstr("joining"));
}

// Each rank that gives up goes; the ones that give up later must not read that it never came.
TEST_P(GroupTest, RanksThatGaveUpAreNotMissing) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 4, "g", {.join = false});
  exchange.trainer(0).Join("g", 4, absl::Seconds(10));
  exchange.trainer(1).Join("g", 4, absl::Seconds(20));
  exchange.trainer(3).Join("g", 4, absl::Seconds(30));
  for (uint32_t r : {0u, 1u, 3u}) {
    cluster.RunFor(absl::Seconds(10));
    EXPECT_THAT(Text(exchange.trainer(r).group.status()), HasSubstr("3 of 4 ranks have joined; missing: 2")) << r;
  }
  EXPECT_THAT(Text(exchange.trainer(3).group.status()), HasSubstr("gave up before: 0 on n0, 1 on n1"));
  EXPECT_THAT(Text(exchange.trainer(0).group.status()), Not(HasSubstr("gave up")));
}

TEST_P(GroupTest, AGroupThatIsLeftWhenAllIsDoneIsNotLoggedAsBroken) {
  std::ostringstream text;
  Cluster cluster(
      {.remote = GetParam(),
       .nodes = 2,
       .rails = 1,
       .log = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text))});
  Exchange done(&cluster, "done", AllLengths(2, 1000)), cut(&cluster, "cut", AllLengths(2, 1000));
  for (Exchange* exchange : {&done, &cut}) {
    exchange->SubmitAll(1);
    cluster.Run();
    exchange->ExpectDone(1);
  }
  ASSERT_TRUE(cut.trainer(1).Submit(cut.For(1, 2)).ok());
  cluster.Run();
  for (Exchange* exchange : {&done, &cut}) {
    exchange->trainer(0).Leave();
    cluster.Run();
  }
  const std::string log = text.str();
  EXPECT_THAT(log, AllOf(HasSubstr("group_ended group=done"), Not(HasSubstr("group_broken group=done"))));
  EXPECT_THAT(log, HasSubstr("why=\"rank 0 on n0 left group done (said n0)\"")) << "at the other node, too";
  EXPECT_THAT(log, HasSubstr("group_broken group=cut")) << "a job was under way";
}

TEST_P(GroupTest, DifferentKeysNeverMeet) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g", {.join = false});
  exchange.trainer(0).Join("g", 2);
  Trainer& other = exchange.trainer(1);
  cluster.node(1).engine->Join({other.session, "g", "another", 2, Rank(1), absl::Seconds(5)},
                               [&](absl::StatusOr<GroupView> view) { other.group = std::move(view); });
  cluster.Run();
  EXPECT_FALSE(exchange.trainer(0).group.ok());
  EXPECT_FALSE(other.group.ok());
}

TEST_P(GroupTest, LeavingAfterTheLastJobDoesNotFailOthersJobs) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1});
  Exchange exchange(&cluster, 3, "g", {.buffer_bytes = 4 << 20});
  // Rank 0 exchanges nothing and is done early; ranks 1 and 2 move a lot.
  exchange.SetLengths({{0, 0, 0}, {0, 0, 4'000'000}, {0, 4'000'000, 0}}, 1);
  exchange.SubmitAll(1);
  auto first = exchange.trainer(0).Wait(1);
  cluster.Run([&] { return first->ok(); });
  ASSERT_EQ((*first)->state, JobState::kDone) << (*first)->status;
  exchange.trainer(0).Leave();
  exchange.ExpectCompletes(1);
  EXPECT_THAT(Text(exchange.trainer(1).Submit(exchange.For(1, 2))), HasSubstr("rank 0 on n0 left"));
}

// The receiver's rails drain what comes after its abort, and say so sooner than the link says why.
TEST(AbortTest, TheCauseIsToldThoughTheRailsAreFaster) {
  Cluster cluster({.nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 4'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.node(1).rails[0]->counters().rx_payload_bytes.load() > 0; });
  cluster.Hold(1, 0);
  cluster.node(1).engine->CloseSession(exchange.trainer(1).session, "pid 42 was killed", [](absl::Status) {});
  auto sender = exchange.trainer(0).Wait(1);
  cluster.Run();
  EXPECT_FALSE(sender->ok());
  cluster.Release(1, 0);
  cluster.Run();
  ASSERT_TRUE(sender->ok());
  EXPECT_THAT(Text((*sender)->status), HasSubstr("rank 1 on n1"));
  EXPECT_EQ(FailedRanks((*sender)->status), std::vector<Rank>{Rank(1)});
  const absl::Status later = exchange.trainer(0).Submit(exchange.For(0, 2));
  EXPECT_TRUE(absl::IsFailedPrecondition(later)) << later;
  EXPECT_EQ(FailedRanks(later), std::vector<Rank>{Rank(1)}) << later;
}

TEST(AbortTest, APeerThatNeverSaysWhyIsNotWaitedForLong) {
  Cluster cluster({.nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 4'000'000}, {0, 0}});
  exchange.SubmitAll(1);
  cluster.Run([&] { return cluster.node(1).rails[0]->counters().rx_payload_bytes.load() > 0; });
  cluster.Hold(1, 0);
  cluster.node(1).engine->CloseSession(exchange.trainer(1).session, "killed", [](absl::Status) {});
  auto sender = exchange.trainer(0).Wait(1);
  cluster.RunFor(absl::Seconds(6));
  ASSERT_TRUE(sender->ok());
  EXPECT_THAT(Text((*sender)->status), HasSubstr("n1 closed its zone for job 1 early"));
}

TEST_P(GroupTest, RankZeroClaimedOnTwoNodesAtOnce) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 3, "g", {.join = false});  // ranks 0 and 2 on n0
  exchange.trainer(1).rank = Rank(0);
  exchange.trainer(0).Join("g", 2);
  exchange.trainer(1).Join("g", 2);
  exchange.trainer(2).rank = Rank(1);
  exchange.trainer(2).Join("g", 2);
  cluster.Run();
  EXPECT_TRUE(exchange.trainer(0).group.ok()) << exchange.trainer(0).group.status();
  EXPECT_EQ(exchange.trainer(1).group.status().code(), absl::StatusCode::kAlreadyExists);
}

class TrainerDeathTest : public ::testing::TestWithParam<std::tuple<bool, int>> {};

// A trainer that goes away at any moment leaves nothing behind, and its peers hear its rank.
TEST_P(TrainerDeathTest, PeersHearTheRankAndNothingIsLeft) {
  const auto [remote, after_steps] = GetParam();
  Cluster cluster({.remote = remote, .nodes = 2, .rails = 2, .seed = static_cast<uint64_t>(after_steps) + 1});
  Exchange exchange(&cluster, 4, "g", {.buffer_bytes = 2 << 20});
  Lengths lengths(4, std::vector<uint64_t>(4, 500'000));
  exchange.SetLengths(lengths, 1);
  exchange.SubmitAll(1);
  cluster.RunSteps(after_steps);
  bool closed = false;
  cluster.node(1).engine->CloseSession(exchange.trainer(3).session, "pid 42 was killed",
                                       [&](absl::Status s) { closed = s.ok(); });
  cluster.Run();
  EXPECT_TRUE(closed);
  for (uint32_t r : {0u, 1u, 2u}) {
    const JobReport report = exchange.Report(r, 1);
    if (report.state == JobState::kDone) continue;  // it was over by then
    EXPECT_EQ(report.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(Text(report.status), AllOf(HasSubstr("rank 3 on n1"), HasSubstr("pid 42 was killed")));
  }
  for (uint32_t r : {0u, 1u, 2u}) {
    cluster.node(r % 2).engine->CloseSession(exchange.trainer(r).session, "end", [](absl::Status) {});
  }
  cluster.Run();
  for (size_t n = 0; n < 2; ++n) {
    const AgentSnapshot snapshot = cluster.node(n).engine->Snapshot(0);
    EXPECT_TRUE(snapshot.sessions.empty());
    EXPECT_TRUE(snapshot.groups.empty());
    EXPECT_TRUE(snapshot.active_jobs.empty());
  }
  cluster.ExpectNothingOpen();
}

INSTANTIATE_TEST_SUITE_P(AfterSteps, TrainerDeathTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(0, 1, 3, 5, 8, 12, 20, 30, 50, 80, 200)));

TEST_P(PeerTest, LostPeerFailsItsJobsAndNamesTheNode) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 2});
  Exchange with(&cluster, "with", AllLengths(3, 2'000'000));
  with.SubmitAll(1);
  // Bytes have moved, and n2 cannot have finished: nothing of it moves any more.
  cluster.Run([&] { return cluster.HasReceived(0, 0); });
  for (auto& rail : cluster.node(2).rails) rail->frozen = true;
  for (size_t n : {0u, 1u}) cluster.node(n).engine->OnPeerDown("n2", "silent for 5 s");
  cluster.Run();
  with.ExpectFailed(1, absl::StatusCode::kUnavailable, AllOf(HasSubstr("n2"), HasSubstr("silent for 5 s")), {0, 1});
}

TEST_P(PeerTest, RestartedPeerBreaksOldGroupsAndJoinsAgain) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, 2, "g");
  PeerHello hello = cluster.HelloOf(1);
  hello.boot = BootId(999);
  cluster.node(0).engine->OnPeerUp(hello);
  cluster.Run();
  exchange.SetLengths({{0, 10}, {20, 0}}, 1);
  EXPECT_THAT(Text(exchange.trainer(0).Submit(exchange.For(0, 1))), HasSubstr("restarted"));
}

TEST_P(DrainTest, TakesJobsUpToTheCutOnly) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 10}, {20, 0}});
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  absl::Status drained = absl::UnknownError("not yet");
  cluster.node(0).engine->Drain(absl::Seconds(10), [&](absl::Status s) { drained = std::move(s); });
  cluster.Run();
  EXPECT_EQ(drained.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(exchange.trainer(0).Submit(exchange.For(0, 2)).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  EXPECT_TRUE(drained.ok()) << drained;
  exchange.ExpectBytes();
}

TEST_P(DrainTest, EndsAtItsLimit) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 10}, {20, 0}});
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  absl::Status drained;
  cluster.node(0).engine->Drain(absl::Seconds(10), [&](absl::Status s) { drained = std::move(s); });
  cluster.Advance(absl::Seconds(11));
  cluster.Run();
  EXPECT_EQ(drained.code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_P(SegmentTest, QuotasAndUse) {
  Cluster cluster({.remote = GetParam(),
                   .nodes = 1,
                   .rails = 1,
                   .limits = {.max_segments_per_session = 3, .max_segment_bytes_per_session = 4 << 20}});
  Exchange exchange(&cluster, "g", {{0, 10}, {20, 0}});
  Trainer& trainer = exchange.trainer(0);
  Engine& engine = *cluster.node(0).engine;
  const auto add = [&](uint32_t id, uint64_t bytes) {
    absl::Status result;
    Buffer buffer(bytes);
    if (absl::Status s = engine.BeginMapping(trainer.session, SegmentId(id), bytes); !s.ok()) return Text(s);
    engine.AddSegment(trainer.session, SegmentId(id), Segment::Map(SegmentId(id), buffer.Dup(), bytes).value(),
                      [&](absl::Status s) { result = std::move(s); });
    return Text(result);
  };
  EXPECT_THAT(add(1, 4096), HasSubstr("segment_id: 1 is taken"));
  EXPECT_THAT(add(3, 3 << 20), HasSubstr("max_segment_bytes_per_session"));
  EXPECT_EQ(add(3, 4096), "OK");
  EXPECT_THAT(add(4, 4096), HasSubstr("max_segments_per_session"));
  ASSERT_TRUE(trainer.Submit(exchange.For(0, 1)).ok());
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  absl::Status removed;
  engine.RemoveSegment(trainer.session, SegmentId(1), [&](absl::Status s) { removed = std::move(s); });
  EXPECT_TRUE(removed.ok()) << removed;
  engine.RemoveSegment(trainer.session, SegmentId(1), [&](absl::Status s) { removed = std::move(s); });
  EXPECT_EQ(removed.code(), absl::StatusCode::kNotFound);
}

TEST_P(SegmentTest, RoomIsReservedBeforeTheMemoryComes) {
  Cluster cluster({.remote = GetParam(), .nodes = 1, .rails = 1, .limits = {.max_segment_bytes_per_session = 7 << 19}});
  Exchange exchange(&cluster, 1, "g", {.join = false});
  const SessionId session = exchange.trainer(0).session;
  Engine& engine = *cluster.node(0).engine;
  const auto reserve = [&](uint32_t id, uint64_t bytes) {
    absl::Status result = absl::UnknownError("no answer");
    engine.ReserveSegment(session, SegmentId(id), bytes, [&](absl::Status s) { result = std::move(s); });
    return Text(result);
  };
  const auto remove = [&](uint32_t id) {
    engine.RemoveSegment(session, SegmentId(id), [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
  };
  EXPECT_EQ(reserve(7, 1 << 20), "OK");
  EXPECT_THAT(reserve(7, 1 << 20), HasSubstr("segment_id: 7 is taken"));
  EXPECT_THAT(reserve(8, 1 << 20), HasSubstr("max_segment_bytes_per_session"));
  EXPECT_THAT(engine.BeginMapping(session, SegmentId(7), 1 << 19).message(),
              HasSubstr("length_bytes: 524288, but segment 7 was reserved with 1048576 bytes"));
  remove(7);
  EXPECT_EQ(reserve(8, 1 << 20), "OK") << "the room came back";
  cluster.AddSegment(0, session, 8, Buffer(1 << 20));
  EXPECT_THAT(reserve(9, 1 << 20), HasSubstr("max_segment_bytes_per_session")) << "counted once";
  remove(8);
  EXPECT_EQ(reserve(9, 1 << 20), "OK");
  absl::Status closed = absl::UnknownError("no answer");
  engine.CloseSession(session, "test", [&](absl::Status s) { closed = std::move(s); });
  cluster.Run();
  EXPECT_TRUE(closed.ok()) << "a reservation keeps no session: " << closed;
  EXPECT_EQ(engine.Snapshot(0).tenants[0].in_use[QuotaKind::kSegmentBytes], 0u);
}

TEST_P(SegmentTest, CannotBeRemovedBetweenAcceptanceAndUse) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 10}, {20, 0}});
  Trainer& trainer = exchange.trainer(0);
  ASSERT_TRUE(trainer.Submit(exchange.For(0, 1)).ok());  // its peer's READY has not come
  cluster.Run();
  for (uint32_t segment : {1u, 2u}) {
    absl::Status removed;
    cluster.node(0).engine->RemoveSegment(trainer.session, SegmentId(segment),
                                          [&](absl::Status s) { removed = std::move(s); });
    EXPECT_EQ(removed.code(), absl::StatusCode::kFailedPrecondition) << removed;
  }
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  exchange.ExpectBytes();
}

// The commit reaches a third node before the join that it answers.
TEST_P(GroupTest, NoJoinIsLeftBehindByACommitThatOvertookIt) {
  Cluster cluster({.remote = GetParam(), .nodes = 3, .rails = 1, .limits = {.max_groups = 1}});
  Exchange exchange(&cluster, 3, "g", {.join = false});
  cluster.Hold(1, 2);
  exchange.trainer(0).Join("pair", 2);
  exchange.trainer(1).Join("pair", 2);
  cluster.Run();
  ASSERT_TRUE(exchange.trainer(0).group.ok());
  cluster.Release(1, 2);
  cluster.Run();
  exchange.trainer(2).rank = Rank(0);
  exchange.trainer(2).Join("alone", 1);  // its quota of one group is free
  cluster.Run();
  EXPECT_TRUE(exchange.trainer(2).group.ok()) << exchange.trainer(2).group.status();
}

TEST_P(DrainTest, TakesWhatOtherNodesHaveSubmitted) {
  Cluster cluster({.remote = GetParam(), .nodes = 2, .rails = 1});
  Exchange exchange(&cluster, "g", {{0, 10}, {20, 0}});
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  cluster.node(0).engine->Drain(absl::Seconds(10), [](absl::Status) {});
  EXPECT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  cluster.Run();
  EXPECT_EQ((*exchange.trainer(1).Wait(1))->state, JobState::kDone);
}

}  // namespace
}  // namespace railsd::testing
