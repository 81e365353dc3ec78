// Exchanges that ride in READY.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kEager = 4096;

AgentCounters CountersOf(Cluster& cluster, size_t n) { return cluster.node(n).engine->Snapshot(0).counters; }

// Messages and commands of rails so far, of all nodes.
struct Cost {
  uint64_t messages = 0, commands = 0, rail_bytes = 0, plans = 0;
};
Cost CostOf(Cluster& cluster) {
  Cost cost;
  for (size_t n = 0; n < cluster.size(); ++n) {
    cost.messages += CountersOf(cluster, n).control_messages_out;
    cost.plans += CountersOf(cluster, n).plans;
    for (const auto& rail : cluster.node(n).rails) {
      cost.commands += rail->commands_taken;
      cost.rail_bytes += rail->counters().tx_payload_bytes.load();
    }
  }
  return cost;
}

class EagerTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Rails, EagerTest, ::testing::Bool(), ModeOf);

TEST_P(EagerTest, UpToTheThresholdNothingButReadyIsNeeded) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, 2, "g");
  uint64_t seq = 0, eager = 0, eager_bytes = 0;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, kEager - 1, kEager, kEager + 1, 2 * kEager}) {
    SCOPED_TRACE(bytes);
    exchange.SetLengths(AllLengths(2, bytes), bytes);
    const Cost before = CostOf(cluster);
    exchange.RunJob(++seq, 3);
    const Cost after = CostOf(cluster);
    if (bytes > kEager) {
      EXPECT_EQ(after.plans, before.plans + 2);
      EXPECT_EQ(after.rail_bytes, before.rail_bytes + 2 * bytes);
    } else {
      EXPECT_EQ(after.messages, before.messages + 2) << "one READY each";
      EXPECT_EQ(after.commands, before.commands) << "zones, windows, bytes and fences need commands";
      EXPECT_EQ(after.rail_bytes, before.rail_bytes);
      EXPECT_EQ(after.plans, before.plans);
      eager += bytes > 0;
      eager_bytes += bytes;
    }
    cluster.ExpectNothingOpen();
    for (size_t n : {0u, 1u}) {
      const JobReport report = **exchange.trainer(n).Wait(seq);
      EXPECT_THAT((std::vector{report.eager_sent_bytes, report.eager_received_bytes}),
                  Each(bytes > kEager ? 0 : bytes));
      const AgentCounters counters = CountersOf(cluster, n);
      EXPECT_THAT((std::vector{counters.eager_sent, counters.eager_received}), Each(eager));
      EXPECT_THAT((std::vector{counters.eager_sent_bytes, counters.eager_received_bytes}), Each(eager_bytes));
    }
  }
}

TEST_P(EagerTest, NothingIsEagerWhereTheThresholdIsZero) {
  Cluster cluster({.remote = GetParam()});
  Exchange exchange(&cluster, "g", AllLengths(2, 1));
  exchange.RunJob(1);
  EXPECT_EQ(CountersOf(cluster, 0).eager_sent, 0u);
  EXPECT_EQ(CostOf(cluster).rail_bytes, 2u);
}

// The threshold is for all flows of an exchange together.
TEST_P(EagerTest, ManyFlowsShareAnExchange) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, "g", AllLengths(16, kEager / 64));
  exchange.RunJob(1, 5);
  EXPECT_EQ(CountersOf(cluster, 0).eager_sent, 1u);
  Lengths lengths = AllLengths(16, kEager / 64);
  ++lengths[2][5];
  exchange.SetLengths(lengths, 2);
  exchange.RunJob(2, 5);
  EXPECT_EQ(CountersOf(cluster, 0).eager_sent, 1u);
  EXPECT_EQ(CountersOf(cluster, 1).eager_sent, 2u);
}

TEST_P(EagerTest, LongAndShortExchangesInOneJob) {
  for (const uint64_t seed : Seeds(20)) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Cluster cluster({.remote = GetParam(), .nodes = 4, .rails = 2, .seed = seed, .eager_bytes = kEager});
    Exchange exchange(&cluster, 8, "g");
    uint64_t seq = 0;
    for (int job = 0; job < 3; ++job) {
      exchange.SetLengths(Exchange::RandomLengths(8, random() % 2 == 0 ? kEager : kEager / 2, random), seed);
      exchange.SubmitAll(++seq, 1 + random() % 3);
      cluster.FailRails(static_cast<int>(random() % 3), random);
      exchange.ExpectDone(seq);
      exchange.ExpectBytes();
      cluster.ExpectNothingOpen();
    }
    EXPECT_GT(CountersOf(cluster, 0).eager_sent, 0u);
  }
}

// The sender decides, whatever the receiver expects: it may have granted in vain, or have to grant later.
TEST_P(EagerTest, NodesNeedNotAgreeOnTheThreshold) {
  for (const uint64_t seed : Seeds(20)) {
    SCOPED_TRACE(seed);
    Cluster cluster({.remote = GetParam(), .nodes = 3, .seed = seed, .eager_bytes_of = {0, 100, kEager}});
    Exchange exchange(&cluster, 6, "g");
    uint64_t seq = 0;
    for (const uint64_t bytes : {10, 25, 400, 1024, 3000}) {
      exchange.SetLengths(AllLengths(6, bytes), bytes);
      exchange.RunJob(++seq);
      cluster.ExpectNothingOpen();
    }
    EXPECT_EQ(CountersOf(cluster, 0).eager_sent, 0u);
    EXPECT_EQ(CountersOf(cluster, 1).eager_sent, 4u);
    EXPECT_EQ(CountersOf(cluster, 2).eager_sent, 8u);
  }
}

TEST_P(EagerTest, NoRailNeedsToBeUp) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, 2, "g");
  for (size_t n : {0u, 1u}) {
    for (size_t r : {0u, 1u}) cluster.fabric().Fail(cluster.AddressOf(n, r));
  }
  cluster.Run();
  cluster.Advance(absl::Seconds(4));
  exchange.SetLengths(AllLengths(2, 100), 1);
  exchange.SubmitAll(1);
  cluster.Run();
  cluster.Advance(absl::Seconds(60));
  exchange.ExpectCompletes(1);
}

// The link is cut between READY and its acknowledgement, and comes back.
TEST_P(EagerTest, TheSenderIsDoneWhenTheLinkHasAcknowledged) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, "g", AllLengths(2, 100));
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();  // READY of n1 is at n0
  const auto other = exchange.trainer(1).Wait(1);
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  const auto report = exchange.trainer(0).Wait(1);
  cluster.Hold(1, 0);
  cluster.Run();
  EXPECT_TRUE(other->ok()) << "it has everything, and n0 has acknowledged";
  EXPECT_FALSE(report->ok()) << "its bytes may never have left";
  const AgentSnapshot snapshot = cluster.node(0).engine->Snapshot(0);
  ASSERT_EQ(snapshot.active_jobs.size(), 1u);
  EXPECT_EQ(snapshot.active_jobs[0].bytes_received, 100u);
  EXPECT_EQ(snapshot.active_jobs[0].bytes_sent, 0u);
  const auto explanation = cluster.node(0).engine->Explain({"", "", JobSeq(1)});
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  EXPECT_EQ(explanation->waits_for, "for n1 to take READY");
  cluster.Release(1, 0);
  cluster.Run();
  ASSERT_TRUE(report->ok()) << report->status();
  EXPECT_EQ((*report)->state, JobState::kDone);
  EXPECT_EQ((*report)->bytes_sent, 100u);
  EXPECT_THAT((*report)->rail_tx_bytes, Each(0u));
  EXPECT_THAT((*report)->rail_planned_bytes, Each(0u));
  exchange.ExpectBytes();
}

// As above, but the link is lost: whether the bytes have arrived is not known, and nobody says that they have.
TEST_P(EagerTest, AnUnacknowledgedJobFailsWithItsPeer) {
  for (const RecoveryPolicy policy : {RecoveryPolicy::kFail, RecoveryPolicy::kWait, RecoveryPolicy::kDegrade}) {
    Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
    Exchange exchange(
        &cluster, "g", AllLengths(2, 100),
        {.recovery = {policy, policy == RecoveryPolicy::kWait ? absl::Seconds(60) : absl::ZeroDuration()}});
    ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
    cluster.Run();
    ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
    const auto report = exchange.trainer(0).Wait(1);
    cluster.Hold(0, 1);
    cluster.Run();
    EXPECT_FALSE(report->ok());
    cluster.node(0).engine->OnPeerDown("n1", "it has restarted", /*ended=*/true);
    cluster.Run();
    ASSERT_TRUE(report->ok()) << report->status();
    if (policy == RecoveryPolicy::kDegrade) {
      EXPECT_EQ((*report)->state, JobState::kDone);
      EXPECT_THAT((*report)->lost_ranks, ElementsAre(Rank(1)));
    } else {
      EXPECT_EQ((*report)->state, JobState::kFailed);
      EXPECT_EQ((*report)->replayable, policy == RecoveryPolicy::kWait);
    }
    EXPECT_EQ((*report)->bytes_sent, 0u);
    // An acknowledgement that was under way comes too late.
    cluster.node(0).engine->OnReadyTaken("n1", cluster.node(1).boot, {(*report)->job});
    EXPECT_EQ((*exchange.trainer(0).Wait(1))->bytes_sent, 0u);
  }
}

TEST_P(EagerTest, AnotherLengthThanTheFlowsSayFailsTheJob) {
  for (const int more : {-1, 1}) {
    SCOPED_TRACE(more);
    Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
    Exchange exchange(&cluster, "g", AllLengths(2, 100));
    cluster.Hold(0, 1);
    exchange.SubmitAll(1);
    for (Ready* ready : Outgoing<Ready>(cluster, 0)) ready->eager.resize(static_cast<size_t>(100 + more));
    cluster.Release(0, 1);
    cluster.Run();
    exchange.ExpectFailed(1, absl::StrCat("READY of n0 for job 1 brings ", 100 + more, " bytes for flows of 100"));
    EXPECT_EQ(exchange.trainer(1).receive->data()[0], 0xee) << "nothing was copied";
  }
}

TEST_P(EagerTest, LengthsThatDifferFailTheJobBeforeAnythingIsCopied) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, "g", AllLengths(2, 100));
  ASSERT_TRUE(exchange.trainer(0).Submit(exchange.For(0, 1)).ok());
  exchange.SetLengths(AllLengths(2, 101), 1);
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  exchange.ExpectFailed(1, "which expects 10");
  for (uint32_t r : {0u, 1u}) EXPECT_EQ(exchange.trainer(r).receive->data()[0], 0xee);
}

TEST_P(EagerTest, APageThatCannotBeTouchedFailsTheJobByName) {
  for (const bool sends : {true, false}) {
    Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
    Exchange exchange(&cluster, "g", AllLengths(4, 100));
    Buffer buffer(4096);
    Trainer& trainer = exchange.trainer(2);
    const auto segment = cluster.AddSegment(0, trainer.session, 9, buffer);
    // Pages past the end of a file, as if the segment's had been cut off.
    const UniqueFd empty(::memfd_create("empty", MFD_CLOEXEC));
    ASSERT_NE(::mmap(segment->base(), 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, empty.get(), 0),
              MAP_FAILED);
    for (uint32_t r = 0; r < 4; ++r) {
      Submission submission = exchange.For(r, 1);
      for (FlowRanges& flow : sends ? submission.sends : submission.receives) {
        // Between ranks of the node nothing is touched there.
        const bool remote = flow.peer.value() % 2 == 1;
        if (r == 2 && remote) flow.ranges = {{SegmentId(9), flow.peer.value() * 100, 100}};
      }
      const absl::Status accepted = exchange.trainer(r).Submit(std::move(submission));
      ASSERT_TRUE(accepted.ok()) << accepted;
    }
    cluster.Run();
    const std::string why = sends ? "job 1: a page of a send range on n0 cannot be read (rank 2)"
                                  : "job 1: a page of a receive range on n0 cannot be written (rank 2)";
    for (uint32_t r = 0; r < 4; ++r) {
      const JobReport report = exchange.Report(r, 1);
      // The sender may have been done before: what the receiver's node makes of the bytes, the receiver says.
      if (!sends && r % 2 == 1 && report.state == JobState::kDone) continue;
      EXPECT_EQ(report.state, JobState::kFailed);
      EXPECT_THAT(std::string(report.status.message()), HasSubstr(why));
    }
    for (size_t n : {0u, 1u}) {
      const GroupView group = cluster.node(n).engine->Snapshot(0).groups.at(0);
      EXPECT_TRUE(group.broken);
      EXPECT_THAT(std::string(group.why.message()), HasSubstr(why));
    }
    cluster.ExpectNothingOpen();
  }
}

TEST_P(EagerTest, ReadyOfAJobThatNeverComesIsHeldUntilItsDeadline) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, "g", AllLengths(2, 100));
  Submission submission = exchange.For(0, 1);
  submission.timeout = absl::Seconds(30);
  ASSERT_TRUE(exchange.trainer(0).Submit(std::move(submission)).ok());
  const auto report = exchange.trainer(0).Wait(1);
  cluster.Run();
  EXPECT_FALSE(report->ok());
  cluster.Advance(absl::Seconds(31));
  cluster.Run();
  ASSERT_TRUE(report->ok()) << report->status();
  EXPECT_EQ((*report)->status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(exchange.trainer(1).receive->data()[0], 0xee);
  cluster.ExpectNothingOpen();
  // The receiver's rank comes late, and is told so.
  ASSERT_TRUE(exchange.trainer(1).Submit(exchange.For(1, 1)).ok());
  cluster.Run();
  EXPECT_EQ((*exchange.trainer(1).Wait(1))->state, JobState::kFailed);
  EXPECT_EQ(exchange.trainer(1).receive->data()[0], 0xee);
}

// No grant is out, so nobody waits for QUIESCED; it is said all the same.
TEST_P(EagerTest, AnAbortedJobEndsAtBothEnds) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, "g", AllLengths(2, 100));
  cluster.Hold(1, 0);
  exchange.SubmitAll(1);
  cluster.Run();
  Trainer& trainer = exchange.trainer(0);
  cluster.node(0).engine->Cancel(trainer.session, {trainer.group->epoch, JobSeq(1)}, Rank(0), [](absl::Status) {});
  EXPECT_EQ((*trainer.Wait(1))->state, JobState::kFailed) << "at once: nothing touches its memory";
  cluster.Run();
  EXPECT_FALSE(Outgoing<Quiesced>(cluster, 1).empty());
  cluster.Release(1, 0);
  cluster.Run();
  exchange.ExpectFailed(1, "was cancelled by rank 0");
  exchange.RunJob(2);
}

TEST_P(EagerTest, AnExplanationSaysSo) {
  Cluster cluster({.remote = GetParam(), .eager_bytes = kEager});
  Exchange exchange(&cluster, "g", {{0, 100}, {kEager + 1, 0}});
  exchange.RunJob(1);
  const auto explanation = cluster.node(0).engine->Explain({"", "", JobSeq(1)});
  ASSERT_TRUE(explanation.ok()) << explanation.status();
  ASSERT_EQ(explanation->exchanges.size(), 1u);
  const JobExplanation::Exchange& told = explanation->exchanges[0];
  EXPECT_TRUE(told.eager_out);
  EXPECT_FALSE(told.eager_in);
  EXPECT_GT(told.times.last_acknowledged, absl::InfinitePast());
  EXPECT_EQ(told.times.planned, absl::InfinitePast());
}

// After how many steps of a job on three nodes the last of them is lost, and what its group does then.
class EagerLossTest : public ::testing::TestWithParam<std::tuple<RecoveryPolicy, int>> {};
INSTANTIATE_TEST_SUITE_P(AfterSteps, EagerLossTest,
                         ::testing::Combine(::testing::Values(RecoveryPolicy::kFail, RecoveryPolicy::kWait,
                                                              RecoveryPolicy::kDegrade),
                                            ::testing::Values(0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 30)));

TEST_P(EagerLossTest, NobodyIsDoneWithBytesThatDidNotArrive) {
  const auto [policy, steps] = GetParam();
  for (const uint64_t seed : Seeds(6)) {
    SCOPED_TRACE(seed);
    Cluster cluster({.remote = seed % 2 == 0, .nodes = 3, .rails = 2, .seed = seed, .eager_bytes = kEager});
    Exchange exchange(
        &cluster, 6, "g",
        {.recovery = {policy, policy == RecoveryPolicy::kWait ? absl::Seconds(60) : absl::ZeroDuration()}});
    exchange.SetLengths(AllLengths(6, 50), seed);
    exchange.SubmitAll(1);
    cluster.RunSteps(steps);
    for (size_t n : {0u, 1u}) {
      cluster.Hold(n, 2);
      cluster.Hold(2, n);
      cluster.node(n).engine->OnPeerDown("n2", "it has restarted", /*ended=*/true);
      cluster.node(2).engine->OnPeerDown(cluster.node(n).name, "a cut cable");
    }
    cluster.Run();
    std::vector<absl::StatusOr<JobReport>> reports;
    for (uint32_t r = 0; r < 6; ++r) reports.push_back(*exchange.trainer(r).Wait(1));
    for (uint32_t r = 0; r < 6; ++r) {
      ASSERT_TRUE(reports[r].ok()) << reports[r].status();
      if (reports[r]->state != JobState::kDone) {
        EXPECT_NE(policy, RecoveryPolicy::kDegrade) << reports[r]->status;
        continue;
      }
      if (policy == RecoveryPolicy::kDegrade && r % 3 != 2) exchange.ExpectBytesBetween({0, 1, 3, 4}, r);
      if (!reports[r]->lost_ranks.empty()) continue;
      // A node that says that all is done: what it sent is where it belongs, unless that end says that it lost it.
      EXPECT_EQ(reports[r]->bytes_sent, reports[r]->bytes_to_send);
      EXPECT_EQ(reports[r]->bytes_received, reports[r]->bytes_to_receive);
      for (uint32_t other = 0; other < 6; ++other) {
        if (other % 3 != r % 3) exchange.ExpectBytesBetween({r}, other);
      }
    }
    cluster.ExpectNothingOpen();
  }
}

}  // namespace
}  // namespace railsd::testing
