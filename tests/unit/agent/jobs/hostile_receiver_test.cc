// Receivers that lie in their grants, or take nothing of what they have asked for. Their senders give them up in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class HostileReceiverTest : public ::testing::Test {
 protected:
  // n2's READYs for the senders n0 and n1, which wait to leave.
  void SubmitAndHoldReadys(uint64_t seq) {
    exchange_.SetLengths(AllLengths(3, 50'000), seq);
    cluster_.Hold(2, 0);
    cluster_.Hold(2, 1);
    exchange_.SubmitAll(seq);
    cluster_.Run();
  }
  Ready* ReadyTo(const std::string& node) {
    for (auto& [to, message] : cluster_.node(2).outbox) {
      if (auto* ready = std::get_if<Ready>(&message); ready != nullptr && to == node) return ready;
    }
    return nullptr;
  }
  void Release() {
    cluster_.Release(2, 0);
    cluster_.Release(2, 1);
  }
  // Lets the time pass; what goes on for ever does so within each step.
  void Pass(absl::Duration duration) {
    for (absl::Duration passed; passed < duration; passed += absl::Milliseconds(100)) {
      cluster_.RunSteps(200);
      cluster_.Advance(absl::Milliseconds(100));
    }
    cluster_.Run();
  }

  Cluster cluster_{{.nodes = 3, .rails = 2}};
  Exchange exchange_{&cluster_, 3, "g"}, others_{&cluster_, 3, "others"};
};

// No job begins for it, and n1 hears nothing of it.
TEST_F(HostileReceiverTest, AReadyOfAJobTooFarAheadIsAnsweredToItsSenderAlone) {
  Engine& engine = *cluster_.node(0).engine;
  const JobKey key{exchange_.trainer(0).group->epoch, JobSeq(4000)};
  Ready ready;
  ready.job = key;
  for (int i = 0; i < 3; ++i) engine.OnPeerMessage("n2", cluster_.node(2).boot, ready);
  EXPECT_TRUE(engine.Snapshot(0).active_jobs.empty());
  EXPECT_EQ(cluster_.node(0).refused->Read(Limit::kJobsPerGroup), 3u);
  EXPECT_EQ(Outgoing<Quiesced>(cluster_, 0).size(), 3u);
  ASSERT_EQ(Outgoing<Abort>(cluster_, 0).size(), 3u);
  EXPECT_EQ(Outgoing<Abort>(cluster_, 0)[0]->reason, "limits.max_jobs_per_group: n2 submits job 4000, n0 is at 0");
  for (const auto& [to, message] : cluster_.node(0).outbox) EXPECT_EQ(to, "n2");
}

// Its own rails refuse what comes from n1 for the zone of n0, and end the connection.
TEST_F(HostileReceiverTest, AReadyThatNamesTheZoneOfAnotherFailsItsJobInTime) {
  SubmitAndHoldReadys(1);
  ASSERT_NE(ReadyTo("n0"), nullptr);
  ASSERT_NE(ReadyTo("n1"), nullptr);
  ASSERT_TRUE(ReadyTo("n0")->grant.has_value() && ReadyTo("n1")->grant.has_value());
  ReadyTo("n1")->grant->zone = ReadyTo("n0")->grant->zone;
  Release();
  for (auto& rail : cluster_.node(0).rails) rail->frozen = true;  // so that the zone stays open
  Pass(absl::Seconds(30));
  for (auto& rail : cluster_.node(0).rails) rail->frozen = false;
  cluster_.Run();
  exchange_.ExpectFailed(
      1, absl::StatusCode::kUnavailable,
      ::testing::ContainsRegex("node n2 has accepted no byte of job 1 for .*: the rails of n1 failed under it"));
  others_.SetLengths(AllLengths(3, 50'000), 2);
  others_.SubmitAll(1);
  Pass(absl::Seconds(1));
  others_.ExpectDone(1);
  others_.ExpectBytes();
  cluster_.ExpectNothingOpen();
}

struct Lie {
  std::string name;
  std::function<void(Grant*)> tell;
  std::string text;
  bool remote = true;
};
void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

class LyingGrantTest : public ::testing::TestWithParam<Lie> {};

// From ranks 0 and 2 on n0 to ranks 1 and 3 on n1, which receive 3000 bytes each in one range.
TEST_P(LyingGrantTest, FailsTheJobAndNamesTheNode) {
  for (const bool late : {false, true}) {
    SCOPED_TRACE(late ? "late" : "with READY");
    Cluster cluster({.remote = GetParam().remote, .nodes = 2, .rails = 2, .zone_room = late ? 1u : 1024u});
    Exchange exchange(&cluster, "g", {{0, 1000, 0, 0}, {0, 0, 0, 0}, {0, 2000, 0, 3000}, {0, 0, 0, 0}});
    cluster.Hold(1, 0);
    for (uint32_t r : {1u, 3u, 0u, 2u}) {
      ASSERT_TRUE(exchange.trainer(r).Submit(exchange.For(r, 1)).ok());
      if (r == 3) cluster.Run();  // n1 does not know yet that n0 has submitted
    }
    cluster.Run();
    ASSERT_EQ(Outgoing<Ready>(cluster, 1).size(), 1u);
    Grant* grant = nullptr;
    if (std::optional<Grant>& rides = Outgoing<Ready>(cluster, 1)[0]->grant; rides.has_value()) grant = &*rides;
    if (late && GetParam().remote) {
      ASSERT_EQ(grant, nullptr);
      ASSERT_EQ(Outgoing<LateGrant>(cluster, 1).size(), 1u);
      grant = &Outgoing<LateGrant>(cluster, 1)[0]->grant;
    }
    ASSERT_NE(grant, nullptr);
    ASSERT_EQ(grant->ranges.size(), GetParam().remote ? 2u : 0u);
    GetParam().tell(grant);
    cluster.Release(1, 0);
    cluster.Run();
    exchange.ExpectFailed(1, absl::StatusCode::kInternal,
                          AllOf(HasSubstr("grant of n1 for job 1 of n0"), HasSubstr(GetParam().text)));
    cluster.ExpectNothingOpen();
  }
}

const char* const kNotCovered = "its ranges do not cover the 6000 bytes exactly";

INSTANTIATE_TEST_SUITE_P(
    Lies, LyingGrantTest,
    ::testing::Values(Lie{"NoRanges",
                          [](Grant* g) {
                            g->ranges.clear();
                            g->keys.clear();
                          },
                          "rails over RDMA verbs need such rails at both ends"},
                      Lie{"RangesForTcp",
                          [](Grant* g) {
                            g->ranges.push_back({4096, 6000});
                          },
                          "rails over TCP need such rails at both ends", false},
                      Lie{"KeyMissing", [](Grant* g) { g->keys[1].keys.pop_back(); }, "1 keys of rail 1 for 2 ranges"},
                      Lie{"KeysMissing", [](Grant* g) { g->keys[0].keys.clear(); }, "0 keys of rail 0 for 2 ranges"},
                      Lie{"KeyTooMany", [](Grant* g) { g->keys[0].keys.push_back(1); },
                          "3 keys of rail 0 for 2 ranges"},
                      Lie{"RangeMissing",
                          [](Grant* g) {
                            g->ranges.pop_back();
                            for (RailKeys& rail : g->keys) rail.keys.pop_back();
                          },
                          kNotCovered},
                      Lie{"RangeTooLong", [](Grant* g) { ++g->ranges[1].length_bytes; }, kNotCovered},
                      Lie{"RangeEndless", [](Grant* g) { g->ranges[0].length_bytes = ~uint64_t{0}; }, kNotCovered},
                      Lie{"RangesThatWrapAround",
                          [](Grant* g) {
                            g->ranges[0].length_bytes = ~uint64_t{0};
                            g->ranges[1].length_bytes = 6001;
                          },
                          kNotCovered},
                      Lie{"RangeTooShort", [](Grant* g) { --g->ranges[0].length_bytes; }, kNotCovered},
                      Lie{"RangeEmpty",
                          [](Grant* g) {
                            g->ranges[0] = {4096, 0};
                          },
                          kNotCovered},
                      Lie{"RangeTooMany",
                          [](Grant* g) {
                            g->ranges.push_back({4096, 1});
                            for (RailKeys& rail : g->keys) rail.keys.push_back(7);
                          },
                          kNotCovered}),
    [](const auto& info) { return info.param.name; });

class HostileGrantTest : public ::testing::Test {
 protected:
  // Rank 0 on n0 sends to rank 1 on n1, whose READY waits to leave.
  void SubmitAndHoldReady() {
    cluster_.Hold(1, 0);
    exchange_.SubmitAll(1);
    cluster_.Run();
    ASSERT_EQ(Outgoing<Ready>(cluster_, 1).size(), 1u);
    ready_ = Outgoing<Ready>(cluster_, 1)[0];
    ASSERT_TRUE(ready_->grant.has_value());
    ASSERT_EQ(ready_->grant->keys.size(), 2u);
  }
  void GoOn() {
    cluster_.Release(1, 0);
    cluster_.Run();
  }
  JobKey job() { return {exchange_.trainer(0).group->epoch, JobSeq(1)}; }
  uint64_t Ignored(size_t n) { return cluster_.node(n).engine->Snapshot(0).counters.control_messages_ignored; }
  uint64_t Rehomed() { return cluster_.node(0).engine->Snapshot(0).counters.rehomed_exchanges; }

  Cluster cluster_{{.remote = true, .nodes = 2, .rails = 2, .plan = {.chunk_bytes = 16 << 10}}};
  Exchange exchange_{&cluster_, "g", {{0, 100'000}, {0, 0}}};
  Ready* ready_ = nullptr;
};

TEST_F(HostileGrantTest, KeysOfRailsThatAreNotHereAreIgnored) {
  SubmitAndHoldReady();
  for (uint32_t rail : {2u, 64u, 4'000'000'000u}) ready_->grant->keys.push_back({{RailIndex(rail), 1}, {}});
  GoOn();
  exchange_.ExpectDone(1);
  exchange_.ExpectBytes();
}

TEST_F(HostileGrantTest, ARailWhoseKeysAreOfAnotherConnectionIsNotUsed) {
  SubmitAndHoldReady();
  ready_->grant->keys[0].rail.connection += 1000;
  GoOn();
  exchange_.ExpectDone(1);
  exchange_.ExpectBytes();
  EXPECT_EQ((*exchange_.trainer(0).Wait(1))->rail_tx_bytes, (BytesByRail{0, 100'000}));
}

// It is asked for keys again and again, and says each time that it has given them.
TEST_F(HostileGrantTest, AGrantWithoutAnyKeyEndsTheJob) {
  SubmitAndHoldReady();
  ready_->grant->keys.clear();
  GoOn();
  EXPECT_EQ(Rehomed(), 1u) << "questions for keys must not use up the rounds at once";
  for (uint64_t asked = 1; asked < 16; ++asked) {
    EXPECT_EQ(Rehomed(), std::min<uint64_t>(asked, 15));
    cluster_.Advance(absl::Milliseconds(50));
    cluster_.Run();
  }
  exchange_.ExpectFailed(1, "more than 15 times");
}

TEST_F(HostileGrantTest, ASecondGrantFailsTheJob) {
  SubmitAndHoldReady();
  const LateGrant second{job(), *ready_->grant};
  for (auto& rail : cluster_.node(0).rails) rail->frozen = true;
  GoOn();
  cluster_.node(0).engine->OnPeerMessage("n1", BootId(1001), second);
  for (auto& rail : cluster_.node(0).rails) rail->frozen = false;
  cluster_.Run();
  exchange_.ExpectFailed(1, "a second grant");
}

TEST_F(HostileGrantTest, AGrantForNoBytesFailsTheJob) {
  exchange_.SetLengths({{0, 100'000}, {0, 0}}, 1);
  cluster_.Hold(0, 1);
  exchange_.SubmitAll(1);
  cluster_.Run();
  ASSERT_EQ(Outgoing<Ready>(cluster_, 0).size(), 1u);
  ASSERT_FALSE(Outgoing<Ready>(cluster_, 0)[0]->grant.has_value());
  Outgoing<Ready>(cluster_, 0)[0]->grant = Grant{{1, 1}, {}, {}};
  cluster_.Release(0, 1);
  cluster_.Run();
  exchange_.ExpectFailed(1, absl::StatusCode::kInternal, HasSubstr("grant of n0 for job 1 of n1: a grant for no bytes"),
                         {1});  // n0 was done before
  cluster_.ExpectNothingOpen();
}

TEST_F(HostileGrantTest, LateGrantsOfJobsThatWaitForNoneAreIgnored) {
  const uint64_t ignored = Ignored(0);
  for (const JobKey& key : {JobKey{job().epoch, JobSeq(1)}, JobKey{job().epoch, JobSeq(99)}, JobKey{{}, JobSeq(1)}}) {
    cluster_.node(0).engine->OnPeerMessage("n1", BootId(1001), LateGrant{key, {{1, 1}, {{4096, 1}}, {}}});
  }
  EXPECT_EQ(Ignored(0), ignored + 3);
  // Nor does it come before READY.
  SubmitAndHoldReady();
  cluster_.node(0).engine->OnPeerMessage("n1", BootId(1001), LateGrant{job(), *ready_->grant});
  EXPECT_EQ(Ignored(0), ignored + 4);
  GoOn();
  exchange_.ExpectDone(1);
  exchange_.ExpectBytes();
}

}  // namespace
}  // namespace railsd::testing
