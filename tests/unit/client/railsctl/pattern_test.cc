#include "client/railsctl/replay/pattern.h"

#include <gtest/gtest.h>

#include <vector>

namespace rails::ctl {
namespace {

std::vector<std::byte> Bytes(uint64_t key, uint64_t offset, size_t length) {
  std::vector<std::byte> bytes(length);
  FillPattern(key, offset, absl::MakeSpan(bytes));
  return bytes;
}

TEST(Pattern, AnyCutOfAFlowGivesTheSameBytes) {
  const uint64_t key = PatternKey({.seed = 7, .job = 3, .source_rank = 1, .destination_rank = 2});
  const std::vector<std::byte> whole = Bytes(key, 0, 100);
  for (size_t begin = 0; begin <= whole.size(); ++begin) {
    for (size_t end = begin; end <= whole.size(); ++end) {
      const std::vector<std::byte> part = Bytes(key, begin, end - begin);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(begin)));
      ASSERT_EQ(ComparePattern(key, begin, part).count, 0u);
    }
  }
}

// Unrelated patterns of N bytes agree in about N / 256.
void ExpectUnrelated(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  size_t same = 0;
  for (size_t i = 0; i < a.size(); ++i) same += a[i] == b[i];
  EXPECT_LT(same, a.size() / 256 * 2);
}

TEST(Pattern, DependsOnEveryPartOfTheName) {
  constexpr size_t kLength = 1 << 16;
  const FlowName name{.seed = 1, .job = 4, .source_rank = 2, .destination_rank = 3};
  const std::vector<std::byte> bytes = Bytes(PatternKey(name), 0, kLength);
  ExpectUnrelated(bytes, Bytes(PatternKey({2, 4, 2, 3}), 0, kLength));
  ExpectUnrelated(bytes, Bytes(PatternKey({1, 5, 2, 3}), 0, kLength));
  ExpectUnrelated(bytes, Bytes(PatternKey({1, 4, 1, 3}), 0, kLength));
  ExpectUnrelated(bytes, Bytes(PatternKey({1, 4, 2, 2}), 0, kLength));
  ExpectUnrelated(bytes, Bytes(PatternKey({1, 4, 3, 2}), 0, kLength));  // swapped ranks
  for (uint64_t shift : {1, 8, 64, 4096}) ExpectUnrelated(bytes, Bytes(PatternKey(name), shift, kLength));
}

TEST(Pattern, FindsEverySingleWrongByte) {
  const uint64_t key = PatternKey({.seed = 9});
  std::vector<std::byte> bytes = Bytes(key, 3, 50);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const std::byte right = bytes[i];
    bytes[i] ^= std::byte{1};
    const Mismatch mismatch = ComparePattern(key, 3, bytes);
    EXPECT_EQ(mismatch.count, 1u);
    EXPECT_EQ(mismatch.first, i);
    EXPECT_EQ(mismatch.expected, static_cast<uint8_t>(right));
    EXPECT_EQ(mismatch.got, static_cast<uint8_t>(bytes[i]));
    bytes[i] = right;
  }
  bytes[10] ^= std::byte{1};
  bytes[40] ^= std::byte{1};
  EXPECT_EQ(ComparePattern(key, 3, bytes).count, 2u);
}

TEST(Poison, FindsEverySingleWrongByteAndChangesWithTheJob) {
  EXPECT_NE(PoisonByte(1), PoisonByte(2));
  std::vector<std::byte> bytes(37, std::byte{PoisonByte(5)});
  EXPECT_EQ(ComparePoison(PoisonByte(5), bytes).count, 0u);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= std::byte{0x80};
    EXPECT_EQ(ComparePoison(PoisonByte(5), bytes).count, 1u);
    EXPECT_EQ(ComparePoison(PoisonByte(5), bytes).first, i);
    bytes[i] ^= std::byte{0x80};
  }
  EXPECT_EQ(ComparePoison(0, {}).count, 0u);
}

}  // namespace
}  // namespace rails::ctl
