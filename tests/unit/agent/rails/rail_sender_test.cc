// A rail's share of an exchange while its connection lives.
#include "agent/rails/rail_sender.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/unit/agent/rails/rail_sender_fixture.h"

namespace railsd::testing {
namespace {

TEST_F(RailSenderTest, EveryByteIsPostedOnceInChunksOfBoundedSize) {
  SendStream& a = NewStream();
  SendStream& b = NewStream();
  Give(a, 0, 10'000'003, 0);
  Give(a, 20'000'000, 999'999, 255);
  Give(b, 5, 17, 255);
  transport_.room = 3;
  uint64_t total = 0;
  std::set<std::pair<const SendStream*, uint64_t>> seen;
  for (Post(); !orders().empty(); Post()) {
    ASSERT_LE(orders().size(), 3u);
    const SendOrder& order = orders().front();
    EXPECT_LE(order.length_bytes, kMiB);
    EXPECT_EQ(order.connection, kConnection);
    for (uint64_t i = 0; i < order.length_bytes; ++i) {
      ASSERT_TRUE(seen.insert({order.stream, order.offset_bytes + i}).second);
      i += 4095;  // that is enough
    }
    total += order.length_bytes;
    End();
  }
  EXPECT_EQ(total, 11'000'019u);
}

TEST_F(RailSenderTest, TheFenceTravelsWithTheLastChunkAndAllWeight) {
  Give(stream_, 0, 2 * kMiB, 0, 4);
  Give(stream_, 9 * kMiB, kMiB, 200, 4);
  Give(stream_, 0, 0, 5, 4);
  Post();
  EXPECT_EQ(Weights(), (std::vector<int>{0, 0, 205}));
  EXPECT_EQ(orders().back().offset_bytes, 9 * kMiB);
  EXPECT_EQ(orders().back().round, 4u);
  EXPECT_EQ(stream_.unposted_bytes[1].load(), 0u);
  EndAll(SendResult::kAcknowledged);
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(KindsOf(reports), (std::vector<Kind>{Kind::kCarried, Kind::kFenceDone}));
  const RailEvent& fence = reports.back();
  EXPECT_EQ(fence.offset_bytes, 9 * kMiB);
  EXPECT_EQ(fence.length_bytes, kMiB);
  EXPECT_EQ(fence.weight, 205);
  EXPECT_EQ(fence.round, 4u);
  EXPECT_EQ(fence.settled, 3u) << "nothing of the share is left";
  EXPECT_EQ(fence.stream, &stream_);
  EXPECT_EQ(fence.peer, kPeer);
}

TEST_F(RailSenderTest, WeightThatComesWithoutBytesFencesAlone) {
  GiveAndPost(stream_, 0, 0, 255);
  ASSERT_EQ(orders().size(), 1u);
  EXPECT_EQ(orders()[0].length_bytes, 0u);
  EXPECT_EQ(orders()[0].weight, 255);
  End();
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(KindsOf(reports), std::vector<Kind>{Kind::kFenceDone});
  EXPECT_EQ(reports[0].length_bytes, 0u);
}

// The receiver has room for one fence of an exchange and rail.
TEST_F(RailSenderTest, OneFenceIsUnderWayAtATime) {
  GiveAndPost(stream_, 0, kMiB, 100);
  Give(stream_, kMiB, kMiB, 55);
  GiveAndPost(stream_, 0, 0, 100);
  EXPECT_EQ(Weights(), (std::vector<int>{100, 0}));
  End(SendResult::kAcknowledged, 1);
  Post();
  EXPECT_EQ(Weights(), (std::vector<int>{100}));
  End();
  EXPECT_EQ(Only(Kind::kFenceDone, Take())[0].settled, 0u) << "a fence is owed";
  Post();
  EXPECT_EQ(Weights(), (std::vector<int>{155}));
  EXPECT_EQ(orders()[0].length_bytes, 0u);
  End();
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(KindsOf(reports), std::vector<Kind>{Kind::kFenceDone});
  EXPECT_EQ(reports[0].settled, 3u);
}

TEST_F(RailSenderTest, BytesWithoutWeightAreFencedWhenWeightComes) {
  Give(stream_, 0, kMiB, 0);
  CarryAll();
  EXPECT_TRUE(Only(Kind::kFenceDone, Take()).empty());
  EXPECT_TRUE(Only(Kind::kSettled, Take()).empty()) << "it owes a fence";
  Give(stream_, 0, 0, 9);
  CarryAll();
  const RailEvent fence = TakeOnly(Kind::kFenceDone);
  EXPECT_EQ(fence.weight, 9);
  EXPECT_EQ(fence.settled, 2u);
}

TEST_F(RailSenderTest, ANewRoundVoidsOlderWeight) {
  GiveAndPost(stream_, 0, 8 * kMiB, 200);
  Give(stream_, 8 * kMiB, kMiB, 55, 1);
  CarryAll();
  const RailEvent fence = TakeOnly(Kind::kFenceDone);
  EXPECT_EQ(fence.weight, 55);
  EXPECT_EQ(fence.round, 1u);
}

TEST_F(RailSenderTest, ARailThatHasFencedFencesAgainInANewRound) {
  GiveAndPost(stream_, 0, kMiB, 100);
  Give(stream_, 0, 0, 30, 1);
  Post();
  EXPECT_EQ(orders().size(), 1u) << "one fence is under way";
  CarryAll();
  const std::vector<RailEvent> fences = Only(Kind::kFenceDone, Take());
  ASSERT_EQ(fences.size(), 2u);
  EXPECT_EQ(fences[0].round, 0u);
  EXPECT_EQ(fences[0].settled, 0u) << "the fence of round 1 is owed";
  EXPECT_EQ(fences[1].weight, 30);
  EXPECT_EQ(fences[1].round, 1u);
  EXPECT_EQ(fences[1].settled, 2u);
}

// --- Release.

TEST_F(RailSenderTest, ReleaseReturnsTheTailWithAPartOfTheWeight) {
  Give(stream_, 0, 4 * kMiB, 0);
  Give(stream_, 10 * kMiB, 2 * kMiB, 120);
  sender_->Release(&stream_, 3 * kMiB);
  const std::vector<RailEvent> reports = Take();
  ASSERT_EQ(KindsOf(reports), (std::vector<Kind>{Kind::kReturned, Kind::kReturned, Kind::kReleased}));
  EXPECT_EQ(reports[0].offset_bytes, 10 * kMiB);
  EXPECT_EQ(reports[0].length_bytes, 2 * kMiB);
  EXPECT_EQ(reports[0].weight, 0);
  EXPECT_EQ(reports[1].offset_bytes, 3 * kMiB);
  EXPECT_EQ(reports[1].length_bytes, kMiB);
  EXPECT_EQ(reports[1].weight, 60) << "half of the bytes, half of the weight";
  EXPECT_EQ(reports[0].settled + reports[1].settled, 0u);
  EXPECT_EQ(stream_.unposted_bytes[1].load(), 3 * kMiB);
  EXPECT_EQ(board_[1].unposted_bytes.load(), 3 * kMiB);
  EXPECT_EQ(board_[1].done_bytes.load(), 3 * kMiB);
  CarryAll();
  const RailEvent fence = TakeOnly(Kind::kFenceDone);
  EXPECT_EQ(fence.weight, 60);
  EXPECT_EQ(fence.settled, 2u);
}

TEST_F(RailSenderTest, WeightOneIsNotSplit) {
  Give(stream_, 0, 8 * kMiB, 1);
  sender_->Release(&stream_, kMiB);
  EXPECT_EQ(KindsOf(Take()), std::vector<Kind>{Kind::kReleased});
  CarryAll();
  EXPECT_EQ(Only(Kind::kFenceDone, Take())[0].weight, 1);
}

TEST_F(RailSenderTest, APartOfTheWeightIsAtLeastOneAndNotAll) {
  Give(stream_, 0, 8 * kMiB, 2);
  sender_->Release(&stream_, 1);
  EXPECT_EQ(Only(Kind::kReturned, Take())[0].weight, 1);
  SendStream& other = NewStream();
  Give(other, 0, 8 * kMiB, 2);
  sender_->Release(&other, 8 * kMiB - 1);
  EXPECT_EQ(Only(Kind::kReturned, Take())[0].weight, 1);
  CarryAll();
  for (const RailEvent& fence : Only(Kind::kFenceDone, Take())) EXPECT_EQ(fence.weight, 1);
}

TEST_F(RailSenderTest, ARailThatHasPostedKeepsWeightForItsFence) {
  GiveAndPost(stream_, 0, 8 * kMiB, 200);
  ASSERT_EQ(orders().size(), 4u);
  sender_->Release(&stream_, UINT64_MAX);
  const RailEvent returned = TakeOnly(Kind::kReturned);
  EXPECT_EQ(returned.length_bytes, 4 * kMiB);
  EXPECT_EQ(returned.weight, 199);
  CarryAll();
  const std::vector<RailEvent> fences = Only(Kind::kFenceDone, Take());
  ASSERT_EQ(fences.size(), 1u);
  EXPECT_EQ(fences[0].weight, 1);
  EXPECT_EQ(fences[0].settled, 1u);
}

TEST_F(RailSenderTest, ARailThatHasPostedAndHasWeightOneKeepsItsBytes) {
  GiveAndPost(stream_, 0, 8 * kMiB, 1);
  sender_->Release(&stream_, UINT64_MAX);
  EXPECT_EQ(KindsOf(TakeOfShares()), std::vector<Kind>{Kind::kReleased});
  EXPECT_EQ(stream_.unposted_bytes[1].load(), 4 * kMiB);
}

TEST_F(RailSenderTest, ARailThatHasPostedNothingReleasesEverything) {
  Give(stream_, 0, 8 * kMiB, 1);
  sender_->Release(&stream_, UINT64_MAX);
  const std::vector<RailEvent> reports = Take();
  ASSERT_EQ(KindsOf(reports), (std::vector<Kind>{Kind::kReturned, Kind::kReleased, Kind::kSettled}));
  EXPECT_EQ(reports[0].length_bytes, 8 * kMiB);
  EXPECT_EQ(reports[0].weight, 1);
  EXPECT_EQ(reports[2].settled, 1u);
  Post();
  EXPECT_TRUE(orders().empty());
}

TEST_F(RailSenderTest, ARailWhoseFenceIsUnderWayReleasesWhatCameLater) {
  GiveAndPost(stream_, 0, kMiB, 100);
  Give(stream_, kMiB, kMiB, 50);
  sender_->Release(&stream_, UINT64_MAX);
  const RailEvent returned = TakeOnly(Kind::kReturned);
  EXPECT_EQ(returned.weight, 50);
  End();
  EXPECT_EQ(Only(Kind::kFenceDone, Take())[0].settled, 2u);
}

TEST_F(RailSenderTest, EveryReleaseIsAnswered) {
  const auto expect_released = [&](const char* when) {
    sender_->Release(&stream_, kMiB);
    const RailEvent released = TakeOnly(Kind::kReleased);
    EXPECT_EQ(released.stream, &stream_) << when;
    EXPECT_EQ(released.peer, kPeer) << when;
  };
  expect_released("without a share");
  GiveAndPost(stream_, 0, kMiB, 2);
  expect_released("everything is posted");
  sender_->Drop(&stream_);
  expect_released("it was dropped");
  End(SendResult::kNotSent);
  expect_released("the connection breaks");
  PeerDown();
  expect_released("it has ended");
}

TEST_F(RailSenderTest, ReleaseInANewRoundKeepsWeightForWhatWasPostedBefore) {
  GiveAndPost(stream_, 0, kMiB, 100);
  Give(stream_, kMiB, kMiB, 50, 1);
  sender_->Release(&stream_, UINT64_MAX);
  EXPECT_EQ(Only(Kind::kReturned, Take())[0].weight, 49) << "the posted chunk is not fenced in round 1";
  CarryAll();
  EXPECT_EQ(Only(Kind::kFenceDone, Take()).back().weight, 1);
}

// --- Drop, faults.

TEST_F(RailSenderTest, DropSettlesWhenAllOrdersHaveEnded) {
  GiveAndPost(stream_, 0, 8 * kMiB, 255);
  sender_->Drop(&stream_);
  EXPECT_EQ(stream_.unposted_bytes[1].load(), 0u);
  Post();
  ASSERT_EQ(orders().size(), 4u) << "nothing more is posted";
  for (int i = 0; i < 3; ++i) End();
  EXPECT_TRUE(Only(Kind::kSettled, Take()).empty());
  End();
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(KindsOf(reports), (std::vector<Kind>{Kind::kCarried, Kind::kSettled}));
  EXPECT_EQ(reports.back().settled, 1u);
  ExpectNothingLeft();
  sender_->Drop(&stream_);
  EXPECT_TRUE(Take().empty());
}

TEST_F(RailSenderTest, DropForgetsOneStreamOnly) {
  SendStream& a = NewStream();
  SendStream& b = NewStream();
  Give(a, 0, kMiB, 255);
  Give(b, 0, kMiB, 255);
  Give(a, kMiB, kMiB, 0);
  sender_->Drop(&a);
  EXPECT_EQ(KindsOf(Take()), std::vector<Kind>{Kind::kSettled});
  Post();
  ASSERT_EQ(orders().size(), 1u);
  EXPECT_EQ(orders()[0].stream, &b);
  CarryAll();
}

TEST_F(RailSenderTest, AFaultIsReportedOnce) {
  for (const SendResult result : {SendResult::kZoneClosed, SendResult::kStopped, SendResult::kMemoryFault}) {
    SendStream& stream = NewStream();
    GiveAndPost(stream, 0, 8 * kMiB, 255);
    ASSERT_EQ(orders().size(), 4u);
    EndAll(result);
    const std::vector<RailEvent> reports = TakeOfShares();
    ASSERT_EQ(KindsOf(reports), (std::vector<Kind>{Kind::kSendFault, Kind::kSettled}));
    EXPECT_EQ(reports[0].result, result);
    EXPECT_EQ(reports[0].offset_bytes, 0u);
    EXPECT_EQ(reports[0].length_bytes, kMiB);
    EXPECT_EQ(reports[1].settled, 1u);
    Post();
    EXPECT_TRUE(orders().empty()) << "the job fails";
  }
}

TEST_F(RailSenderTest, StopSendsStopsOneJobsOrders) {
  SendStream& a = NewStream(kPeer, JobTag(1));
  SendStream& b = NewStream(kPeer, JobTag(2));
  transport_.room = 1;
  Give(a, 0, 2 * kMiB, 255);
  GiveAndPost(b, 0, 2 * kMiB, 255);
  ASSERT_EQ(orders().size(), 1u);
  sender_->StopSends(JobTag(1), now_);
  EXPECT_EQ(transport_.stopped_jobs, std::vector<JobTag>{JobTag(1)});
  EXPECT_EQ(KindsOf(TakeOfShares()), std::vector<Kind>{Kind::kSendFault}) << "what the transport had not taken";
  End(SendResult::kStopped);
  EXPECT_EQ(KindsOf(TakeOfShares()), std::vector<Kind>{Kind::kSettled});
  CarryAll();
  EXPECT_EQ(Only(Kind::kFenceDone, Take())[0].stream, &b);
}

// --- Reports.

TEST_F(RailSenderTest, CarriedBytesAreToldTogether) {
  Give(stream_, 0, 3 * kMiB, 0);
  Give(stream_, 8 * kMiB, kMiB, 255);
  CarryAll();
  const std::vector<RailEvent> carried = TakeOfShares();
  ASSERT_EQ(KindsOf(carried), (std::vector<Kind>{Kind::kCarried, Kind::kFenceDone}));
  EXPECT_EQ(carried[0].offset_bytes, 0u);
  EXPECT_EQ(carried[0].length_bytes, 3 * kMiB);
  EXPECT_EQ(carried[1].offset_bytes, 8 * kMiB);
  EXPECT_EQ(carried[1].length_bytes, kMiB);
}

TEST_F(RailSenderTest, CarriedBytesAreToldAfterAWhile) {
  GiveAndPost(stream_, 0, 8 * kMiB, 255);
  End();
  now_ += absl::Milliseconds(99);
  End();
  EXPECT_TRUE(TakeOfShares().empty());
  now_ += absl::Milliseconds(1);
  End();
  const std::vector<RailEvent> reports = TakeOfShares();
  ASSERT_EQ(KindsOf(reports), std::vector<Kind>{Kind::kCarried});
  EXPECT_EQ(reports[0].length_bytes, 3 * kMiB);
}

TEST_F(RailSenderTest, RecordsCountChunks) {
  std::vector<RailRecords> records(2);
  for (RailRecords& rail : records) rail.Reset(3);
  stream_.records = records.data();
  now_ += absl::Seconds(1);
  const absl::Time posted = now_;
  GiveAndPost(stream_, 0, 4 * kMiB, 0);
  EXPECT_EQ(records[1].TotalsAt(now_).under_way, 4u);
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(records[1].TotalsAt(now_).busy, absl::Milliseconds(1));
  End();
  now_ += absl::Milliseconds(1);
  End();
  End(SendResult::kNotSent);
  End(SendResult::kRailFailed);
  const RailRecords::Totals totals = records[1].TotalsAt(now_ + absl::Milliseconds(1));
  EXPECT_EQ(totals.chunks, 4u);
  EXPECT_EQ(totals.returned_chunks, 2u);
  EXPECT_EQ(totals.under_way, 0u);
  EXPECT_EQ(totals.first_posted, posted);
  EXPECT_EQ(totals.last_acknowledged, now_);
  EXPECT_EQ(totals.busy, absl::Milliseconds(2));
  EXPECT_EQ(records[1].left_out(), 1u);
  std::vector<uint64_t> offsets;
  records[1].ForEachChunk([&](const RailRecords::Chunk& chunk) {
    offsets.push_back(chunk.offset_bytes);
    EXPECT_EQ(chunk.peer, kPeer);
    EXPECT_EQ(chunk.length_bytes, kMiB);
    EXPECT_EQ(chunk.returned, chunk.offset_bytes == 2 * kMiB);
    EXPECT_EQ(chunk.posted, posted);
  });
  EXPECT_EQ(offsets, (std::vector<uint64_t>{0, kMiB, 2 * kMiB}));
  EXPECT_EQ(records[0].TotalsAt(now_).chunks, 0u);
  EXPECT_EQ(board_[1].returned_chunks.load(), 2u);
  PeerDown();
}

TEST_F(RailSenderTest, DryIsToldWhileAnotherRailLags) {
  Give(stream_, 0, kMiB, 100);
  CarryAll();
  EXPECT_TRUE(Only(Kind::kDry, Take()).empty()) << "nobody lags";
  board_[0].speed_bytes_per_s = 1e9;
  board_[0].movable_bytes = kMiB;
  board_[0].unposted_bytes = 100 * kMiB;
  Post();
  EXPECT_TRUE(Only(Kind::kDry, Take()).empty()) << "it had no work since";
  GiveAndPost(stream_, kMiB, 8 * kMiB, 100);
  EXPECT_TRUE(Only(Kind::kDry, Take()).empty()) << "it has more to post";
  CarryAll();
  EXPECT_EQ(Only(Kind::kDry, Take()).size(), 1u);
}

TEST_F(RailSenderTest, AnUrgentExchangeOvertakesThoseBeforeIt) {
  GiveAndPost(stream_, 0, 8 * kMiB, 255);
  SendStream& urgent = NewStream();
  urgent.urgent = true;
  Give(urgent, 0, 3 * kMiB, 255);
  sender_->Release(&urgent, kMiB);
  const RailEvent returned = TakeOnly(Kind::kReturned);
  EXPECT_EQ(returned.length_bytes, kMiB);
  Give(urgent, 2 * kMiB, kMiB, returned.weight);
  EndAll(SendResult::kAcknowledged);
  Post();
  std::vector<const SendStream*> posted;
  for (const SendOrder& order : orders()) posted.push_back(order.stream);
  EXPECT_EQ(posted, (std::vector<const SendStream*>{&urgent, &urgent, &urgent, &stream_}));
  EXPECT_EQ(Weights()[2], 255) << "its fence does not wait for the others";
}

TEST_F(RailSenderTest, StretchesAreReported) {
  GiveAndPost(stream_, 0, 16 * kMiB, 255);
  while (!orders().empty()) {
    now_ += absl::Microseconds(300);
    End();
    Post();
  }
  const RailEvent stretch = TakeOnly(Kind::kStretch);
  EXPECT_EQ(stretch.length_bytes, 12 * kMiB) << "until nothing is left to be posted";
  EXPECT_EQ(stretch.nanoseconds, 12 * 300'000);
}

}  // namespace
}  // namespace railsd::testing
