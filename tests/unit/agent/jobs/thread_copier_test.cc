// The threads that copy, and the engine's thread beside them.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <random>

#include "agent/base/wake_event.h"
#include "agent/jobs/copier.h"
#include "tests/support/test_memory.h"
#include "tests/support/until.h"

namespace railsd::testing {
namespace {

const std::atomic<bool> go_on{false};  // CopyTask::stop

constexpr uint64_t kStep = 8 << 20;

TEST(ThreadCopierTest, ManyThreadsCopyEveryByte) {
  std::mt19937_64 random(1);
  const auto from_segment = MakeSegment(3 * kStep), to_segment = MakeSegment(3 * kStep, 2);
  const uint64_t length = 2 * kStep + 12345;
  const MemoryRanges from = Scatter(from_segment, 5, length, 40, random),
                     to = Scatter(to_segment, 7, length, 30, random);
  WriteAll(from, RandomBytes(length, random));
  auto wake = WakeEvent::Create().value();
  ThreadCopier copier(3, &wake);
  copier.Submit({JobTag(4), 9, &from, &to, &go_on});
  CopyResult result;
  ASSERT_TRUE(Until([&] { return copier.TakeResult(&result); }));
  EXPECT_TRUE(result.status.ok()) << result.status;
  EXPECT_EQ(result.index, 9u);
  EXPECT_EQ(ReadAll(to), ReadAll(from));
}

// The limits count anew when all results have been taken.
TEST(ThreadCopierTest, ShortCopiesAreMadeAtOnce) {
  std::mt19937_64 random(1);
  const auto from_segment = MakeSegment(kStep), to_segment = MakeSegment(kStep, 2);
  constexpr uint64_t kLength = ThreadCopier::kShortBytes / 2;
  const MemoryRanges from = Scatter(from_segment, 5, kLength, 3, random),
                     to = Scatter(to_segment, 7, kLength, 4, random);
  WriteAll(from, RandomBytes(kLength, random));
  auto wake = WakeEvent::Create().value();
  ThreadCopier copier(1, &wake);
  std::promise<void> begin;
  copier.Run([&] { begin.get_future().wait(); });  // it keeps the only thread busy
  CopyResult result;
  for (int turn = 0; turn < 3; ++turn) {
    for (size_t i = 0; i < 2; ++i) copier.Submit({JobTag(1), i, &from, &to, &go_on});
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(copier.TakeResult(&result));
      EXPECT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.index, i);
    }
    EXPECT_FALSE(copier.TakeResult(&result));
  }
  EXPECT_EQ(ReadAll(to), ReadAll(from));
  const MemoryRanges pieces = Scatter(to_segment, 7, kLength, ThreadCopier::kShortPieces, random);
  copier.Submit({JobTag(2), 0, &pieces, &pieces, &go_on});
  EXPECT_EQ(copier.depth(), 1u) << "too many pieces";
  for (size_t i = 0; i < 3; ++i) copier.Submit({JobTag(3), i, &from, &to, &go_on});
  EXPECT_EQ(copier.depth(), 2u) << "too many bytes";
  begin.set_value();
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(Until([&] { return copier.TakeResult(&result); }));
}

TEST(ThreadCopierTest, FreesWhatChoresHold) {
  auto wake = WakeEvent::Create().value();
  const auto garbage = std::make_shared<int>(0), last = std::make_shared<int>(0);
  {
    ThreadCopier copier(2, &wake);
    copier.Run([garbage] {});
    EXPECT_TRUE(Until([&] { return garbage.use_count() == 1; }));
    copier.Run([last] {});
  }
  EXPECT_EQ(last.use_count(), 1);
}

// However much there is to copy.
TEST(ThreadCopierTest, DoesChoresBeforeItCopies) {
  auto wake = WakeEvent::Create().value();
  const auto segment = MakeSegment(kStep);
  MemoryRanges memory;
  testing::Append(&memory, segment, 0, kStep);
  ThreadCopier copier(1, &wake);
  std::promise<void> begin;
  std::promise<size_t> left;
  // It keeps the only thread busy until there is a copy.
  copier.Run([&] { begin.get_future().wait(); });
  copier.Submit({JobTag(1), 0, &memory, &memory, &go_on});
  copier.Run([&] { left.set_value(copier.depth()); }, JobTag(2));
  begin.set_value();
  EXPECT_EQ(left.get_future().get(), 1u);
  CopyResult result;
  ASSERT_TRUE(Until([&] { return copier.TakeResult(&result); }));
  EXPECT_EQ(result.job, JobTag(2));
  EXPECT_EQ(result.index, CopyResult::kChore);
  ASSERT_TRUE(Until([&] { return copier.TakeResult(&result); }));
}

}  // namespace
}  // namespace railsd::testing
