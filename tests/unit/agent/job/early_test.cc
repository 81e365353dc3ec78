#include "agent/job/early.h"

#include <gtest/gtest.h>

#include "agent/control/held_bytes.h"

namespace railsd {
namespace {

constexpr Epoch kOne{BootId(1), 1}, kTwo{BootId(1), 2};

EarlyMessages::Message From(uint32_t peer, Epoch epoch, uint64_t seq, size_t flows = 0, absl::Time at = {}) {
  Offer offer;
  offer.job = {epoch, JobSeq(seq)};
  offer.flows.resize(flows);
  return {PeerIndex(peer), epoch, at, std::move(offer)};
}
uint64_t SeqOf(const EarlyMessages::Message& message) { return std::get<Offer>(message.message).job.seq.value(); }

TEST(EarlyMessagesTest, AreTakenInTheirOrderOnceTheirEpochIsKnown) {
  EarlyMessages early;
  EXPECT_TRUE(early.Keep(From(1, kOne, 1)).empty());
  EXPECT_TRUE(early.Keep(From(1, kTwo, 2)).empty());
  EXPECT_TRUE(early.Keep(From(1, kOne, 3)).empty());
  const auto is_one = [](Epoch epoch) { return epoch == kOne; };
  EXPECT_EQ(SeqOf(*early.Take(is_one)), 1u);
  EXPECT_EQ(SeqOf(*early.Take(is_one)), 3u);
  EXPECT_FALSE(early.Take(is_one).has_value());
  EXPECT_EQ(SeqOf(*early.Take([](Epoch) { return true; })), 2u);
}

TEST(EarlyMessagesTest, APeersOldestOnesGoWhenItHasTooMany) {
  EarlyMessages early;
  EXPECT_TRUE(early.Keep(From(2, kOne, 77)).empty());
  for (uint64_t seq = 1; seq <= EarlyMessages::kMaxMessages; ++seq) EXPECT_TRUE(early.Keep(From(1, kOne, seq)).empty());
  const auto dropped = early.Keep(From(1, kOne, 5000));
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(SeqOf(dropped[0]), 1u);
  EXPECT_EQ(SeqOf(*early.Take([](Epoch) { return true; })), 77u) << "of another peer, which has kept its place";
}

TEST(EarlyMessagesTest, APeersOldestOnesGoWhenTheyAreTooLarge) {
  EarlyMessages early;
  const size_t half = EarlyMessages::kMaxBytes / 2 / sizeof(Offer::Flow) - 100;
  EXPECT_TRUE(early.Keep(From(1, kOne, 1, half)).empty());
  EXPECT_TRUE(early.Keep(From(1, kOne, 2)).empty());
  EXPECT_TRUE(early.Keep(From(2, kOne, 3, half)).empty()) << "of another peer";
  const auto dropped = early.Keep(From(1, kOne, 4, 2 * half));
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(SeqOf(dropped[0]), 1u);
  const auto too_large = early.Keep(From(1, kOne, 5, 4 * half));
  ASSERT_EQ(too_large.size(), 1u);
  EXPECT_EQ(SeqOf(too_large[0]), 5u);
  early.Forget(PeerIndex(1));
  EXPECT_EQ(SeqOf(*early.Take([](Epoch) { return true; })), 3u);
  EXPECT_FALSE(early.Take([](Epoch) { return true; }).has_value());
  EXPECT_TRUE(early.Keep(From(1, kOne, 6, 2 * half)).empty()) << "what was forgotten is not counted any more";
}

TEST(EarlyMessagesTest, NoneIsKeptForever) {
  EarlyMessages early;
  EXPECT_EQ(early.NextDeadline(), absl::InfiniteFuture());
  const absl::Time start = absl::UnixEpoch();
  early.Keep(From(1, kOne, 1, 0, start));
  early.Keep(From(1, kOne, 2, 0, start + absl::Seconds(1)));
  EXPECT_TRUE(early.TakeOld(start + EarlyMessages::kKept - absl::Milliseconds(1)).empty());
  EXPECT_EQ(early.NextDeadline(), start + EarlyMessages::kKept);
  const auto old = early.TakeOld(early.NextDeadline());
  ASSERT_EQ(old.size(), 1u);
  EXPECT_EQ(SeqOf(old[0]), 1u);
  EXPECT_EQ(early.NextDeadline(), start + absl::Seconds(1) + EarlyMessages::kKept);
}

}  // namespace
}  // namespace railsd
