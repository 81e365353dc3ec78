#include "daemon/peer/outbox.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/seeds.h"

namespace railsd {
namespace {

std::shared_ptr<const int> Message(int value) { return std::make_shared<const int>(value); }

TEST(OutboxTest, NumbersFromOneAndSendsInOrder) {
  Outbox<int> box({});
  EXPECT_EQ(box.next_number(), 1u);
  EXPECT_EQ(box.NextToSend(), nullptr);
  ASSERT_TRUE(box.Push(Message(7), 10));
  ASSERT_TRUE(box.Push(Message(8), 20));
  EXPECT_EQ(box.bytes(), 30u);
  EXPECT_EQ(box.NextToSend()->number, 1u);
  box.MarkSent();
  EXPECT_EQ(*box.NextToSend()->message, 8);
  box.MarkSent();
  EXPECT_EQ(box.NextToSend(), nullptr);
  EXPECT_TRUE(box.Acknowledge(1));
  EXPECT_EQ(box.unacknowledged(), 1u);
  EXPECT_EQ(box.bytes(), 20u);
}

TEST(OutboxTest, RefusesPastItsBoundsAndTakesNothing) {
  Outbox<int> box({2, 100});
  EXPECT_FALSE(box.Push(Message(1), 101));
  EXPECT_EQ(box.next_number(), 1u);
  EXPECT_TRUE(box.Push(Message(1), 50));
  EXPECT_TRUE(box.Push(Message(2), 50));
  EXPECT_FALSE(box.Push(Message(3), 0));
  box.MarkSent();
  EXPECT_TRUE(box.Acknowledge(1));
  EXPECT_FALSE(box.Push(Message(3), 51));
  EXPECT_TRUE(box.Push(Message(3), 50));
}

TEST(OutboxTest, RewindSendsAgainWhatWasNotAcknowledged) {
  Outbox<int> box({});
  for (int i = 1; i <= 5; ++i) box.Push(Message(i), 1);
  for (int i = 0; i < 4; ++i) box.MarkSent();
  ASSERT_TRUE(box.Rewind(2));
  EXPECT_EQ(box.NextToSend()->number, 3u);
  box.MarkSent();
  // The receiver may have taken more on the old stream than was written on this one.
  EXPECT_TRUE(box.Acknowledge(4));
  EXPECT_EQ(box.NextToSend()->number, 5u);
}

TEST(OutboxTest, AnAcknowledgementOfWhatWasNeverSentIsRefused) {
  Outbox<int> box({});
  EXPECT_TRUE(box.Acknowledge(0));
  EXPECT_FALSE(box.Acknowledge(1));
  box.Push(Message(1), 1);
  EXPECT_FALSE(box.Acknowledge(1));
  EXPECT_FALSE(box.Rewind(1));
  box.MarkSent();
  EXPECT_TRUE(box.Acknowledge(1));
  EXPECT_FALSE(box.Rewind(0)) << "a receiver that forgets";
  EXPECT_TRUE(box.Rewind(1));
}

TEST(OutboxTest, ResetIsANewLife) {
  Outbox<int> box({});
  box.Push(Message(1), 5);
  box.MarkSent();
  box.Reset();
  EXPECT_EQ(box.next_number(), 1u);
  EXPECT_EQ(box.bytes(), 0u);
  EXPECT_EQ(box.NextToSend(), nullptr);
  EXPECT_FALSE(box.Acknowledge(1));
}

TEST(InboxTest, TakesInOrderEachOnce) {
  Inbox inbox;
  EXPECT_EQ(inbox.Receive(0), Inbox::Verdict::kOutOfOrder);
  EXPECT_EQ(inbox.Receive(2), Inbox::Verdict::kOutOfOrder);
  EXPECT_EQ(inbox.Receive(1), Inbox::Verdict::kTake);
  EXPECT_EQ(inbox.Receive(1), Inbox::Verdict::kDuplicate);
  EXPECT_EQ(inbox.Receive(2), Inbox::Verdict::kTake);
  EXPECT_EQ(inbox.taken(), 2u);
}

// A sender and a receiver over a wire that breaks at random: whatever is lost with a stream comes again, in order,
// each once.
TEST(OutboxTest, SurvivesRandomBreaks) {
  std::mt19937_64 random = testing::SeededRandom();
  Outbox<int> box({});
  Inbox inbox;
  std::vector<int> taken;
  std::deque<std::pair<uint64_t, int>> wire;
  std::deque<uint64_t> acknowledgements;
  int pushed = 0;
  while (taken.size() < 2000) {
    switch (random() % 6) {
      case 0:
        if (pushed < 2000) box.Push(Message(++pushed), 1);
        break;
      case 1:
        if (const auto* entry = box.NextToSend()) {
          wire.emplace_back(entry->number, *entry->message);
          box.MarkSent();
        }
        break;
      case 2:
        if (!wire.empty()) {
          const Inbox::Verdict verdict = inbox.Receive(wire.front().first);
          ASSERT_NE(verdict, Inbox::Verdict::kOutOfOrder);
          if (verdict == Inbox::Verdict::kTake) taken.push_back(wire.front().second);
          wire.pop_front();
        }
        break;
      case 3:
        acknowledgements.push_back(inbox.taken());
        break;
      case 4:
        if (!acknowledgements.empty()) {
          ASSERT_TRUE(box.Acknowledge(acknowledgements.front()));
          acknowledgements.pop_front();
        }
        break;
      case 5:
        if (random() % 10 != 0) break;
        wire.clear();
        acknowledgements.clear();
        ASSERT_TRUE(box.Rewind(inbox.taken()));
        break;
    }
  }
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(taken[static_cast<size_t>(i)], i + 1);
}

}  // namespace
}  // namespace railsd
