// The engine's half of sending: what rails are given, asked and told.
#include "agent/jobs/sending.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/unit/agent/jobs/one_flow.h"
#include "tests/unit/agent/jobs/sending_fixture.h"
#include "tests/unit/agent/rails/stub_transport.h"

namespace railsd::testing {
namespace {

TEST_F(SendingTest, RailsAreGivenThePlanAndAllWeight) {
  const std::vector<Assignment> given = TakeAllGiven();
  ASSERT_EQ(given.size(), 2u);
  for (uint32_t r = 0; r < 2; ++r) {
    EXPECT_EQ(given[r].stream, &sending_->stream());
    EXPECT_EQ(given[r].offset_bytes, r * kPart);
    EXPECT_EQ(given[r].length_bytes, kPart);
    EXPECT_EQ(given[r].connection, 1u);
    EXPECT_EQ(given[r].round, 0u);
    EXPECT_EQ(handles_[r].given_bytes, kPart);
    EXPECT_EQ(sending_->stream().unposted_bytes[r].load(), kPart);
  }
  EXPECT_EQ(WeightOf(given), kWholeWeight);
  EXPECT_NEAR(given[0].weight, given[1].weight, 1);
  EXPECT_EQ(job_.resent_bytes, 0u);
  EXPECT_TRUE(sending_->held());
}

TEST_F(SendingTest, WeightComesWithTheLastStretchOfARail) {
  sending_.emplace(&context_, &job_, kPeer);
  sending_->SetStream(OneFlow(4 * kPart), MemoryRanges());
  TakeAllGiven();
  const PlanRun runs[] = {
      {0, RailIndex(1), 0, kPart}, {0, RailIndex(0), kPart, kPart}, {0, RailIndex(1), 2 * kPart, 5}};
  sending_->Start(runs, /*by_flow=*/false);
  const std::vector<Assignment> first = TakeGiven(0), second = TakeGiven(1);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].weight, 0);
  EXPECT_EQ(first[0].weight + second[1].weight, static_cast<int>(kWholeWeight));
}

TEST_F(SendingTest, IsOverWhenBothRailsHaveFenced) {
  CarryAll(0);
  EXPECT_FALSE(sending_->over());
  CarryAll(1);
  EXPECT_TRUE(sending_->over());
  EXPECT_FALSE(sending_->held());
}

TEST_F(SendingTest, ReturnedBytesGoToAnotherRailWithTheirWeight) {
  const std::vector<Assignment> given = TakeGiven(0);
  Disconnect(0);
  Return(0, 0, kPart, 0);
  EXPECT_TRUE(TakeGiven(1).size() == 1) << "its own; the rest waits for the end of rail 0's share";
  EndShare(0, /*doubtful=*/false, given[0].weight, 1);
  const std::vector<Assignment> moved = TakeGiven(1);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].offset_bytes, 0u);
  EXPECT_EQ(moved[0].length_bytes, kPart);
  EXPECT_EQ(moved[0].weight, given[0].weight);
  EXPECT_FALSE(sending_->InDoubt());
}

TEST_F(SendingTest, ABouncedAssignmentGoesToAnotherRail) {
  const std::vector<Assignment> given = TakeGiven(0);
  TakeGiven(1);
  Disconnect(0);
  Return(0, 0, kPart, given[0].weight, 0, /*settled=*/1);
  const std::vector<Assignment> moved = TakeGiven(1);
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].weight, given[0].weight);
}

TEST_F(SendingTest, MovedBytesGoToTheRailTheyAreFor) {
  StartPosted(3);
  ASSERT_TRUE(sending_->Move(0, 2, 1000));
  EXPECT_FALSE(sending_->Move(1, 2, 1000)) << "one release at a time";
  const std::vector<RailCommand> releases = TakeReleases(0);
  ASSERT_EQ(releases.size(), 1u);
  EXPECT_EQ(releases[0].release_bytes, 1000u);
  EXPECT_EQ(releases[0].give.stream, &sending_->stream());
  Return(0, kPart - 1000, 600, 0);
  Return(0, kPart - 400, 400, 11);
  EXPECT_TRUE(NothingGiven());
  Report(0, Of(Kind::kReleased));
  const std::vector<Assignment> given = TakeGiven(2);
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(BytesOf(given), 1000u);
  EXPECT_EQ(given[0].weight, 0);
  EXPECT_EQ(given[1].weight, 11);
  EXPECT_TRUE(NothingGiven());
  EXPECT_TRUE(sending_->Move(1, 2, 1000));
}

TEST_F(SendingTest, NothingMovesWhileAFailureIsOpen) {
  StartPosted(3);
  Disconnect(0);
  EXPECT_FALSE(sending_->Move(1, 2, 1000));
  Lose(0, 0, kPart);
  EndShare(0, /*doubtful=*/true, 0, 1);
  Ask();
  EXPECT_FALSE(sending_->Move(1, 2, 1000));
}

TEST_F(SendingTest, ADrainedRailIsAskedOnceForAllThatItHasNotPosted) {
  TakeAllGiven();
  Set(&peers_->Get(kPeer).usable, 0, false);
  sending_->OnPathsChanged();
  const std::vector<RailCommand> releases = TakeReleases(0);
  ASSERT_EQ(releases.size(), 1u);
  EXPECT_EQ(releases[0].release_bytes, UINT64_MAX);
  Return(0, 100, kPart - 100, 127);
  Report(0, Of(Kind::kReleased));
  EXPECT_TRUE(TakeReleases(0).empty());
  const std::vector<Assignment> given = TakeGiven(1);
  EXPECT_EQ(BytesOf(given), kPart - 100);
  EXPECT_EQ(WeightOf(given), 127u);
}

TEST_F(SendingTest, ADrainedRailThatKeepsItsBytesIsNotAskedAgain) {
  TakeAllGiven();
  Set(&peers_->Get(kPeer).usable, 0, false);
  sending_->OnPathsChanged();
  EXPECT_EQ(TakeReleases(0).size(), 1u);
  Report(0, Of(Kind::kReleased));  // its weight is 1
  Report(1, Of(Kind::kSettled, 1));
  EXPECT_TRUE(TakeReleases(0).empty());
}

// The request names the stream: it must not be freed before.
TEST_F(SendingTest, IsHeldUntilARequestToReleaseIsAnswered) {
  TakeAllGiven();
  ASSERT_TRUE(sending_->Move(0, 1, 100));
  Fence(0, 128, 0, 1);
  Fence(1, 127, 0, 1);
  EXPECT_TRUE(sending_->over());
  EXPECT_TRUE(sending_->held());
  Report(0, Of(Kind::kReleased, 1));
  EXPECT_FALSE(sending_->held());
}

// The rail has settled its share, and hears of the request later.
TEST_F(SendingTest, IsHeldWhileARequestToReleaseWaitsForRoomInTheQueue) {
  TakeAllGiven();
  ports_[0].refuse = true;
  ASSERT_TRUE(sending_->Move(0, 1, 100));
  EXPECT_TRUE(handles_[0].overflowing());
  Fence(0, 128, 0, 1);
  Fence(1, 127, 0, 1);
  EXPECT_TRUE(sending_->over());
  EXPECT_TRUE(sending_->held());
  ports_[0].refuse = false;
  handles_[0].Pump();
  std::vector<RailCommand> late = TakeReleases(0);
  ASSERT_EQ(late.size(), 1u);
  EXPECT_TRUE(sending_->held()) << "the rail is about to read the stream";
  StubTransport transport;
  RailSender rail(RailIndex(0), {.speed_bytes_per_s = 1e9}, board_.get(), &transport);
  Apply(late[0], now_, &rail, /*binder=*/nullptr);
  std::array<RailEvent, 2> reports;
  ASSERT_EQ(rail.reports().Take(absl::MakeSpan(reports)), 1u);
  sending_->OnReport(RailIndex(0), reports[0]);
  EXPECT_FALSE(sending_->held());
}

// Every rail that posts must fence.
TEST_F(SendingTest, NoMoreRailsThanWeight) {
  StartPosted(4);
  Disconnect(0);
  for (int i = 0; i < 3; ++i) Return(0, static_cast<uint64_t>(i) * 1000, 1000, 0);
  EndShare(0, /*doubtful=*/false, 2, 1);
  uint32_t rails = 0, weight = 0;
  for (uint32_t r = 1; r < 4; ++r) {
    const std::vector<Assignment> given = TakeGiven(r);
    if (given.empty()) continue;
    ++rails;
    weight += WeightOf(given);
    EXPECT_GT(given.back().weight, 0u);
  }
  EXPECT_LE(rails, 2u);
  EXPECT_EQ(weight, 2u);
}

TEST_F(SendingTest, ReturnedStretchesAreSpreadOverTheOtherRails) {
  StartPosted(4);
  Disconnect(0);
  for (uint64_t i = 0; i < 9; ++i) Return(0, i * 1000, 1000, 0);
  EndShare(0, /*doubtful=*/false, 60, 1);
  for (uint32_t r = 1; r < 4; ++r) EXPECT_EQ(BytesOf(TakeGiven(r)), 3000u) << "rail " << r;
}

TEST_F(SendingTest, BytesWaitForARail) {
  TakeAllGiven();
  Disconnect(1);
  Return(1, kPart, kPart, 0);
  Disconnect(0);
  EndShare(1, /*doubtful=*/false, 127, 1);
  EXPECT_TRUE(NothingGiven());
  Return(0, 0, kPart, 0);
  EndShare(0, /*doubtful=*/false, 128, 1);
  EXPECT_TRUE(NothingGiven());
  EXPECT_FALSE(sending_->held());
  Reconnect(1);
  const std::vector<Assignment> given = TakeGiven(1);
  EXPECT_EQ(BytesOf(given), 2 * kPart);
  EXPECT_EQ(WeightOf(given), kWholeWeight);
  EXPECT_EQ(given[0].connection, 2u);
}

TEST_F(SendingTest, StopDropsEverything) {
  TakeAllGiven();
  sending_->Stop();
  for (RecordingPort& port : ports_) EXPECT_EQ(port.Take(RailCommand::Kind::kDrop).size(), 1u);
  Return(0, 0, kPart, 128);
  EXPECT_TRUE(NothingGiven()) << "nothing is given any more";
  EXPECT_TRUE(sending_->held());
  Report(0, Of(Kind::kSettled, 1));
  Disconnect(1);
  EndShare(1, /*doubtful=*/true, 0, 1);
  EXPECT_FALSE(sending_->InDoubt()) << "the receiver is not asked";
  EXPECT_FALSE(sending_->held());
  EXPECT_EQ(sending_->failed(), (Connections{{RailIndex(1), 1}}));
}

TEST_F(SendingTest, GiveUpEndsIt) {
  TakeAllGiven();
  FailAndAsk(0);
  sending_->GiveUp();
  EXPECT_TRUE(sending_->over());
  EXPECT_FALSE(sending_->asked());
  EXPECT_FALSE(sending_->InDoubt());
  EXPECT_TRUE(sending_->held());
  EXPECT_EQ(ports_[1].Take(RailCommand::Kind::kDrop).size(), 1u);
}

}  // namespace
}  // namespace railsd::testing
