// A receiver over framed rails that takes nothing of what it has asked for. Its senders give it up in time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/job/cluster.h"

namespace railsd::testing {
namespace {

class HostileReceiverTest : public ::testing::Test {
 protected:
  HostileReceiverTest() {
    exchange_.JoinAll();
    others_.JoinAll();
  }
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
      int steps = 0;
      cluster_.Run([&] { return ++steps > 200; });
      cluster_.Advance(absl::Milliseconds(100));
    }
    cluster_.Run();
  }

  Cluster cluster_{{.nodes = 3, .rails = 2}};
  Exchange exchange_{&cluster_, 3, "g"}, others_{&cluster_, 3, "others"};
};

// Its own rails refuse what comes from n1 for the zone of n0, and end the connection.
TEST_F(HostileReceiverTest, AReadyThatNamesTheZoneOfAnotherFailsItsJobInTime) {
  SubmitAndHoldReadys(1);
  ASSERT_NE(ReadyTo("n0"), nullptr);
  ASSERT_NE(ReadyTo("n1"), nullptr);
  ReadyTo("n1")->slot = ReadyTo("n0")->slot;
  ReadyTo("n1")->generation = ReadyTo("n0")->generation;
  Release();
  for (auto& rail : cluster_.node(0).rails) rail->frozen = true;  // so that the zone stays open
  Pass(absl::Seconds(30));
  for (auto& rail : cluster_.node(0).rails) rail->frozen = false;
  cluster_.Run();
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const auto report = exchange_.trainer(rank).Wait(1);
    cluster_.Run();
    ASSERT_TRUE(report->ok()) << report->status();
    EXPECT_EQ((*report)->state, JobState::kFailed);
    EXPECT_EQ((*report)->status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string((*report)->status.message()),
                ::testing::ContainsRegex("node n2 has taken nothing of job 1 for .*: the rails of n1 gave chunks"));
  }
  others_.SetLengths(AllLengths(3, 50'000), 2);
  others_.SubmitAll(1);
  Pass(absl::Seconds(1));
  others_.ExpectDone(1);
  others_.ExpectBytes();
  cluster_.ExpectNothingOpen();
}

}  // namespace
}  // namespace railsd::testing
