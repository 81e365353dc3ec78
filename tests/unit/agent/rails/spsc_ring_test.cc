#include "agent/base/spsc_ring.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace railsd {
namespace {

TEST(SpscRingTest, HoldsExactlyItsCapacity) {
  for (size_t capacity : {1, 3, 8}) {
    SpscRing<int> ring(capacity);
    for (int round = 0; round < 5; ++round) {
      EXPECT_EQ(ring.Free(), capacity);
      for (size_t i = 0; i < capacity; ++i) EXPECT_TRUE(ring.TryPush(static_cast<int>(i)));
      EXPECT_FALSE(ring.TryPush(99));
      EXPECT_EQ(ring.Depth(), capacity);
      int value = -1;
      for (size_t i = 0; i < capacity; ++i) {
        ASSERT_TRUE(ring.TryPop(&value));
        EXPECT_EQ(value, static_cast<int>(i));
      }
      EXPECT_FALSE(ring.TryPop(&value));
    }
  }
}

TEST(SpscRingTest, PoppedSlotsLetGoOfWhatTheyOwned) {
  SpscRing<std::shared_ptr<int>> ring(4);
  auto owned = std::make_shared<int>(1);
  EXPECT_TRUE(ring.TryPush(std::shared_ptr<int>(owned)));
  std::shared_ptr<int> out;
  EXPECT_TRUE(ring.TryPop(&out));
  out.reset();
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(SpscRingTest, KeepsOrderBetweenThreads) {
  constexpr uint64_t kCount = 200000;
  SpscRing<std::pair<uint64_t, uint64_t>> ring(37);
  std::thread producer([&] {
    for (uint64_t i = 0; i < kCount;) {
      if (ring.TryPush({i, ~i})) {
        ++i;
      } else {
        std::this_thread::yield();
      }
    }
  });
  for (uint64_t i = 0; i < kCount;) {
    std::pair<uint64_t, uint64_t> value;
    if (!ring.TryPop(&value)) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(value.first, i);
    ASSERT_EQ(value.second, ~i);
    ++i;
  }
  producer.join();
}

}  // namespace
}  // namespace railsd
