#include "tests/unit/agent/rails/rail_scheduler_fixture.h"

namespace railsd::testing {
namespace {

TEST_F(RailSchedulerTest, PiecesAndWindowsFollowFromTheSpeed) {
  EXPECT_EQ(progress_.movable_bytes, 8 * kPiece);
  Queue(kOne, 0, kMiB);
  EXPECT_EQ(scheduler_->Next(now_)->piece_bytes, kPiece);
  EXPECT_EQ(progress_.window_bytes, kWindow);
  EXPECT_EQ(progress_.speed_bytes_per_s, kSpeed);
  SetUpRail(1e6);
  Queue(kOne, 0, kMiB);
  EXPECT_EQ(scheduler_->Next(now_)->piece_bytes, 8u << 10) << "not smaller on slow rails";
  SetUpRail(50e9);
  EXPECT_EQ(progress_.movable_bytes, kMiB);
  EXPECT_EQ(progress_.window_bytes, 10'000'000u) << "what the rail carries in 200 us";
  SetUpRail(3.125e9);
  EXPECT_EQ(progress_.window_bytes, 3 * kMiB);
  SetUpRail(3.125e9, kMiB / 4);
  EXPECT_EQ(progress_.window_bytes, 2 * kMiB) << "more of short chunks";
  SetUpRail(3.125e9, 16 << 10);
  EXPECT_EQ(progress_.window_bytes, 625'000u) << "8 of very short ones are less than 200 us";
  SetUpRail(50e9, kMiB / 4);
  EXPECT_EQ(progress_.movable_bytes, kMiB);
  SetUpRail(50e9, 4 * kMiB);
  EXPECT_EQ(progress_.movable_bytes, 4 * kMiB);
  SetUpRail(50e9, 4096);
  EXPECT_EQ(progress_.movable_bytes, 4u * 4096);
}

TEST_F(RailSchedulerTest, TheWindowBoundsWhatIsPostedToAPeer) {
  SetUpRail(4e9, kMiB, 4 * kMiB);
  Queue(kOne, 0, 64 * kMiB);
  Queue(kOne, 1, 64 * kMiB);
  Post();
  EXPECT_EQ(InFlightTo(0), 2 * kMiB);
  EXPECT_EQ(InFlightTo(1), 2 * kMiB) << "a stalled peer does not hold the other's share";
  Acknowledge();
  Post();
  EXPECT_EQ(InFlightTo(0) + InFlightTo(1), 4 * kMiB);
  EXPECT_EQ(InFlight(), 4 * kMiB);
  EXPECT_EQ(scheduler_->unposted_bytes(), 128 * kMiB - 5 * kMiB);
  EXPECT_EQ(progress_.unposted_bytes.load(), 128 * kMiB - 5 * kMiB);
}

TEST_F(RailSchedulerTest, TwoWindowsBoundWhatIsPostedToAllPeers) {
  SetUpRail(4e9, kMiB, 4 * kMiB);
  for (uint32_t peer = 0; peer < 16; ++peer) Queue(kOne, peer, 64 * kMiB);
  Post();
  EXPECT_EQ(InFlight(), 8 * kMiB);
  Acknowledge();
  Post();
  EXPECT_EQ(InFlight(), 8 * kMiB);
}

TEST_F(RailSchedulerTest, APeerHasAtMost256ChunksInFlight) {
  SetUpRail(1e9, 64, kMiB);
  Queue(kOne, 0, kMiB);
  Post();
  EXPECT_EQ(chunks_.size(), 256u);
  Post();
  EXPECT_EQ(chunks_.size(), 256u);
  Queue(kOne, 1, kMiB);
  Post();
  EXPECT_EQ(chunks_.size(), 512u) << "another peer has its own";
  Acknowledge();
  Post();
  EXPECT_EQ(chunks_.size(), 512u);
}

TEST_F(RailSchedulerTest, StartsWithTheNextNodeAndTakesTurns) {
  SetUpRail(4e9, kMiB, 6 * kMiB);
  places_ = {{0, 2}, {1, 0}, {2, 1}};  // node n1, whose peers are n0, n2 and n3
  for (uint32_t peer : {0u, 1u, 2u}) Queue(kOne, peer, 4 * kMiB);
  Post();
  EXPECT_EQ(PostedPeers(), (std::vector<uint32_t>{1, 2, 0, 1, 2, 0}));
}

TEST_F(RailSchedulerTest, EqualPeersGoOnAfterTheOneThatWasServedLast) {
  SetUpRail(4e9, kMiB, 3 * kMiB);
  Queue(kOne, 1, kMiB);
  Post();
  Acknowledge();
  for (uint32_t peer : {0u, 1u, 2u}) Queue(kOne, peer, kMiB);
  Post();
  EXPECT_EQ(PostedPeers(), (std::vector<uint32_t>{2, 0, 1}));
}

TEST_F(RailSchedulerTest, ThePeerWithMostLeftIsServedFirst) {
  SetUpRail(4e9, kMiB, 4 * kMiB);
  Queue(kOne, 0, 4 * kMiB);
  Queue(kOne, 1, 4 * kMiB);
  Post();
  EXPECT_EQ(PostedPeers(), (std::vector<uint32_t>{0, 1, 0, 1}));
  while (!chunks_.empty()) Acknowledge();
  Queue(kOne, 1, kMiB);
  Queue(kOne, 3, 6 * kMiB);
  Post();
  EXPECT_EQ(PostedPeers(), (std::vector<uint32_t>{3, 1, 0})) << "though peer 3 was the last to start";
}

TEST_F(RailSchedulerTest, PeersWithUnequalAmountsEndTogether) {
  uint64_t sum = 0;
  for (uint32_t peer = 0; peer < 32; ++peer) {
    places_[peer] = peer;
    const uint64_t bytes = std::min<uint64_t>(20 + 5 * peer, 40) * kPiece;
    Queue(kOne, peer, bytes);
    sum += bytes;
  }
  CarryBytes(sum - 32 * 4 * kPiece);
  for (uint32_t peer = 0; peer < 32; ++peer) {
    EXPECT_LE(left_[std::make_pair(kOne, peer)], 5 * kPiece) << "peer " << peer;
    EXPECT_GT(left_[std::make_pair(kOne, peer)], 0u) << "peer " << peer;
  }
}

// Large jobs that follow each other would else keep a small one waiting.
TEST_F(RailSchedulerTest, APeerThatIsPassedOverForLongHasItsTurn) {
  SetUpRail(kSpeed, kMiB, kPiece);
  for (uint32_t peer : {0u, 1u, 2u, 3u}) Queue(kOne, peer, 400 * kPiece);
  Queue(kOne, 4, 1000);
  CarryBytes(30 * kPiece);
  EXPECT_EQ(left_[std::make_pair(kOne, 4u)], 0u);
}

TEST_F(RailSchedulerTest, RemovedBytesAreNotChosen) {
  SetUpRail(1e9, kMiB, 2 * kMiB);
  Queue(kOne, 0, 4 * kMiB);
  Queue(kThree, 0, 4 * kMiB);
  scheduler_->Remove(kOne, PeerIndex(0), 4 * kMiB);
  left_[{kOne, 0}] = 0;
  EXPECT_EQ(scheduler_->unposted_bytes(), 4 * kMiB);
  EXPECT_EQ(CarryBytes(8 * kMiB), (std::map<uint32_t, uint64_t>{{kThree, 4 * kMiB}}));
  EXPECT_EQ(scheduler_->unposted_bytes(), 0u);
  EXPECT_EQ(progress_.unposted_bytes.load(), 0u);
  EXPECT_EQ(InFlight(), 0u);
}

TEST_F(RailSchedulerTest, SharesByWeightToTheSamePeers) {
  for (uint32_t peer : {0u, 1u, 2u}) {
    Queue(kOne, peer, 40 * kMiB);
    Queue(kThree, peer, 40 * kMiB);
  }
  auto carried = CarryBytes(400 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[kThree]), 300 * kPiece, 2 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[kOne]), 100 * kPiece, 2 * kPiece);
  EXPECT_LE(most_in_flight_bytes_, kWindow + kPiece) << "one window for all peers";
}

TEST_F(RailSchedulerTest, SharesByWeightToDifferentPeers) {
  Queue(kThree, 0, 200 * kMiB);
  for (uint32_t peer : {1u, 2u, 3u}) Queue(kOne, peer, 40 * kMiB);
  auto carried = CarryBytes(400 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[kThree]), 300 * kPiece, 2 * kPiece) << "not by the number of peers";
}

TEST_F(RailSchedulerTest, AnUnusedShareIsLentAndNotPaidBack) {
  Queue(kOne, 0, 400 * kMiB);
  auto alone = CarryBytes(400 * kPiece);
  EXPECT_GE(alone[kOne], 400 * kPiece);
  Queue(kThree, 1, 100 * kPiece);
  auto both = CarryBytes(100 * kPiece);
  EXPECT_NEAR(static_cast<double>(both[kThree]), 75 * kPiece, 10 * kPiece)
      << "no more than its share for having waited";
  both = CarryBytes(200 * kPiece);
  EXPECT_NEAR(static_cast<double>(both[kThree]), 25 * kPiece, 10 * kPiece) << "all that it had";
  EXPECT_NEAR(static_cast<double>(both[kOne]), 175 * kPiece, 10 * kPiece) << "the rest";
}

TEST_F(RailSchedulerTest, PeersShareAWindowInWholePieces) {
  Queue(kOne, 0, 3200 * kPiece);
  Post();
  EXPECT_EQ(InFlight(), kWindow) << "a peer alone has all of it";
  for (uint32_t peer : {1u, 2u}) Queue(kOne, peer, 3200 * kPiece);
  while (!chunks_.empty()) Acknowledge();
  Post();
  for (uint32_t peer : {0u, 1u, 2u}) EXPECT_EQ(InFlightTo(peer), 3 * kPiece) << "peer " << peer;
  for (uint32_t peer = 3; peer < 12; ++peer) Queue(kOne, peer, 3200 * kPiece);
  while (!chunks_.empty()) Acknowledge();
  Post();
  for (uint32_t peer = 0; peer < 12; ++peer) EXPECT_EQ(InFlightTo(peer), kPiece) << "peer " << peer;
}

// Otherwise acknowledgements of what the receiver sends queue behind what all others have posted to it.
TEST_F(RailSchedulerTest, SendersToAReceiverShareAWindowByTheirInflows) {
  Queue(kOne, 0, 3200 * kPiece, 500'000);
  Post();
  EXPECT_EQ(InFlightTo(0), 4 * kPiece) << "another one sends as much to it, and whole pieces are posted";
  Queue(kOne, 0, 100 * kPiece, 750'000);
  Post();
  EXPECT_EQ(InFlightTo(0), 7 * kPiece) << "the larger one of two jobs";
  Queue(kOne, 1, 3200 * kPiece, 100'000);
  while (!chunks_.empty()) Acknowledge();
  Post();
  EXPECT_EQ(InFlightTo(0), 5 * kPiece) << "as one of two peers";
  EXPECT_EQ(InFlightTo(1), 2 * kPiece) << "enough to keep it going alone";
}

TEST_F(RailSchedulerTest, AnInflowThatEndsDoesNotCountForTheNextJob) {
  Queue(kOne, 0, 2 * kPiece);
  CarryBytes(2 * kPiece);
  Queue(kOne, 0, 100 * kPiece, 500'000);
  Post();
  EXPECT_EQ(InFlightTo(0), 4 * kPiece);
}

TEST_F(RailSchedulerTest, AHigherPriorityGoesFirst) {
  SetShares(1);
  Queue(kThree, 0, 100 * kPiece);
  CarryBytes(10 * kPiece);
  EXPECT_LE(InFlight(), 2 * kPiece) << "little is before an urgent chunk";
  const uint64_t before = InFlight();
  Queue(kUrgent, 1, 10 * kPiece);
  auto carried = CarryBytes(before + 10 * kPiece);
  EXPECT_EQ(carried[kUrgent], 10 * kPiece);
  EXPECT_EQ(CarryBytes(kPiece)[kUrgent], 0u);
}

TEST_F(RailSchedulerTest, BytesOfAHigherPriorityCountAgainstNobodyElse) {
  SetShares(1);
  Queue(kOne, 0, 400 * kPiece);
  Queue(kUrgent, 1, 200 * kPiece);
  EXPECT_GE(CarryBytes(150 * kPiece)[kUrgent], 140 * kPiece);
  Queue(kThree, 2, 300 * kPiece);
  CarryBytes(60 * kPiece);  // the rest of what is urgent
  auto carried = CarryBytes(200 * kPiece);
  EXPECT_EQ(carried[kUrgent], 0u);
  EXPECT_NEAR(static_cast<double>(carried[kThree]), 150 * kPiece, 3 * kPiece);
}

TEST_F(RailSchedulerTest, AChangeOfSharesTakesEffectAtOnce) {
  Queue(kOne, 0, 900 * kPiece);
  Queue(kThree, 1, 900 * kPiece);
  CarryBytes(400 * kPiece);
  shares_.tenants[kOne].weight = 9;
  SetShares(0);
  auto carried = CarryBytes(200 * kPiece);
  EXPECT_NEAR(static_cast<double>(carried[kOne]), 150 * kPiece, 8 * kPiece) << "but for what was posted";
}

TEST_F(RailSchedulerTest, WindowsAreWholeWhileNoHigherPriorityHasSessions) {
  Queue(kThree, 0, 100 * kPiece);
  Post();
  EXPECT_EQ(InFlight(), kWindow);
  while (!chunks_.empty()) Acknowledge();
  SetShares(1);
  Post();
  EXPECT_EQ(InFlight(), 2 * kPiece);
  SetShares(0);
  Post();
  EXPECT_GE(InFlight(), kWindow);
}

// A job of a higher priority has begun and its chunks are not here yet: what is posted ends, and nothing more of the
// others comes before them, for a moment.
TEST_F(RailSchedulerTest, LowerPrioritiesPauseForChunksThatAreAboutToCome) {
  SetShares(1);
  Queue(kThree, 0, 100 * kPiece);
  CarryBytes(10 * kPiece);
  const absl::Duration drain = absl::Seconds(static_cast<double>(2 * kPiece) / kSpeed);
  scheduler_->Expect(1, now_);
  while (!chunks_.empty()) {
    Acknowledge();
    Post();
  }
  EXPECT_EQ(InFlight(), 0u);
  EXPECT_EQ(scheduler_->NextDeadline(), now_ + 2 * drain);
  Queue(kUrgent, 1, kPiece);
  Post();
  EXPECT_EQ(InFlight(), kPiece) << "the rail was free for it";
  Acknowledge();
  Post();
  EXPECT_EQ(InFlight(), 0u);
  now_ += 2 * drain;
  Post();
  EXPECT_EQ(InFlight(), 2 * kPiece) << "not for long";
}

TEST_F(RailSchedulerTest, AnExpectedPriorityIsNotForgottenForALowerOne) {
  shares_.tenants = {{.priority = 2}, {.priority = 1}, {.priority = 5}};
  SetShares(5);
  Queue(kThree, 0, 100 * kPiece);
  scheduler_->Expect(5, now_);
  scheduler_->Expect(1, now_);
  Post();
  EXPECT_EQ(InFlight(), 0u);
  now_ = scheduler_->NextDeadline();
  ASSERT_LT(now_, absl::InfiniteFuture());
  Post();
  EXPECT_GT(InFlight(), 0u);
}

TEST_F(RailSchedulerTest, NobodyPausesForEquals) {
  Queue(kThree, 0, 100 * kPiece);
  scheduler_->Expect(0, now_);
  Post();
  EXPECT_EQ(InFlight(), kWindow);
}

TEST_F(RailSchedulerTest, AStalledPeerDoesNotHoldTheOthersShare) {
  Queue(kOne, 0, 100 * kPiece);
  Queue(kThree, 1, 100 * kPiece);
  Post();
  // Peer 0 never answers.
  const auto acknowledge_peer_1 = [&] {
    const auto it = std::find_if(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) { return chunk.peer == 1; });
    if (it == chunks_.end()) return false;
    std::rotate(chunks_.begin(), it, it + 1);
    Acknowledge();
    return true;
  };
  for (int piece = 0; piece < 100; ++piece) {
    if (!acknowledge_peer_1()) {
      EXPECT_GT(scheduler_->NextDeadline(), now_);
      ASSERT_LT(scheduler_->NextDeadline(), absl::InfiniteFuture());
      now_ = scheduler_->NextDeadline();
      Post();
      ASSERT_TRUE(acknowledge_peer_1()) << "after piece " << piece;
    }
    now_ += absl::Microseconds(500);
    Post();
  }
  EXPECT_EQ(InFlightTo(0), kWindow);
}

// Two windows are for all peers, and they are full of what stalled ones hold.
TEST_F(RailSchedulerTest, StalledPeersDoNotHoldTheWindowOfAll) {
  for (uint32_t peer = 10; peer < 34; ++peer) Queue(kOne, peer, 100 * kPiece);
  Post();
  Queue(kOne, 4, 10 * kPiece);
  Post();
  EXPECT_EQ(InFlightTo(4), 0u);
  ASSERT_LT(scheduler_->NextDeadline(), absl::InfiniteFuture());
  now_ = scheduler_->NextDeadline();
  Post();
  EXPECT_EQ(InFlightTo(4), kPiece);
}

TEST_F(RailSchedulerTest, UrgentBytesGoFirstOfEachPeer) {
  for (uint32_t peer : {0u, 1u, 2u}) Queue(kOne, peer, 400 * kPiece);
  CarryBytes(20 * kPiece);
  for (uint32_t peer : {0u, 1u, 2u}) QueueUrgent(kOne, peer, 20 * kPiece);
  const auto left = left_;
  CarryBytes(InFlight());  // posted before
  CarryBytes(60 * kPiece - InFlight() - kPiece);
  EXPECT_EQ(left_, left) << "others wait";
  CarryBytes(2000 * kPiece);
  EXPECT_EQ(scheduler_->unposted_bytes(), 0u);
  EXPECT_EQ(InFlight(), 0u);
}

// Or else a slow peer of urgent bytes would fill the window of its tenant's other peers, and of other tenants.
TEST_F(RailSchedulerTest, UrgencyChangesNoWindow) {
  for (uint32_t peer : {0u, 1u, 2u}) Queue(kOne, peer, 400 * kPiece);
  QueueUrgent(kOne, 1, 400 * kPiece);
  Post();
  for (uint32_t peer : {0u, 1u, 2u}) EXPECT_EQ(InFlightTo(peer), kWindow / 3);
  EXPECT_TRUE(chunks_.front().urgent);
  for (const auto& chunk : chunks_) EXPECT_EQ(chunk.urgent, chunk.peer == 1);
}

// A rail of two tenants, with urgent jobs of one, both or none.
TEST_F(RailSchedulerTest, UrgentJobsDoNotChangeTheSharesOfTenants) {
  for (const uint32_t who : {0u, 1u, 2u, 3u}) {
    SetUpRail(kSpeed);
    for (uint32_t peer : {0u, 1u, 2u}) {
      for (const uint32_t tenant : {kOne, kThree}) {
        (who >> tenant & 1) != 0 ? QueueUrgent(tenant, peer, 40 * kMiB) : Queue(tenant, peer, 40 * kMiB);
      }
    }
    auto carried = CarryBytes(400 * kPiece);
    EXPECT_NEAR(static_cast<double>(carried[kThree]), 300 * kPiece, 2 * kPiece) << "urgent ones: " << who;
  }
  SetUpRail(kSpeed);
  QueueUrgent(kOne, 0, 400 * kPiece);
  Queue(kUrgent, 1, 100 * kPiece);
  EXPECT_EQ(CarryBytes(100 * kPiece), (std::map<uint32_t, uint64_t>{{kUrgent, 100 * kPiece}})) << "nor priorities";
}

TEST_F(RailSchedulerTest, ARailLagsWhenItHasMoreLeftThanMessagesAreWorth) {
  EXPECT_FALSE(progress_.Lags());
  Queue(kOne, 0, 3 * 8 * kPiece);
  EXPECT_FALSE(progress_.Lags()) << "12 ms are too little to move";
  Queue(kOne, 0, 1);
  EXPECT_TRUE(progress_.Lags());
  EXPECT_NEAR(absl::ToDoubleMilliseconds(progress_.Left()), 12, 0.01);
  progress_.rate_bytes_per_s = static_cast<uint64_t>(2 * kSpeed);
  EXPECT_FALSE(progress_.Lags());
  SetUpRail(kSpeed);
  Queue(kOne, 0, 13 * kPiece);
  EXPECT_FALSE(progress_.Lags());
  progress_.rate_bytes_per_s = static_cast<uint64_t>(kSpeed / 2);
  EXPECT_TRUE(progress_.Lags()) << "on a rail at half speed the half of it is enough";
  progress_.rate_bytes_per_s = 0;
  SetUpRail(50e9);
  Queue(kOne, 0, 12 * kMiB);
  EXPECT_FALSE(progress_.Lags()) << "more than three chunks, but done as soon as two messages are";
  Queue(kOne, 0, kMiB);
  EXPECT_TRUE(progress_.Lags());
  progress_.rate_bytes_per_s = 100'000'000'000;
  EXPECT_FALSE(progress_.Lags()) << "by the rate that is measured";
  progress_.rate_bytes_per_s = 10'000'000'000;
  EXPECT_TRUE(progress_.Lags());
}

}  // namespace
}  // namespace railsd::testing
