#include "daemon/link/outbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace railsd {
namespace {

Epoch EpochAt(uint64_t n) { return {BootId(1), n}; }
std::string Framed(absl::string_view body) { return absl::StrCat(FrameWithoutHeader(), body); }
std::string LongMessage(size_t frames = 2) { return Framed(std::string((frames - 1) * kMaxFrameBody + 1, 'x')); }

struct Decoded {
  FrameKind kind;
  uint64_t number;
  std::string body;
};
Decoded Decode(const std::string& frame) {
  uint64_t number = 0;
  for (size_t i = 0; i < 8; ++i) number |= uint64_t{static_cast<uint8_t>(frame[5 + i])} << (8 * i);
  return {static_cast<FrameKind>(frame[4]), number, frame.substr(kFrameHeaderBytes)};
}
// Writes up to `most` frames and returns their numbers.
std::vector<uint64_t> WriteFrames(Outbox* box, size_t most = ~size_t{0}) {
  std::vector<uint64_t> numbers;
  for (Outbox::FramePtr frame; numbers.size() < most && (frame = box->Next()) != nullptr; box->MarkSent()) {
    numbers.push_back(Decode(*frame).number);
  }
  return numbers;
}
using Numbers = std::vector<uint64_t>;

TEST(OutboxTest, NumbersFromOneAndKeepsUntilItIsAcknowledged) {
  Outbox box({});
  EXPECT_EQ(box.Next(), nullptr);
  ASSERT_TRUE(box.Push(Framed("seven"), std::nullopt));
  ASSERT_TRUE(box.Push(Framed(""), EpochAt(1)));
  const Decoded first = Decode(*box.Next());
  EXPECT_EQ(first.kind, FrameKind::kMessage);
  EXPECT_EQ(first.body, "seven");
  EXPECT_EQ(WriteFrames(&box), (Numbers{1, 2}));
  EXPECT_EQ(box.messages(), 2u);
  EXPECT_EQ(box.bytes(), 2 * kFrameHeaderBytes + 5);
  EXPECT_TRUE(box.Acknowledge(1));
  EXPECT_TRUE(box.Acknowledge(1));
  EXPECT_EQ(box.bytes(), kFrameHeaderBytes);
  EXPECT_TRUE(box.Acknowledge(2));
  EXPECT_EQ(box.bytes() + box.messages(), 0u);
}

TEST(OutboxTest, RefusesPastItsBoundsAndTakesNothing) {
  Outbox box({2, 100});
  EXPECT_FALSE(box.Push(std::string(101, 'x'), std::nullopt));
  EXPECT_TRUE(box.Push(std::string(50, 'x'), std::nullopt));
  EXPECT_TRUE(box.Push(std::string(50, 'x'), std::nullopt));
  EXPECT_FALSE(box.Push(FrameWithoutHeader(), std::nullopt));
  EXPECT_EQ(box.bytes(), 100u);
  EXPECT_EQ(WriteFrames(&box), (Numbers{1, 2}));
  EXPECT_TRUE(box.Acknowledge(1));
  EXPECT_FALSE(box.Push(std::string(51, 'x'), std::nullopt));
  EXPECT_TRUE(box.Push(std::string(50, 'x'), std::nullopt));
}

TEST(OutboxTest, ReceiptsComeOnceWithTheLastFrameOfTheirMessage) {
  const JobKey one{EpochAt(1), JobSeq(1)}, two{EpochAt(1), JobSeq(2)};
  using Receipts = std::vector<JobKey>;
  Outbox box({});
  ASSERT_TRUE(box.Push(Framed("before"), EpochAt(1)));
  ASSERT_TRUE(box.Push(LongMessage(2), EpochAt(1), one));
  ASSERT_TRUE(box.Push(Framed("behind it"), EpochAt(1), two));
  EXPECT_EQ(WriteFrames(&box), (Numbers{1, 2, 3, 4}));
  EXPECT_TRUE(box.Acknowledge(2));
  EXPECT_EQ(box.TakeReceipts(), Receipts{});
  EXPECT_TRUE(box.Acknowledge(3));
  EXPECT_EQ(box.TakeReceipts(), Receipts{one});
  // A new connection says what the other end has taken meanwhile, and the acknowledgement may come again.
  EXPECT_TRUE(box.Rewind(4));
  EXPECT_EQ(box.TakeReceipts(), Receipts{two});
  EXPECT_TRUE(box.Acknowledge(4));
  EXPECT_EQ(box.TakeReceipts(), Receipts{});
  ASSERT_TRUE(box.Push(Framed("of a link that ends"), EpochAt(1), one));
  EXPECT_EQ(WriteFrames(&box), Numbers{5});
  box.Reset();
  ASSERT_TRUE(box.Push(Framed("of the next one"), EpochAt(1)));
  EXPECT_EQ(WriteFrames(&box), Numbers{1});
  EXPECT_TRUE(box.Acknowledge(1));
  EXPECT_EQ(box.TakeReceipts(), Receipts{});
}

TEST(OutboxTest, AMessageThatFillsAFrameIsNotCut) {
  Outbox box({});
  ASSERT_TRUE(box.Push(Framed(std::string(kMaxFrameBody, 'x')), EpochAt(1)));
  EXPECT_EQ(Decode(*box.Next()).kind, FrameKind::kMessage);
  EXPECT_EQ(WriteFrames(&box), Numbers{1});
}

TEST(OutboxTest, RewindSendsAgainWhatWasNotAcknowledgedAlsoParts) {
  for (uint64_t written = 0; written <= 7; ++written) {
    for (uint64_t taken = 0; taken <= written; ++taken) {
      Outbox box({});
      std::string message = Framed("");
      for (size_t i = 0; i < 4 * kMaxFrameBody + 1; ++i) message.push_back(static_cast<char>(i * 31 + i / 256));
      ASSERT_TRUE(box.Push(Framed("first"), EpochAt(1)));
      ASSERT_TRUE(box.Push(message, EpochAt(1)));
      ASSERT_TRUE(box.Push(Framed("last"), EpochAt(1)));
      std::map<uint64_t, Decoded> received;
      const auto write = [&] {
        const Decoded sent = Decode(*box.Next());
        received[sent.number] = sent;
        box.MarkSent();
        return sent.number;
      };
      for (uint64_t i = 1; i <= written; ++i) ASSERT_EQ(write(), i);
      ASSERT_TRUE(box.Rewind(taken));
      for (uint64_t i = taken + 1; i <= 7; ++i) {
        ASSERT_EQ(write(), i);
        // The receiver may have taken more on the earlier connection than was written on this one.
        if (i > taken + 1) continue;
        ASSERT_TRUE(box.Acknowledge(written));
        i = std::max(i, written);
      }
      ASSERT_EQ(box.Next(), nullptr);
      std::string whole;
      for (uint64_t i = 2; i <= 6; ++i) {
        EXPECT_EQ(received[i].kind, i < 6 ? FrameKind::kPart : FrameKind::kLastPart);
        whole += received[i].body;
      }
      EXPECT_TRUE(Framed(whole) == message);
      EXPECT_EQ(received[7].body, "last");
      ASSERT_TRUE(box.Acknowledge(7));
      EXPECT_EQ(box.bytes() + box.messages(), 0u);
    }
  }
}

TEST(OutboxTest, AnAcknowledgementOfWhatWasNeverWrittenIsRefused) {
  Outbox box({});
  EXPECT_TRUE(box.Acknowledge(0));
  EXPECT_FALSE(box.Acknowledge(1));
  ASSERT_TRUE(box.Push(LongMessage(), EpochAt(1)));
  EXPECT_FALSE(box.Acknowledge(1));
  EXPECT_FALSE(box.Rewind(1));
  EXPECT_EQ(WriteFrames(&box, 1), Numbers{1});
  EXPECT_FALSE(box.Acknowledge(2)) << "the second part has no number yet";
  EXPECT_TRUE(box.Rewind(0));
  EXPECT_FALSE(box.Rewind(2));
  EXPECT_TRUE(box.Acknowledge(1)) << "over the connection before";
  EXPECT_EQ(WriteFrames(&box), Numbers{2});
  EXPECT_FALSE(box.Acknowledge(~uint64_t{0}));
}

TEST(OutboxTest, ResetIsANewLife) {
  Outbox box({});
  ASSERT_TRUE(box.Push(LongMessage(3), std::nullopt));
  ASSERT_TRUE(box.Push(Framed("a"), EpochAt(1)));
  WriteFrames(&box, 2);
  box.Reset();
  EXPECT_EQ(box.bytes() + box.messages(), 0u);
  EXPECT_EQ(box.Next(), nullptr);
  EXPECT_FALSE(box.Acknowledge(1));
  ASSERT_TRUE(box.Push(Framed("b"), EpochAt(1)));
  EXPECT_EQ(Decode(*box.Next()).number, 1u) << "nothing waits any more";
}

TEST(OutboxTest, JobsOfOthersGoBetweenThePartsAndNobodyElse) {
  Outbox box({});
  ASSERT_TRUE(box.Push(LongMessage(), EpochAt(1)));
  WriteFrames(&box, 1);
  ASSERT_TRUE(box.Push(Framed("other"), EpochAt(2)));
  ASSERT_TRUE(box.Push(Framed("same"), EpochAt(1)));
  ASSERT_TRUE(box.Push(Framed("third"), EpochAt(3)));
  ASSERT_TRUE(box.Push(Framed("none"), std::nullopt));
  ASSERT_TRUE(box.Push(Framed("after none"), EpochAt(2)));
  std::vector<std::string> order;
  for (Outbox::FramePtr frame; (frame = box.Next()) != nullptr; box.MarkSent()) order.push_back(Decode(*frame).body);
  EXPECT_EQ(order, (std::vector<std::string>{"other", "third", "x", "same", "none", "after none"}));
}

TEST(InboxTest, TakesInOrderEachOnce) {
  Inbox inbox;
  EXPECT_EQ(inbox.Receive(0), Inbox::Verdict::kOutOfOrder);
  EXPECT_EQ(inbox.Receive(2), Inbox::Verdict::kOutOfOrder);
  EXPECT_EQ(inbox.Receive(1), Inbox::Verdict::kTake);
  EXPECT_EQ(inbox.Receive(1), Inbox::Verdict::kDuplicate);
  EXPECT_EQ(inbox.Receive(0), Inbox::Verdict::kOutOfOrder);
  EXPECT_EQ(inbox.Receive(2), Inbox::Verdict::kTake);
  EXPECT_EQ(inbox.taken(), 2u);
}

TEST(InboxTest, AssemblesUpToItsBound) {
  Inbox inbox;
  EXPECT_FALSE(inbox.AddPart("", 5).ok());
  EXPECT_TRUE(inbox.AddPart("abc", 5).ok());
  EXPECT_EQ(inbox.AddPart("def", 5), absl::InvalidArgumentError("a message in parts of 3 and 3 bytes, outside 1 to 5"));
  EXPECT_FALSE(inbox.AddPart("d", 2).ok());
  EXPECT_TRUE(inbox.AddPart("de", 5).ok());
  EXPECT_EQ(inbox.TakeWhole(), "abcde");
  EXPECT_EQ(inbox.TakeWhole(), "");
  ASSERT_TRUE(inbox.AddPart("x", 5).ok());
  inbox.Reset();
  EXPECT_EQ(inbox.TakeWhole(), "");
}

}  // namespace
}  // namespace railsd
