// The engine's half of sending when rails fail: doubts, questions to the receiver, rounds.
#include <gtest/gtest.h>

#include <vector>

#include "agent/jobs/sending.h"
#include "tests/unit/agent/jobs/sending_fixture.h"

namespace railsd::testing {
namespace {

TEST_F(SendingTest, WeightOfARailInDoubtStaysBehind) {
  FailPosted(0);
  Return(0, 7, 5, 100);  // an assignment that came too late
  TakeGiven(1);
  CarryAll(1);
  EXPECT_EQ(WeightOf(TakeAllGiven()), 0u);
  EXPECT_FALSE(sending_->over());
  EXPECT_TRUE(sending_->MayAsk());
}

TEST_F(SendingTest, IsNotAskedAboutBeforeEverythingHasComeBack) {
  Lose(0, 0, kPart);
  EXPECT_FALSE(sending_->MayAsk());
  Disconnect(0);
  EXPECT_FALSE(sending_->MayAsk()) << "its share has not ended";
  EndShare(0, /*doubtful=*/true, 0, 1);
  EXPECT_TRUE(sending_->InDoubt());
  EXPECT_EQ(Ask(), (Connections{{RailIndex(0), 1}}));
  EXPECT_EQ(sending_->failed(), (Connections{{RailIndex(0), 1}}));
}

TEST_F(SendingTest, LostBytesAreNotSentAgainUnasked) {
  TakeGiven(1);
  FailPosted(0);
  Reconnect(0);
  EXPECT_TRUE(NothingGiven());
  Ask();
  EXPECT_TRUE(NothingGiven());
}

TEST_F(SendingTest, AFailedRailGetsNothingBeforeTheAnswer) {
  StartOver(3);
  TakeGiven(1);
  TakeGiven(2);
  FailPosted(0);
  Reconnect(0);
  EXPECT_EQ(sending_->Usable() & RailBit(0), 0u);
  Return(1, kPart + 10, 90, 5);
  EXPECT_TRUE(TakeGiven(0).empty());
  EXPECT_EQ(BytesOf(TakeAllGiven()), 90u);
  Ask();
  Return(1, kPart + 100, 90, 5);
  EXPECT_TRUE(TakeGiven(0).empty());
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  EXPECT_NE(sending_->Usable() & RailBit(0), 0u);
}

TEST_F(SendingTest, ANewRoundSpreadsTheWeightOverLostBytesAndRailsThatHoldSome) {
  StartPosted(3);
  FailAndAsk(0);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  const std::vector<Assignment> first = TakeGiven(1), second = TakeGiven(2);
  EXPECT_GT(WeightOf(first), 0u);
  EXPECT_GT(WeightOf(second), 0u);
  EXPECT_EQ(WeightOf(first) + WeightOf(second), kWholeWeight);
  EXPECT_EQ(BytesOf(first) + BytesOf(second), kPart);
  for (const Assignment& assignment : first) EXPECT_EQ(assignment.round, 1u);
  EXPECT_EQ(job_.resent_bytes, kPart);
  Fence(1, 85, 0, 1);
  EXPECT_FALSE(sending_->over()) << "a fence of the round before proves nothing";
  Fence(1, WeightOf(first), 1, static_cast<uint32_t>(first.size()));
  Fence(2, WeightOf(second), 1, static_cast<uint32_t>(second.size()) + 1);
  EXPECT_TRUE(sending_->over());
  EXPECT_FALSE(sending_->held());
}

TEST_F(SendingTest, ARailThatIsDoneWithItsBytesGetsNoWeight) {
  StartOver(3);
  CarryAll(1);
  TakeAllGiven();
  FailAndAsk(0);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  EXPECT_EQ(WeightOf(TakeAllGiven()), kWholeWeight);
}

TEST_F(SendingTest, WithoutBytesAnyRailFencesWithAllWeight) {
  CarryAll(1);
  TakeGiven(0);
  Posted(0, kPart);
  Done(0, kPart);
  Carried(0, kPart);
  Disconnect(0);
  EndShare(0, /*doubtful=*/true, 0, 1);  // its fence was lost
  Ask();
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  const std::vector<Assignment> given = TakeGiven(1);
  ASSERT_EQ(given.size(), 1u);
  EXPECT_EQ(given[0].length_bytes, 0u);
  EXPECT_EQ(given[0].weight, kWholeWeight);
  Fence(1, kWholeWeight, 1, 1);
  EXPECT_TRUE(sending_->over());
}

TEST_F(SendingTest, AFailureDuringTheQuestionIsAskedAboutNext) {
  StartPosted(3);
  FailPosted(0);
  EXPECT_EQ(Ask(), (Connections{{RailIndex(0), 1}}));
  FailPosted(1);
  EXPECT_FALSE(sending_->MayAsk()) << "one question at a time";
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  EXPECT_TRUE(NothingGiven()) << "the receiver is asked about rail 1 first";
  EXPECT_EQ(Ask(), (Connections{{RailIndex(1), 1}}));
  Fence(2, 85, 1, 0);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 2).ok());
  const std::vector<Assignment> given = TakeGiven(2);
  EXPECT_EQ(BytesOf(given), 2 * kPart);
  EXPECT_EQ(WeightOf(given), kWholeWeight);
  Fence(2, kWholeWeight, 2, static_cast<uint32_t>(given.size()) + 1);
  EXPECT_TRUE(sending_->over());
}

TEST_F(SendingTest, FencesProveNothingWhileAnAnswerIsAwaited) {
  const uint32_t weight = WeightOf(TakeGiven(1));
  FailAndAsk(0);
  Fence(1, weight, 0, 1);
  EXPECT_FALSE(sending_->held());
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  const std::vector<Assignment> given = TakeGiven(1);
  EXPECT_EQ(WeightOf(given), kWholeWeight);
}

TEST_F(SendingTest, TheSpreadWaitsForAnAnswerToARelease) {
  StartPosted(3);
  ASSERT_TRUE(sending_->Move(1, 2, 1000));
  FailAndAsk(0);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  EXPECT_TRUE(NothingGiven());
  Return(1, 2 * kPart - 1000, 1000, 9);
  EXPECT_TRUE(NothingGiven());
  Report(1, Of(Kind::kReleased));
  const std::vector<Assignment> given = TakeAllGiven();
  EXPECT_EQ(BytesOf(given), kPart + 1000);
  EXPECT_EQ(WeightOf(given), kWholeWeight) << "weight 9 of round 0 is void";
}

TEST_F(SendingTest, TheSpreadWaitsForRailsThatAreEnding) {
  StartPosted(3);
  FailAndAsk(0);
  Disconnect(1);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  EXPECT_TRUE(NothingGiven());
  Return(1, kPart, kPart, 0);
  EndShare(1, /*doubtful=*/false, 85, 1);
  const std::vector<Assignment> given = TakeGiven(2);
  EXPECT_EQ(BytesOf(given), 2 * kPart);
  EXPECT_EQ(WeightOf(given), kWholeWeight);
}

TEST_F(SendingTest, CompleteIsALieWhileBytesAreUnposted) {
  FailAndAsk(0);
  EXPECT_EQ(Answer(Rehomed::State::kComplete).code(), absl::StatusCode::kInternal);
}

TEST_F(SendingTest, CompleteEndsItWhenRailsHaveNothingOutstanding) {
  TakeGiven(1);
  Posted(1, kPart);
  FailAndAsk(0);
  EXPECT_FALSE(sending_->AnyArrived()) << "nobody knows";
  ASSERT_TRUE(Answer(Rehomed::State::kComplete).ok());
  EXPECT_TRUE(sending_->over());
  EXPECT_TRUE(sending_->held()) << "rail 1 reads its memory";
  ASSERT_TRUE(sending_->AnyArrived());
  const std::vector<Sending::Lost> arrived = sending_->TakeArrived();
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].rail, RailIndex(0));
  EXPECT_EQ(arrived[0].length_bytes, kPart);
  EXPECT_EQ(ports_[1].Take(RailCommand::Kind::kDrop).size(), 1u);
  Report(1, Of(Kind::kSettled, 1));
  EXPECT_FALSE(sending_->held());
}

TEST_F(SendingTest, AnswersMustFit) {
  FailAndAsk(0);
  EXPECT_EQ(Answer(Rehomed::State::kOpen, 2).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Answer(Rehomed::State::kAborted).code(), absl::StatusCode::kUnavailable);
}

TEST_F(SendingTest, RoundsAreFruitlessUntilSomethingArrives) {
  TakeAllGiven();
  FailAndAsk(0);
  EXPECT_EQ(sending_->fruitless_rounds(), 0u);
  ASSERT_TRUE(Answer(Rehomed::State::kOpen, 1).ok());
  EXPECT_EQ(sending_->fruitless_rounds(), 1u);
  EXPECT_EQ(sending_->fruitless_since(), now_);
  Carried(1, kPart);
  EXPECT_EQ(sending_->fruitless_rounds(), 0u);
  EXPECT_EQ(sending_->fruitless_since(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace railsd::testing
