#include "agent/rails/sprayer.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

#include "tests/unit/agent/rails/sprayer_fixture.h"

namespace railsd::testing {
namespace {

TEST_F(SprayerTest, WindowBoundsWhatIsPostedPerDestination) {
  SetUpRails(1, 2, 1e9, {.chunk_bytes = kMiB, .window_bytes = 2 * kMiB});
  Queue(0, 0, 64 * kMiB);
  Queue(0, 1, 64 * kMiB);
  sprayer_->Dispatch(absl::UnixEpoch());
  EXPECT_EQ(PostedTo(0, 0), 2 * kMiB);
  EXPECT_EQ(PostedTo(0, 1), 2 * kMiB) << "a stalled destination does not hold the other's share";
  Acknowledge(0);
  sprayer_->Dispatch(absl::UnixEpoch());
  EXPECT_EQ(PostedTo(0, 0) + PostedTo(0, 1), 4 * kMiB);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), 4 * kMiB);
  EXPECT_EQ(sprayer_->queued_bytes(0), 128 * kMiB - 5 * kMiB);
}

TEST_F(SprayerTest, StartsWithTheNextNodeAndTakesTurns) {
  SetUpRails(1, 3, 1e9, {.chunk_bytes = kMiB, .window_bytes = 2 * kMiB});  // this node is n1; peers n0, n2, n3
  for (uint32_t p : {0u, 1u, 2u}) Queue(0, p, 4 * kMiB);
  sprayer_->Dispatch(absl::UnixEpoch());
  std::vector<uint32_t> order;
  for (const SendOrder& o : ports_[0].orders) order.push_back(o.stream->peer.value());
  EXPECT_EQ(order, (std::vector<uint32_t>{1, 2, 0, 1, 2, 0}));
}

TEST_F(SprayerTest, EveryByteIsPostedOnceInChunksOfBoundedSize) {
  SetUpRails(2, 2, 20e6);  // slow: pieces of about 4 ms
  Queue(0, 0, 1'000'003);
  Queue(1, 0, 999'999, 1'000'003);
  Queue(1, 1, 17);
  std::map<const SendStream*, std::set<uint64_t>> seen;
  uint64_t total = 0;
  for (int round = 0; round < 1000; ++round) {
    sprayer_->Dispatch(absl::UnixEpoch());
    for (size_t r = 0; r < 2; ++r) {
      while (!ports_[r].orders.empty()) {
        const SendOrder& order = ports_[r].orders.front();
        EXPECT_LE(order.length_bytes, 80'000u);
        EXPECT_TRUE(seen[order.stream].insert(order.offset_bytes).second);
        total += order.length_bytes;
        Acknowledge(r);
      }
    }
  }
  EXPECT_EQ(total, 2'000'019u);
  EXPECT_EQ(job_.outstanding_orders, 0u);
}

TEST_F(SprayerTest, IdleRailTakesWorkFromOneThatLags) {
  SetUpRails(2, 1, 1e8, {.chunk_bytes = kMiB, .window_bytes = kMiB});  // pieces of 4 ms, 400 kB
  Queue(0, 0, 16 * kMiB);
  for (int round = 0; round < 100; ++round) {
    sprayer_->Dispatch(absl::UnixEpoch());
    // Rail 0 never acknowledges; rail 1 does at once.
    while (!ports_[1].orders.empty()) Acknowledge(1);
  }
  EXPECT_GT(sprayer_->stolen_chunks(), 8u);
  EXPECT_LE(sprayer_->queued_bytes(0), 1'300'000u) << "but what the lagging rail would soon do itself stays";
}

TEST_F(SprayerTest, EverythingLeavesARailThatCannotSend) {
  SetUpRails(2, 1, 1e9, {.chunk_bytes = kMiB, .window_bytes = kMiB});
  Queue(0, 0, 2 * kMiB);
  table_->Get(PeerIndex(0)).rails[0].connected = false;
  for (int round = 0; round < 10; ++round) {
    sprayer_->Dispatch(absl::UnixEpoch());
    while (!ports_[1].orders.empty()) Acknowledge(1);
  }
  EXPECT_TRUE(ports_[0].orders.empty());
  EXPECT_EQ(sprayer_->queued_bytes(0) + sprayer_->queued_bytes(1), 0u);
}

TEST_F(SprayerTest, RailsThatCannotSendTheirOwnSendEachOthers) {
  SetUpRails(2, 2, 1e9, {.chunk_bytes = kMiB, .window_bytes = kMiB});
  Queue(0, 0, kMiB);
  Queue(1, 1, kMiB);
  table_->Get(PeerIndex(0)).rails[0].connected = false;
  table_->Get(PeerIndex(1)).rails[1].connected = false;
  for (int round = 0; round < 10; ++round) sprayer_->Dispatch(absl::UnixEpoch());
  EXPECT_EQ(PostedTo(1, 0), kMiB);
  EXPECT_EQ(PostedTo(0, 1), kMiB);
}

TEST_F(SprayerTest, EvenRailsKeepTheirPlan) {
  SetUpRails(4, 3, 25e6);
  for (uint32_t r = 0; r < 4; ++r) {
    for (uint32_t p : {0u, 1u, 2u}) Queue(r, p, 1'400'000);
  }
  for (int round = 0; round < 1000; ++round) {
    sprayer_->Dispatch(absl::UnixEpoch());
    for (size_t r = 0; r < 4; ++r) {
      if (!ports_[r].orders.empty()) Acknowledge(r);
    }
  }
  EXPECT_EQ(sprayer_->stolen_chunks(), 0u);
}

TEST_F(SprayerTest, PlansCountOnWhatASlowRailDelivers) {
  SetUpRails(2, 1, 25e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "nothing is known";
  Carry(0, 12.5e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "perhaps it is not the rail: no other has been seen";
  Carry(1, 24e6);
  for (int i = 0; i < 2; ++i) Carry(0, 12.5e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "twice may be chance";
  Carry(0, 12.5e6);
  EXPECT_NEAR(sprayer_->PlanSpeed(0, now_), 13e6, 0.5e6);
  EXPECT_EQ(sprayer_->PlanSpeed(1, now_), 25e6);
  for (int i = 0; i < 8; ++i) Carry(0, 24e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "it has become fast again";
  for (int i = 0; i < 20; ++i) Carry(0, 1e6);
  EXPECT_NEAR(sprayer_->PlanSpeed(0, now_), 2.6e6, 0.2e6) << "enough to see when that changes";
  now_ += absl::Minutes(1);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "that is long ago";
}

TEST_F(SprayerTest, PlansStayEvenWhereRailsAreNotTheLimit) {
  SetUpRails(2, 1, 25e6);
  Carry(1, 10e6);
  for (int i = 0; i < 8; ++i) Carry(0, 5e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "the best one is far from its speed, too";
  SetUpRails(2, 1, 25e6);
  Carry(1, 25e6);
  for (int i = 0; i < 8; ++i) Carry(0, 21e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "not clearly slower";
  for (int i = 0; i < 8; ++i) Carry(0, i % 3 == 2 ? 25e6 : 12.5e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "noise";
  SetUpRails(2, 1, 25e6);
  Carry(1, 500e6);
  for (int i = 0; i < 8; ++i) Carry(0, 50e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "both are as fast as they say";
  SetUpRails(2, 1, 25e6);
  Carry(1, 25e6);
  for (int i = 0; i < 8; ++i) Carry(0, 1e6, SendResult::kRailFailed);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "a failure says nothing of the rate";
  SetUpRails(2, 1, 25e6, {.late_binding = false});
  Carry(1, 25e6);
  for (int i = 0; i < 8; ++i) Carry(0, 12.5e6);
  EXPECT_EQ(sprayer_->PlanSpeed(0, now_), 25e6) << "as configured, when nothing may move";
}

TEST_F(SprayerTest, DropForgetsOneJobOnly) {
  SetUpRails(1, 1, 1e9, {.chunk_bytes = kMiB, .window_bytes = kMiB});
  NodeJob other;
  other.tenant = job_.tenant;
  Queue(0, 0, 4 * kMiB);
  Queue(0, 0, 4 * kMiB, 0, &other);
  Queue(0, 0, 4 * kMiB);
  sprayer_->Drop(&job_);
  EXPECT_EQ(sprayer_->queued_bytes(0), 4 * kMiB);
  sprayer_->Dispatch(absl::UnixEpoch());
  EXPECT_EQ(other.outstanding_orders, 1u);
}

TEST_F(SprayerTest, RefusedPostsAreTriedAgain) {
  SetUpRails(1, 1, 1e9);
  Queue(0, 0, kMiB);
  ports_[0].refuse = true;
  EXPECT_FALSE(sprayer_->Dispatch(absl::UnixEpoch()));
  EXPECT_EQ(sprayer_->in_flight_bytes(0), 0u);
  ports_[0].refuse = false;
  EXPECT_TRUE(sprayer_->Dispatch(absl::UnixEpoch()));
  EXPECT_EQ(PostedTo(0, 0), kMiB);
}

}  // namespace
}  // namespace railsd::testing
