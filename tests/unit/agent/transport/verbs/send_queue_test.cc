#include "agent/transport/verbs/send_queue.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "agent/transport/verbs/fence.h"
#include "agent/transport/verbs/last_receives.h"
#include "agent/transport/verbs/work_request_id.h"
#include "tests/support/seeds.h"

namespace railsd::verbs {
namespace {

TEST(SendQueue, TakesNoMoreThanItsDepth) {
  CompletionRoom room(100);
  SendQueue queue(4, &room);
  for (int i = 0; i < 4; ++i) {
    ASSERT_GT(queue.Free(), 0u);
    queue.Next();
  }
  EXPECT_EQ(queue.Free(), 0u);
  EXPECT_EQ(room.free(), 96u);
  EXPECT_TRUE(queue.Complete(2));
  EXPECT_EQ(queue.Free(), 2u);
  EXPECT_TRUE(queue.IsDone(2));
  EXPECT_FALSE(queue.IsDone(3));
}

TEST(SendQueue, SharesTheCompletionQueue) {
  CompletionRoom room(5);
  SendQueue a(4, &room);
  {
    SendQueue b(4, &room);
    for (int i = 0; i < 3; ++i) a.Next();
    EXPECT_EQ(b.Free(), 2u);
    b.Next();
    b.Next();
    EXPECT_EQ(a.Free(), 0u);
  }
  EXPECT_EQ(a.Free(), 1u) << "a queue pair that goes gives its places back";
}

TEST(SendQueue, HalfOfItIsNeverWithoutASignal) {
  CompletionRoom room(100);
  for (const uint32_t depth : {1u, 2u, 3u, 8u, 9u}) {
    SendQueue queue(depth, &room);
    uint32_t silent = 0;
    for (uint32_t i = 0; i < depth; ++i) {
      queue.Next();
      silent = queue.MustSignal() ? 0 : silent + 1;
      EXPECT_LT(2 * silent, depth) << "depth " << depth;
    }
  }
}

TEST(SendQueue, AnExplicitSignalCounts) {
  CompletionRoom room(100);
  SendQueue queue(8, &room);
  for (int i = 0; i < 3; ++i) queue.Next();
  EXPECT_FALSE(queue.MustSignal());
  queue.Signal();
  for (int i = 0; i < 3; ++i) {
    queue.Next();
    EXPECT_FALSE(queue.MustSignal());
  }
  queue.Next();
  EXPECT_TRUE(queue.MustSignal());
}

TEST(SendQueue, RefusedOnesNeverHappened) {
  CompletionRoom room(10);
  SendQueue queue(8, &room);
  for (int i = 0; i < 5; ++i) queue.Next();
  queue.Unpost(3);
  EXPECT_EQ(queue.outstanding(), 2u);
  EXPECT_EQ(room.free(), 8u);
  EXPECT_EQ(queue.Next(), 3u);
  EXPECT_FALSE(queue.Complete(4));
  EXPECT_TRUE(queue.Complete(3));
  EXPECT_EQ(room.free(), 10u);
}

TEST(SendQueue, CompletionsOfNothingAreRefused) {
  CompletionRoom room(10);
  SendQueue queue(8, &room);
  EXPECT_FALSE(queue.Complete(0));
  EXPECT_FALSE(queue.Complete(1));
  queue.Next();
  EXPECT_TRUE(queue.Complete(1));
  EXPECT_FALSE(queue.Complete(1)) << "twice";
  EXPECT_FALSE(queue.Complete(0xffffffff));
}

TEST(SendQueue, AgainstAModel) {
  std::mt19937_64 random = testing::SeededRandom();
  CompletionRoom room(60);
  SendQueue queue(40, &room);
  std::deque<uint32_t> outstanding;
  uint32_t next = 1;
  for (int i = 0; i < 100000; ++i) {
    if (random() % 2 == 0 && queue.Free() > 0) {
      ASSERT_EQ(queue.Next(), next);
      outstanding.push_back(next++);
    } else if (!outstanding.empty()) {
      const size_t at = random() % outstanding.size();
      ASSERT_TRUE(queue.Complete(outstanding[at]));
      outstanding.erase(outstanding.begin(), outstanding.begin() + static_cast<ptrdiff_t>(at) + 1);
    }
    ASSERT_EQ(queue.outstanding(), outstanding.size());
    ASSERT_EQ(queue.Free(), 40 - outstanding.size());
    ASSERT_EQ(room.free(), 60 - outstanding.size());
  }
}

TEST(WorkRequestId, RoundTrip) {
  for (const auto kind : {WorkRequestId::Kind::kSend, WorkRequestId::Kind::kDrain, WorkRequestId::Kind::kReceive}) {
    for (const uint32_t queue_pair : {0u, 1u, 0xffffffu}) {
      for (const uint32_t sequence : {0u, 1u, 0xffffffffu}) {
        const WorkRequestId id{kind, QueuePairId(queue_pair), sequence};
        EXPECT_EQ(DecodeWorkRequestId(Encode(id)), id);
      }
    }
  }
}

TEST(Fence, EveryFieldHasItsBits) {
  EXPECT_EQ(EncodeFence({0xabcd, 0xe, 0x5, 0x7f}), 0xabcde57fu);
  for (const uint32_t immediate : {0u, 0xffffffffu, 0x12345678u, 0x0000f000u}) {
    EXPECT_EQ(EncodeFence(DecodeFence(immediate)), immediate);
  }
  EXPECT_EQ(DecodeFence(EncodeFence({1, 17, 18, 2})), (FenceImmediate{1, 1, 2, 2})) << "too large ones are cut";
}

TEST(LastReceives, AreWaitedForOnceWhereTheDeviceNeverTells) {
  LastReceives receives;
  EXPECT_GT(receives.WaitUntil(7), 7);
  receives.OnTold();
  EXPECT_GT(receives.WaitUntil(7), 7);
  receives.OnWaitedInVain();
  EXPECT_EQ(receives.WaitUntil(7), 7);
  receives.OnTold();  // it does, after all
  EXPECT_EQ(receives.WaitUntil(7), 7 + LastReceives::kWaitNanoseconds);
}

}  // namespace
}  // namespace railsd::verbs
