#include "agent/jobs/sending.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/agent/rails/sprayer_fixture.h"

namespace railsd::testing {
namespace {

constexpr uint64_t kHalf = 4 * kMiB;

// One exchange over two rails, half on each; the windows hold one chunk of 1 MiB.
class SendingTest : public SprayerTest {
 protected:
  void SetUp() override {
    SetUpRails(2, 1, 1e9, {.chunk_bytes = kMiB, .late_binding = false, .window_bytes = kMiB});
    job_.clock = &now_;
    StreamFlows flows;
    flows.Add(Rank(1), Rank(0), 2 * kHalf);
    sending_.emplace(&context_, &job_, PeerIndex(0));
    sending_->SetStream(std::move(flows), MemoryRanges());
    const PlanRun runs[] = {{0, RailIndex(0), 0, kHalf}, {0, RailIndex(1), kHalf, kHalf}};
    sending_->Start(runs, /*by_flow=*/false);
    sprayer_->Dispatch(now_);
  }
  // Takes the oldest order of the rail, as it ends.
  Sending::Ended End(size_t rail, SendResult result) {
    RailEvent event;
    event.result = result;
    event.cookie = ports_[rail].orders.front().cookie;
    weight_ += ports_[rail].orders.front().weight;
    ports_[rail].orders.pop_front();
    const InFlight done = sprayer_->Finish(event, now_);
    return {done.rail, done.offset_bytes, done.length_bytes, done.weight, done.round};
  }
  // The rail fails under its order.
  void Fail(size_t rail, uint64_t connection) {
    while (!ports_[rail].orders.empty()) sending_->OnLost(End(rail, SendResult::kRailFailed));
    sending_->OnRailDown(RailIndex(static_cast<uint32_t>(rail)), connection);
    sprayer_->Evacuate(rail, PeerIndex(0));
  }
  void CarryAll(size_t rail) {
    for (sprayer_->Dispatch(now_); !ports_[rail].orders.empty(); sprayer_->Dispatch(now_)) {
      sending_->OnAcknowledged(End(rail, SendResult::kAcknowledged));
    }
  }
  absl::Status Answer(Rehomed::State state, uint32_t round = 0) {
    std::vector<Sending::Lost> arrived;
    return sending_->OnAnswer({job_.key, state, round, {}}, &arrived);
  }

  std::optional<Sending> sending_;
  uint32_t weight_ = 0;  // of the fences that were posted
};

TEST_F(SendingTest, IsOverWhenBothRailsHaveFenced) {
  CarryAll(0);
  EXPECT_FALSE(sending_->over());
  CarryAll(1);
  CarryAll(0);
  EXPECT_EQ(weight_, kWholeWeight);
  EXPECT_TRUE(sending_->over());
}

TEST_F(SendingTest, ARailThatFailsAgainBeforeTheAnswerKeepsItsWeightBack) {
  Fail(0, 1);
  std::vector<RailConnection> failed;
  ASSERT_TRUE(sending_->MayAsk());
  sending_->Ask(&failed);
  EXPECT_EQ(failed, (std::vector<RailConnection>{{RailIndex(0), 1}}));
  sending_->OnRailDown(RailIndex(0), 2);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  CarryAll(1);
  EXPECT_LT(weight_, kWholeWeight) << "a chunk of rail 0 has not arrived, and nobody has sent it again";
  EXPECT_FALSE(sending_->over());
  failed.clear();
  ASSERT_TRUE(sending_->MayAsk());
  sending_->Ask(&failed);
  EXPECT_EQ(failed, (std::vector<RailConnection>{{RailIndex(0), 2}}));
  weight_ = 0;
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 2).ok());
  CarryAll(1);
  CarryAll(0);
  CarryAll(1);
  EXPECT_EQ(weight_, kWholeWeight);
  EXPECT_TRUE(sending_->over());
}

// Else the receiver would not end the connection, whose bytes may land yet.
TEST_F(SendingTest, IsNotAskedAboutBeforeTheEndOfTheConnectionIsTold) {
  while (!ports_[0].orders.empty()) sending_->OnLost(End(0, SendResult::kRailFailed));
  EXPECT_TRUE(sending_->InDoubt());
  EXPECT_FALSE(sending_->MayAsk());
  sending_->OnRailDown(RailIndex(0), 1);
  EXPECT_TRUE(sending_->MayAsk());
}

// A rail whose only orders were not sent owes nothing, but for as long as it is in doubt.
TEST_F(SendingTest, ARailInDoubtStaysAmongThoseThatFence) {
  sending_->OnRailDown(RailIndex(0), 1);  // before its order comes back
  sending_->OnNotSent(End(0, SendResult::kNotSent), /*again=*/true);
  sprayer_->Evacuate(0, PeerIndex(0));
  CarryAll(1);
  EXPECT_LT(weight_, kWholeWeight);
  EXPECT_FALSE(sending_->over());
  EXPECT_TRUE(sending_->MayAsk());
}

// The receiver has room for one fence of an exchange and rail.
TEST_F(SendingTest, OneFenceOfARailIsUnderWayAtATime) {
  CarryAll(0);
  for (; sending_->unposted_bytes() > 0; sprayer_->Dispatch(now_)) {
    sending_->OnAcknowledged(End(1, SendResult::kAcknowledged));
  }
  sprayer_->Dispatch(now_);
  ASSERT_EQ(ports_[0].orders.size(), 1u) << "the fence of round 0";
  Fail(1, 1);
  std::vector<RailConnection> failed;
  ASSERT_TRUE(sending_->MayAsk());
  sending_->Ask(&failed);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  sprayer_->Dispatch(now_);
  sprayer_->Dispatch(now_);
  ASSERT_EQ(ports_[0].orders.size(), 2u);
  EXPECT_EQ(ports_[0].orders[1].length_bytes, kMiB);
  EXPECT_EQ(ports_[0].orders[1].weight, 0);
  sending_->OnAcknowledged(End(0, SendResult::kAcknowledged));
  sprayer_->Dispatch(now_);
  ASSERT_EQ(ports_[0].orders.size(), 2u);
  EXPECT_EQ(ports_[0].orders[1].weight, kWholeWeight);
  EXPECT_EQ(ports_[0].orders[1].round, 1u);
  CarryAll(0);
  EXPECT_TRUE(sending_->over());
}

TEST_F(SendingTest, CompleteIsALieWhileBytesAreUnposted) {
  Fail(0, 1);
  std::vector<RailConnection> failed;
  sending_->Ask(&failed);
  EXPECT_EQ(Answer(Rehomed::State::kComplete).code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace railsd::testing
