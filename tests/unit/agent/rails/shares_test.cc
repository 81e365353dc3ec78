// Shares of rails between tenants.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/unit/agent/rails/sprayer_fixture.h"

namespace railsd::testing {
namespace {

class SharesTest : public SprayerTest {
 protected:
  void SetUp() override {
    // Rails of 25 MB/s: pieces of 100 kB, windows of 300 kB; pieces of 25 kB, windows of 50 kB for who yields.
    tenants_.Retune({{"three", {}, {.weight = 3}}, {"urgent", {}, {.priority = 1}}});
    for (NodeJob* job : {&one_, &three_, &urgent_}) job->tenant = &tenants_.Of(NameOf(job));
  }
  const char* NameOf(const NodeJob* job) const { return job == &three_ ? "three" : job == &urgent_ ? "urgent" : "one"; }

  const NodeJob* JobOf(const SendOrder& order) const {
    const auto found = jobs_.find(order.stream);
    return found == jobs_.end() ? nullptr : found->second;
  }
  void QueueOf(NodeJob* job, uint32_t peer, uint64_t bytes) {
    Queue(0, peer, bytes, 0, job);
    jobs_[&sendings_.back().stream()] = job;
  }
  // The rail carries so much, in the order in which it was posted; returns what of it was each job's.
  std::map<const NodeJob*, uint64_t> CarryBytes(uint64_t bytes) {
    std::map<const NodeJob*, uint64_t> carried;
    for (uint64_t sum = 0; sum < bytes;) {
      sprayer_->Dispatch(now_);
      if (ports_[0].orders.empty()) break;
      const SendOrder& order = ports_[0].orders.front();
      sum += order.length_bytes;
      carried[JobOf(order)] += order.length_bytes;
      most_in_flight_bytes_ = std::max(most_in_flight_bytes_, sprayer_->in_flight_bytes(0));
      now_ += absl::Seconds(static_cast<double>(order.length_bytes) / 25e6);
      Acknowledge(0);
    }
    return carried;
  }

  NodeJob one_, three_, urgent_;
  std::map<const SendStream*, const NodeJob*> jobs_;
  uint64_t most_in_flight_bytes_ = 0;
};

constexpr uint64_t kPiece = 100'000, kWindow = 300'000;

TEST_F(SharesTest, ByWeightToTheSamePeers) {
  SetUpRails(1, 3, 25e6);
  for (uint32_t peer : {0u, 1u, 2u}) {
    QueueOf(&one_, peer, 40 * kMiB);
    QueueOf(&three_, peer, 40 * kMiB);
  }
  auto carried = CarryBytes(400 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[&three_]), 300 * kPiece, 2 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[&one_]), 100 * kPiece, 2 * kPiece);
  EXPECT_LE(most_in_flight_bytes_, kWindow + kPiece) << "one window for all destinations";
}

TEST_F(SharesTest, ByWeightToDifferentPeers) {
  SetUpRails(1, 4, 25e6);
  QueueOf(&three_, 0, 200 * kMiB);
  for (uint32_t peer : {1u, 2u, 3u}) QueueOf(&one_, peer, 40 * kMiB);
  auto carried = CarryBytes(400 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[&three_]), 300 * kPiece, 2 * kPiece) << "not by the number of destinations";
}

TEST_F(SharesTest, WhatIsNotUsedIsLentAndNotPaidBack) {
  SetUpRails(1, 2, 25e6);
  QueueOf(&one_, 0, 400 * kMiB);
  auto alone = CarryBytes(400 * kPiece);
  EXPECT_GE(alone[&one_], 400 * kPiece);
  QueueOf(&three_, 1, 100 * kPiece);
  auto both = CarryBytes(100 * kPiece);
  EXPECT_NEAR(static_cast<double>(both[&three_]), 75 * kPiece, 5 * kPiece)
      << "no more than its share for having waited";
  both = CarryBytes(200 * kPiece);
  EXPECT_NEAR(static_cast<double>(both[&three_]), 25 * kPiece, 5 * kPiece) << "all that it had";
  EXPECT_NEAR(static_cast<double>(both[&one_]), 175 * kPiece, 5 * kPiece) << "the rest";
}

TEST_F(SharesTest, ATenantAloneHasAWindowForEachDestination) {
  SetUpRails(1, 3, 25e6);
  for (uint32_t peer : {0u, 1u, 2u}) QueueOf(&one_, peer, 40 * kMiB);
  sprayer_->Dispatch(now_);
  EXPECT_GE(sprayer_->in_flight_bytes(0), 3 * kWindow);
}

TEST_F(SharesTest, AHigherPriorityGoesFirst) {
  SetUpRails(1, 2, 25e6);
  ASSERT_TRUE(urgent_.tenant->TakeSession().ok());
  QueueOf(&three_, 0, 100 * kPiece);
  CarryBytes(10 * kPiece);
  EXPECT_LE(sprayer_->in_flight_bytes(0), kWindow / 6 + kPiece / 4) << "little is before an urgent chunk";
  const uint64_t before = sprayer_->in_flight_bytes(0);
  QueueOf(&urgent_, 1, 10 * kPiece);
  auto carried = CarryBytes(before + 10 * kPiece);
  EXPECT_EQ(carried[&urgent_], 10 * kPiece);
  EXPECT_EQ(CarryBytes(kPiece)[&urgent_], 0u);
}

TEST_F(SharesTest, WhatAHigherPriorityHasTakenCountsAgainstNobodyElse) {
  SetUpRails(1, 3, 25e6);
  ASSERT_TRUE(urgent_.tenant->TakeSession().ok());
  QueueOf(&one_, 0, 400 * kPiece);
  QueueOf(&urgent_, 1, 200 * kPiece);
  EXPECT_GE(CarryBytes(150 * kPiece)[&urgent_], 140 * kPiece);
  QueueOf(&three_, 2, 300 * kPiece);
  CarryBytes(60 * kPiece);  // the rest of what is urgent
  auto carried = CarryBytes(200 * kPiece);
  EXPECT_EQ(carried[&urgent_], 0u);
  EXPECT_NEAR(static_cast<double>(carried[&three_]), 150 * kPiece, 3 * kPiece);
}

TEST_F(SharesTest, ASharesChangeTakesEffectAtOnce) {
  SetUpRails(1, 2, 25e6);
  QueueOf(&one_, 0, 900 * kPiece);
  QueueOf(&three_, 1, 900 * kPiece);
  CarryBytes(400 * kPiece);
  tenants_.Retune({{"one", {}, {.weight = 9}}});
  auto carried = CarryBytes(200 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[&one_]), 150 * kPiece, 5 * kPiece);
}

TEST_F(SharesTest, WhoYieldsTakesWholeWindowsWhenNobodyUrgentIsThere) {
  SetUpRails(1, 1, 25e6);
  QueueOf(&three_, 0, 100 * kPiece);
  sprayer_->Dispatch(now_);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), kWindow);
  while (!ports_[0].orders.empty()) Acknowledge(0);
  ASSERT_TRUE(urgent_.tenant->TakeSession().ok());
  sprayer_->Dispatch(now_);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), kWindow / 6);
  urgent_.tenant->ReturnSession();
  sprayer_->Dispatch(now_);
  EXPECT_GE(sprayer_->in_flight_bytes(0), kWindow);
}

// A job of a higher priority has begun and its chunks are not here yet: what is posted ends, and nothing more of the
// others comes before them, for a moment.
TEST_F(SharesTest, WhoYieldsPausesForChunksThatAreAboutToCome) {
  SetUpRails(1, 2, 25e6);
  ASSERT_TRUE(urgent_.tenant->TakeSession().ok());
  QueueOf(&three_, 0, 100 * kPiece);
  CarryBytes(10 * kPiece);
  const absl::Duration drain = absl::Seconds(static_cast<double>(kWindow / 6) / 25e6);
  sprayer_->Expect(*urgent_.tenant, now_);
  while (!ports_[0].orders.empty()) {
    Acknowledge(0);
    sprayer_->Dispatch(now_);
  }
  EXPECT_EQ(sprayer_->in_flight_bytes(0), 0u);
  EXPECT_EQ(sprayer_->NextDeadline(), now_ + 2 * drain);
  QueueOf(&urgent_, 1, kPiece);
  sprayer_->Dispatch(now_);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), kPiece) << "the rail was free for it";
  Acknowledge(0);
  sprayer_->Dispatch(now_);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), 0u);
  now_ += 2 * drain;
  sprayer_->Dispatch(now_);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), kWindow / 6) << "not for long";
}

TEST_F(SharesTest, AnExpectedPriorityIsNotForgottenForALowerOne) {
  SetUpRails(1, 2, 25e6);
  tenants_.Retune({{"one", {}, {.priority = 2}}, {"three", {}, {.priority = 1}}, {"urgent", {}, {.priority = 5}}});
  ASSERT_TRUE(urgent_.tenant->TakeSession().ok());
  QueueOf(&three_, 0, 100 * kPiece);
  sprayer_->Expect(*urgent_.tenant, now_);
  sprayer_->Expect(*three_.tenant, now_);
  sprayer_->Dispatch(now_);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), 0u);
  now_ += sprayer_->NextDeadline() - now_;
  sprayer_->Dispatch(now_);
  EXPECT_GT(sprayer_->in_flight_bytes(0), 0u);
}

TEST_F(SharesTest, NobodyPausesForHisEquals) {
  SetUpRails(1, 2, 25e6);
  QueueOf(&three_, 0, 100 * kPiece);
  sprayer_->Expect(*one_.tenant, now_);
  sprayer_->Dispatch(now_);
  EXPECT_EQ(sprayer_->in_flight_bytes(0), kWindow);
}

TEST_F(SharesTest, APeerThatSaysNothingDoesNotHoldTheOthersShare) {
  SetUpRails(1, 2, 25e6);
  QueueOf(&one_, 0, 100 * kPiece);
  QueueOf(&three_, 1, 100 * kPiece);
  sprayer_->Dispatch(now_);
  // Peer 0 never answers.
  const auto acknowledge_peer_1 = [&] {
    for (auto it = ports_[0].orders.begin(); it != ports_[0].orders.end(); ++it) {
      if (it->stream->peer.value() != 1) continue;
      std::rotate(ports_[0].orders.begin(), it, it + 1);
      Acknowledge(0);
      return true;
    }
    return false;
  };
  uint64_t pieces = 0;
  for (; pieces < 100; ++pieces) {
    if (!acknowledge_peer_1()) {
      EXPECT_GT(sprayer_->NextDeadline(), now_);
      ASSERT_LT(sprayer_->NextDeadline(), absl::InfiniteFuture());
      now_ = sprayer_->NextDeadline();
      sprayer_->Dispatch(now_);
      ASSERT_TRUE(acknowledge_peer_1()) << "after piece " << pieces;
    }
    now_ += absl::Milliseconds(4);
    sprayer_->Dispatch(now_);
  }
  EXPECT_EQ(PostedTo(0, 0), kWindow);
}

TEST_F(SharesTest, ByteCountersOfTenants) {
  SetUpRails(1, 1, 25e6);
  QueueOf(&one_, 0, 7 * kPiece);
  QueueOf(&three_, 0, 5 * kPiece);
  CarryBytes(12 * kPiece);
  for (const TenantView& view : tenants_.Views(now_)) {
    const uint64_t expected = view.name == "one" ? 7 * kPiece : view.name == "three" ? 5 * kPiece : 0;
    EXPECT_EQ(view.rail_sent_bytes.empty() ? 0 : view.rail_sent_bytes[0], expected) << view.name;
  }
}

}  // namespace
}  // namespace railsd::testing
