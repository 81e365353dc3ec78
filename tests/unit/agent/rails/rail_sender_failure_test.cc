// A rail's share of an exchange when its connection ends.
#include <gtest/gtest.h>

#include <vector>

#include "agent/rails/rail_sender.h"
#include "tests/unit/agent/rails/rail_sender_fixture.h"

namespace railsd::testing {
namespace {

class RailSenderFailureTest : public RailSenderTest {
 protected:
  void ExpectOneEnd(const std::vector<RailEvent>& reports, bool doubtful, int weight, uint32_t settled) {
    const std::vector<RailEvent> ends = Only(Kind::kShareEnded, reports);
    ASSERT_EQ(ends.size(), 1u);
    EXPECT_EQ(ends[0].doubtful, doubtful);
    EXPECT_EQ(ends[0].weight, weight);
    EXPECT_EQ(ends[0].settled, settled);
    EXPECT_EQ(ends[0].connection, kConnection);
  }
};

TEST_F(RailSenderFailureTest, AnAssignmentForAConnectionThatHasEndedComesBack) {
  PeerDown();
  Take();
  Give(stream_, 5, kMiB, 9, 3);
  const std::vector<RailEvent> reports = Take();
  ASSERT_EQ(KindsOf(reports), std::vector<Kind>{Kind::kReturned});
  EXPECT_EQ(reports[0].offset_bytes, 5u);
  EXPECT_EQ(reports[0].length_bytes, kMiB);
  EXPECT_EQ(reports[0].weight, 9);
  EXPECT_EQ(reports[0].round, 3u);
  EXPECT_EQ(reports[0].settled, 1u);
  EXPECT_EQ(reports[0].peer, kPeer);
  PeerUp(kPeer, kLink, kConnection + 1);
  Take();
  Give(stream_, 5, kMiB, 9, 3);
  EXPECT_EQ(KindsOf(Take()), std::vector<Kind>{Kind::kReturned}) << "the next connection is another one";
  Post();
  EXPECT_TRUE(orders().empty());
}

TEST_F(RailSenderFailureTest, UnsentOrdersComeBackBeforeAnEndWithoutDoubt) {
  Give(stream_, 0, 6 * kMiB, 77, 2);
  Post();
  ASSERT_EQ(orders().size(), 4u);
  EndAll(SendResult::kNotSent);
  EXPECT_TRUE(TakeOfShares().empty()) << "until the end of the connection is told";
  Post();
  EXPECT_TRUE(orders().empty());
  PeerDown();
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_GE(reports.size(), 3u);
  EXPECT_EQ(reports.front().kind, Kind::kPeerDown);
  EXPECT_EQ(reports.back().kind, Kind::kShareEnded);
  uint64_t bytes = 0;
  for (const RailEvent& returned : Only(Kind::kReturned, reports)) {
    bytes += returned.length_bytes;
    EXPECT_EQ(returned.weight, 0);
    EXPECT_EQ(returned.settled, 0u);
  }
  EXPECT_EQ(bytes, 6 * kMiB);
  ExpectOneEnd(reports, /*doubtful=*/false, 77, 1);
  EXPECT_EQ(reports.back().round, 2u);
}

TEST_F(RailSenderFailureTest, AnUnsentFenceGivesItsWeightBack) {
  GiveAndPost(stream_, 0, kMiB, 77);
  EXPECT_EQ(Weights(), std::vector<int>{77});
  EndAll(SendResult::kNotSent);
  PeerDown();
  ExpectOneEnd(Take(), /*doubtful=*/false, 77, 1);
}

TEST_F(RailSenderFailureTest, FailedOrdersAreLostAndTheEndIsDoubtful) {
  GiveAndPost(stream_, 0, 6 * kMiB, 77);
  End();
  End(SendResult::kRailFailed);
  End(SendResult::kNotSent);
  End(SendResult::kRailFailed);
  PeerDown();
  const std::vector<RailEvent> reports = TakeOfShares();
  const std::vector<RailEvent> lost = Only(Kind::kLost, reports);
  ASSERT_EQ(lost.size(), 2u);
  EXPECT_EQ(lost[0].offset_bytes, kMiB);
  EXPECT_EQ(lost[0].length_bytes, kMiB);
  EXPECT_EQ(lost[0].stream, &stream_);
  EXPECT_EQ(lost[1].offset_bytes, 3 * kMiB);
  EXPECT_EQ(BytesOf(Kind::kReturned, reports), 3 * kMiB);
  EXPECT_EQ(Only(Kind::kCarried, reports)[0].length_bytes, kMiB);
  ExpectOneEnd(reports, /*doubtful=*/true, 77, 1);
}

TEST_F(RailSenderFailureTest, AFailedFenceIsDoubtfulThoughAllBytesAreAcknowledged) {
  Give(stream_, 0, kMiB, 0);
  CarryAll();
  GiveAndPost(stream_, 0, 0, 77);
  EndAll(SendResult::kRailFailed);
  PeerDown();
  const std::vector<RailEvent> reports = Take();
  EXPECT_TRUE(Only(Kind::kLost, reports).empty());
  ExpectOneEnd(reports, /*doubtful=*/true, 0, 2);
}

TEST_F(RailSenderFailureTest, AcknowledgedBytesWithoutAFenceAreDoubtful) {
  GiveAndPost(stream_, 0, 5 * kMiB, 77);
  EndAll(SendResult::kAcknowledged);
  PeerDown();
  const std::vector<RailEvent> reports = TakeOfShares();
  EXPECT_EQ(Only(Kind::kCarried, reports)[0].length_bytes, 4 * kMiB) << "told before the end";
  ExpectOneEnd(reports, /*doubtful=*/true, 77, 1);
}

TEST_F(RailSenderFailureTest, FencedAndAcknowledgedBytesAreNotDoubtful) {
  Give(stream_, 0, kMiB, 77);
  CarryAll();
  Give(stream_, kMiB, 4 * kMiB, 50);
  PeerDown();
  const std::vector<RailEvent> reports = Take();
  EXPECT_EQ(Only(Kind::kFenceDone, reports)[0].settled, 1u);
  ExpectOneEnd(reports, /*doubtful=*/false, 50, 1);
}

TEST_F(RailSenderFailureTest, OneAcknowledgedFenceDoesNotCoverLaterBytes) {
  GiveAndPost(stream_, 0, kMiB, 77);
  GiveAndPost(stream_, kMiB, kMiB, 0);
  EndAll(SendResult::kAcknowledged);
  PeerDown();
  ExpectOneEnd(Take(), /*doubtful=*/true, 0, 2);
}

TEST_F(RailSenderFailureTest, AFenceOfAnOlderRoundCoversNothing) {
  GiveAndPost(stream_, 0, kMiB, 77);
  Give(stream_, 0, 0, 50, 1);
  EndAll(SendResult::kAcknowledged);
  PeerDown();
  const std::vector<RailEvent> reports = Take();
  ExpectOneEnd(reports, /*doubtful=*/true, 50, 2);
  EXPECT_EQ(Only(Kind::kShareEnded, reports)[0].round, 1u);
}

TEST_F(RailSenderFailureTest, AnUnsentFenceOfAnOlderRoundIsVoid) {
  GiveAndPost(stream_, 0, kMiB, 77);
  Give(stream_, 0, 0, 50, 1);
  EndAll(SendResult::kNotSent);
  PeerDown();
  const std::vector<RailEvent> reports = Take();
  EXPECT_EQ(Only(Kind::kShareEnded, reports)[0].weight, 50);
  EXPECT_EQ(Only(Kind::kShareEnded, reports)[0].round, 1u);
}

// The rail has posted something that has no fence yet, and this weight is for that fence.
TEST_F(RailSenderFailureTest, WeightThatReachesABrokenShareStaysBehind) {
  GiveAndPost(stream_, 0, kMiB, 0);
  EndAll(SendResult::kRailFailed);
  Give(stream_, kMiB, kMiB, 255);
  PeerDown();
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(reports.back().kind, Kind::kShareEnded);
  EXPECT_TRUE(reports.back().doubtful);
  int returned_weight = 0;
  for (const RailEvent& returned : Only(Kind::kReturned, reports)) returned_weight += returned.weight;
  EXPECT_EQ(returned_weight, 0)
      << "the engine does not know yet that the share is in doubt, and would give it to others";
}

// The same while the transport has yet to give back an order.
TEST_F(RailSenderFailureTest, WeightThatReachesAnEndedShareStaysBehind) {
  GiveAndPost(stream_, 0, 2 * kMiB, 0);
  End(SendResult::kRailFailed);
  PeerDown();
  Give(stream_, 2 * kMiB, kMiB, 255);
  End(SendResult::kNotSent);
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(Only(Kind::kShareEnded, reports).size(), 1u);
  EXPECT_TRUE(Only(Kind::kShareEnded, reports)[0].doubtful);
  for (const RailEvent& report : reports) {
    if (report.kind == Kind::kShareEnded) break;
    EXPECT_FALSE(report.kind == Kind::kReturned && report.weight > 0) << "weight came back before the doubt was told";
  }
}

TEST_F(RailSenderFailureTest, OrdersMayComeBackAfterTheEndOfTheConnection) {
  GiveAndPost(stream_, 0, 6 * kMiB, 77);
  End(SendResult::kNotSent);
  PeerDown();
  EXPECT_EQ(KindsOf(TakeOfShares()), std::vector<Kind>{Kind::kPeerDown}) << "three orders are under way";
  PeerUp(kPeer, kLink, kConnection + 1);
  Post();
  EXPECT_EQ(orders().size(), 3u) << "the new connection carries nothing of the old share";
  End(SendResult::kNotSent);
  End(SendResult::kNotSent);
  EXPECT_TRUE(Only(Kind::kShareEnded, Take()).empty());
  End(SendResult::kNotSent);
  const std::vector<RailEvent> reports = TakeOfShares();
  EXPECT_EQ(BytesOf(Kind::kReturned, reports), 6 * kMiB);
  ExpectOneEnd(reports, /*doubtful=*/false, 77, 1);
  ExpectNothingLeft();
  Give(stream_, 0, kMiB, 77, 0, kConnection + 1);
  Post();
  ASSERT_EQ(orders().size(), 1u);
  EXPECT_EQ(orders()[0].connection, kConnection + 1);
  CarryAll();
}

TEST_F(RailSenderFailureTest, StagedOrdersAreNotSentWhenTheConnectionEnds) {
  transport_.room = 2;
  GiveAndPost(stream_, 0, 4 * kMiB, 77);
  ASSERT_EQ(orders().size(), 2u);
  EndAll(SendResult::kRailFailed);
  PeerDown();
  const std::vector<RailEvent> reports = TakeOfShares();
  EXPECT_EQ(Only(Kind::kLost, reports).size(), 2u);
  EXPECT_EQ(BytesOf(Kind::kReturned, reports), 2 * kMiB);
  ExpectOneEnd(reports, /*doubtful=*/true, 77, 1);
  Post();
  EXPECT_TRUE(orders().empty());
}

TEST_F(RailSenderFailureTest, ADroppedShareEndsWithItsConnection) {
  GiveAndPost(stream_, 0, 6 * kMiB, 77);
  sender_->Drop(&stream_);
  End(SendResult::kNotSent);
  End(SendResult::kRailFailed);
  End();
  End(SendResult::kNotSent);
  EXPECT_TRUE(Only(Kind::kSettled, Take()).empty());
  PeerDown();
  const std::vector<RailEvent> reports = Take();
  EXPECT_TRUE(Only(Kind::kReturned, reports).empty()) << "nobody wants it";
  ASSERT_EQ(Only(Kind::kShareEnded, reports).size(), 1u);
  EXPECT_EQ(Only(Kind::kShareEnded, reports)[0].settled, 1u);
}

TEST_F(RailSenderFailureTest, OnlySharesOfThatPeerEnd) {
  SetPeer(PeerIndex(4), 1);
  PeerUp(PeerIndex(4), 1, 5);
  SendStream& here = NewStream();
  SendStream& there = NewStream(PeerIndex(4));
  Give(here, 0, kMiB, 255);
  Give(there, 0, kMiB, 255, 0, 5);
  PeerDown();
  const std::vector<RailEvent> reports = Take();
  ASSERT_EQ(Only(Kind::kShareEnded, reports).size(), 1u);
  EXPECT_EQ(Only(Kind::kShareEnded, reports)[0].stream, &here);
  CarryAll();
  EXPECT_EQ(Only(Kind::kFenceDone, Take())[0].stream, &there);
}

TEST_F(RailSenderFailureTest, RemovePeerEndsItsShares) {
  transport_.room = 2;
  GiveAndPost(stream_, 0, 8 * kMiB, 77);
  sender_->RemovePeer(kPeer, now_);
  EXPECT_EQ(transport_.removed_peers, std::vector<PeerIndex>{kPeer});
  EXPECT_TRUE(Only(Kind::kShareEnded, Take()).empty());
  Give(stream_, 8 * kMiB, kMiB, 5);
  EXPECT_TRUE(TakeOfShares().empty()) << "it comes back with the share";
  EndAll(SendResult::kStopped);
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(Only(Kind::kShareEnded, reports).size(), 1u);
  EXPECT_EQ(Only(Kind::kShareEnded, reports)[0].settled, 2u);
  ASSERT_EQ(Only(Kind::kReturned, reports).size(), 1u);
  EXPECT_EQ(Only(Kind::kReturned, reports)[0].length_bytes, kMiB);
  Post();
  EXPECT_TRUE(orders().empty());
}

TEST_F(RailSenderFailureTest, EventsOfARemovedPeersConnectionAreDropped) {
  sender_->RemovePeer(kPeer, now_);
  PeerUp(kPeer, kLink, kConnection + 1);
  EXPECT_TRUE(Take().empty());
  SetPeer(kPeer, kLink + 1);
  PeerUp(kPeer, kLink, kConnection + 1);
  LinkEvent(Kind::kPeerStalled, kPeer, kLink, kConnection + 1);
  PeerDown(kConnection + 1);
  EXPECT_TRUE(Take().empty()) << "of the link before";
  Give(stream_, 0, kMiB, 255, 0, kConnection + 1);
  EXPECT_EQ(KindsOf(Take()), std::vector<Kind>{Kind::kReturned});
  PeerUp(kPeer, kLink + 1, kConnection + 2);
  EXPECT_EQ(KindsOf(Take()), std::vector<Kind>{Kind::kPeerUp});
  Give(stream_, 0, kMiB, 255, 0, kConnection + 2);
  CarryAll();
  EXPECT_EQ(Only(Kind::kFenceDone, Take()).size(), 1u);
}

TEST_F(RailSenderFailureTest, OtherEventsGoOnToTheEngine) {
  RailEvent event;
  event.kind = Kind::kFence;
  event.weight = 7;
  sender_->OnEvent(event, now_);
  const std::vector<RailEvent> reports = Take();
  ASSERT_EQ(KindsOf(reports), std::vector<Kind>{Kind::kFence});
  EXPECT_EQ(reports[0].weight, 7);
}

// Stopping the orders of one job must not make the peer look stalled, or more would be posted than windows allow.
TEST_F(RailSenderFailureTest, StoppedOrdersDoNotWidenTheWindow) {
  SetUpSender({.speed_bytes_per_s = 4e9, .chunk_bytes = kMiB, .window_bytes = 2 * kMiB});
  SetPeer(kPeer, kLink);
  PeerUp(kPeer, kLink, kConnection);
  RailShares shares{{{}, {}}, 0};
  sender_->scheduler().SetShares(shares);
  for (uint32_t peer : {20u, 21u, 22u, 23u, 24u, 25u}) {
    SetPeer(PeerIndex(peer), kLink);
    PeerUp(PeerIndex(peer), kLink, kConnection);
  }
  SendStream& stopped = NewStream(kPeer, JobTag(1));
  SendStream& goes_on = NewStream(kPeer, JobTag(2));
  transport_.room = 1;
  Give(goes_on, 0, kMiB, 0);
  GiveAndPost(stopped, 0, kMiB, 0);
  ASSERT_EQ(orders().size(), 1u);
  sender_->StopSends(JobTag(1), now_);
  transport_.room = 100;
  for (uint32_t peer : {20u, 21u, 22u, 23u, 24u, 25u}) Give(NewStream(PeerIndex(peer), JobTag(2)), 0, 8 * kMiB, 0);
  Post();
  EXPECT_EQ(orders().size(), 4u) << "two windows";
}

}  // namespace
}  // namespace railsd::testing
