#include "agent/memory/memory_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "tests/support/seeds.h"
#include "tests/support/test_memory.h"

namespace railsd {
namespace {

using testing::MakeSegment;
using testing::RandomBytes;
using testing::ReadAll;
using testing::Scatter;
using testing::WriteAll;

TEST(MemoryRangesTest, DropsEmptyAndMergesContinued) {
  auto segment = MakeSegment(4096);
  MemoryRanges ranges;
  testing::Append(&ranges, segment, 100, 0);
  EXPECT_EQ(ranges.range_count(), 0u);
  testing::Append(&ranges, segment, 100, 50);
  testing::Append(&ranges, segment, 150, 10);
  testing::Append(&ranges, segment, 159, 1);
  testing::Append(&ranges, segment, 100, 50);
  EXPECT_EQ(ranges.range_count(), 3u);
  EXPECT_EQ(ranges.total_bytes(), 111u);
}

TEST(MemoryRangesTest, KeepsSegmentsAlive) {
  auto segment = MakeSegment(4096);
  std::weak_ptr<const Segment> weak = segment;
  MemoryRanges ranges;
  testing::Append(&ranges, segment, 0, 10);
  testing::Append(&ranges, segment, 100, 10);
  segment.reset();
  EXPECT_FALSE(weak.expired());
  ranges = MemoryRanges();
  EXPECT_TRUE(weak.expired());
}

TEST(MemoryRangesTest, FillsFromAnyOffset) {
  std::mt19937_64 random = testing::SeededRandom();
  auto segment = MakeSegment(1 << 16);
  const MemoryRanges ranges = Scatter(segment, 100, 60000, 300, random);
  const std::string bytes = RandomBytes(60000, random);
  WriteAll(ranges, bytes);
  for (uint64_t round = 0; round < testing::Rounds(2000); ++round) {
    const uint64_t offset = random() % 60010;
    const uint64_t length = random() % 3000;
    std::array<iovec, 7> out;
    uint64_t covered = 99;
    const size_t n = ranges.FillIovecs(offset, length, {out.data(), 1 + random() % out.size()}, &covered);
    std::string got;
    for (size_t i = 0; i < n; ++i) got.append(static_cast<const char*>(out[i].iov_base), out[i].iov_len);
    ASSERT_EQ(got.size(), covered);
    if (offset >= 60000 || length == 0) {
      ASSERT_EQ(n, 0u);
      continue;
    }
    ASSERT_GT(covered, 0u);
    ASSERT_EQ(got, bytes.substr(offset, covered));
    ASSERT_LE(covered, length);
  }
}

TEST(MemoryRangesTest, CopiesBetweenDifferentCuts) {
  std::mt19937_64 random = testing::SeededRandom();
  for (size_t pieces : {1, 2, 1000}) {
    auto source = MakeSegment(1 << 20);
    auto destination = MakeSegment(1 << 20);
    const MemoryRanges from = Scatter(source, 3, 1000000, pieces, random);
    const MemoryRanges to = Scatter(destination, 77, 1000000, 1 + pieces / 3, random);
    const std::string bytes = RandomBytes(1000000, random);
    WriteAll(from, bytes);
    for (uint64_t offset = 0; offset < 1'000'000; offset += 123'457) {
      const uint64_t length = std::min<uint64_t>(123'457, 1'000'000 - offset);
      uint64_t done = 0;
      ASSERT_TRUE(CopyRangeBytes(from, to, offset, length, &done).ok());
      ASSERT_EQ(done, length);
    }
    EXPECT_EQ(ReadAll(to), bytes);
  }
}

// A page without access stands for memory that has become bad under the daemon.
TEST(MemoryRangesTest, CopyReportsABadPageOfEitherSide) {
  const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (const bool bad_source : {true, false}) {
    auto good = MakeSegment(4 * page);
    auto bad = MakeSegment(4 * page);
    ASSERT_EQ(::mprotect(bad->base() + 2 * page, page, PROT_NONE), 0);
    MemoryRanges from, to;
    testing::Append(&from, bad_source ? bad : good, 0, 4 * page);
    testing::Append(&to, bad_source ? good : bad, 0, 4 * page);
    uint64_t done = 0;
    const absl::Status status = CopyRangeBytes(from, to, 0, 4 * page, &done);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(done, 2 * page);
  }
}

}  // namespace
}  // namespace railsd
