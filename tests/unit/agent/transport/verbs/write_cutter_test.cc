#include "agent/transport/verbs/write_cutter.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "agent/transport/verbs/zone_plan.h"
#include "tests/support/seeds.h"
#include "tests/support/test_memory.h"

namespace railsd::verbs {
namespace {

using ::railsd::testing::MakeSegment;
using ::railsd::testing::Scatter;

class FakeRegistration final : public Registration {
 public:
  FakeRegistration(uint32_t key, bool needs_flush) : key_(key), needs_flush_(needs_flush) {}
  uint32_t local_key() const override { return key_; }
  bool needs_flush() const override { return needs_flush_; }

 private:
  const uint32_t key_;
  const bool needs_flush_;
};

// Keys count up from 100, so that two segments never share one.
class FakeRegistrar final : public MemoryRegistrar {
 public:
  bool needs_flush = false;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Segment& /*segment*/) override {
    return std::make_unique<FakeRegistration>(next_++, needs_flush);
  }

 private:
  uint32_t next_ = 100;
};

// Rail 1 of two; rail 0 has no device.
std::shared_ptr<const Segment> Registered(uint64_t bytes, bool needs_flush = false) {
  static const auto registrar = std::make_shared<FakeRegistrar>();
  registrar->needs_flush = needs_flush;
  std::shared_ptr<const Segment> segment = MakeSegment(bytes);
  const std::vector<std::shared_ptr<MemoryRegistrar>> rails{nullptr, registrar};
  EXPECT_TRUE(segment->Register(rails).ok());
  return segment;
}
constexpr RailIndex kRail(1);

uint64_t Address(const MemoryRanges::Piece& piece) { return reinterpret_cast<uint64_t>(piece.address); }

// A remote zone of these lengths, one after the other with holes between, with keys for two rails.
RemoteZone MakeRemote(const std::vector<uint64_t>& lengths) {
  RemoteZone zone;
  zone.keys.resize(2);
  uint64_t offset = 0;
  for (const uint64_t length : lengths) {
    zone.pieces.push_back({offset, 0x1000000 + 2 * offset, length});
    zone.keys[0].push_back(0);
    zone.keys[1].push_back(500 + static_cast<uint32_t>(zone.pieces.size()));
    offset += length;
  }
  return zone;
}

TEST(CutWrite, OnePieceAtEachEndIsOneWorkRequest) {
  SendStream stream;
  testing::Append(&stream.memory, Registered(5000), 100, 3000);
  stream.remote = MakeRemote({3000});
  std::array<LocalPiece, 4> local;
  RemoteWrite write;
  ASSERT_EQ(CutWrite(stream, kRail, 1000, 500, absl::MakeSpan(local), &write), CutResult::kOk);
  EXPECT_EQ(write.length_bytes, 500u);
  EXPECT_EQ(write.pieces, 1u);
  EXPECT_EQ(write.address, 0x1000000u + 1000);
  EXPECT_EQ(write.key, 501u);
  EXPECT_EQ(local[0].address, Address(stream.memory.pieces()[0]) + 1000);
  EXPECT_EQ(local[0].length_bytes, 500u);
  EXPECT_EQ(local[0].key, stream.memory.pieces()[0].segment->registration(1)->local_key());
}

TEST(CutWrite, EveryByteOnceHoweverBothEndsAreCut) {
  std::mt19937_64 random = testing::SeededRandom();
  for (uint64_t round = 0; round < testing::Rounds(50); ++round) {
    const uint64_t bytes = 1 + random() % 20000;
    SendStream stream;
    stream.memory = Scatter(Registered(bytes + 100), 50, bytes, 1 + random() % 30, random);
    std::vector<uint64_t> lengths;
    for (uint64_t left = bytes; left > 0; left -= lengths.back()) lengths.push_back(1 + random() % left);
    stream.remote = MakeRemote(lengths);
    const size_t most_pieces = 1 + random() % 4;
    const uint64_t limit = 1 + random() % 3000;
    std::array<LocalPiece, 4> local;
    uint64_t offset = 0;
    while (offset < bytes) {
      RemoteWrite write;
      ASSERT_EQ(CutWrite(stream, kRail, offset, limit, {local.data(), most_pieces}, &write), CutResult::kOk);
      ASSERT_GT(write.length_bytes, 0u);
      ASSERT_LE(write.length_bytes, limit);
      ASSERT_LE(write.pieces, most_pieces);
      uint64_t at = offset;
      for (size_t i = 0; i < write.pieces; ++i) {
        const auto piece = stream.memory.PieceAt(at);
        ASSERT_EQ(local[i].address, Address(*piece) + at - piece->offset_bytes);
        at += local[i].length_bytes;
        ASSERT_LE(at, piece->offset_bytes + piece->length_bytes);
      }
      ASSERT_EQ(at, offset + write.length_bytes);
      // All of it lies in one remote piece.
      ASSERT_EQ(write.address, 0x1000000 + 2 * stream.remote.pieces[write.key - 501].offset_bytes + offset -
                                   stream.remote.pieces[write.key - 501].offset_bytes);
      ASSERT_LE(
          at, stream.remote.pieces[write.key - 501].offset_bytes + stream.remote.pieces[write.key - 501].length_bytes);
      offset = at;
    }
  }
}

TEST(CutWrite, WhatTheGrantDoesNotGiveIsNotReachable) {
  SendStream stream;
  testing::Append(&stream.memory, Registered(5000), 0, 3000);
  std::array<LocalPiece, 4> local;
  RemoteWrite write;
  EXPECT_EQ(CutWrite(stream, kRail, 0, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "no pieces";
  stream.remote = MakeRemote({2000});
  EXPECT_EQ(CutWrite(stream, kRail, 2000, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "too short";
  ASSERT_EQ(CutWrite(stream, kRail, 1900, 500, absl::MakeSpan(local), &write), CutResult::kOk);
  EXPECT_EQ(write.length_bytes, 100u);
  stream.remote.keys[1].clear();
  EXPECT_EQ(CutWrite(stream, kRail, 0, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "no key";
  stream.remote.keys.resize(1);
  EXPECT_EQ(CutWrite(stream, kRail, 0, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "no rail";
  stream.remote = MakeRemote({2000});
  stream.remote.pieces[0].offset_bytes = 10;
  EXPECT_EQ(CutWrite(stream, kRail, 5, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "a gap";
}

TEST(CutWrite, MemoryThatTheDeviceDoesNotKnow) {
  SendStream stream;
  testing::Append(&stream.memory, Registered(1000), 0, 1000);
  testing::Append(&stream.memory, MakeSegment(1000), 0, 1000);
  stream.remote = MakeRemote({3000});
  std::array<LocalPiece, 4> local;
  RemoteWrite write;
  EXPECT_EQ(CutWrite(stream, kRail, 0, 1000, absl::MakeSpan(local), &write), CutResult::kOk);
  EXPECT_EQ(CutWrite(stream, kRail, 500, 1000, absl::MakeSpan(local), &write), CutResult::kNotRegistered);
  EXPECT_EQ(CutWrite(stream, RailIndex(0), 0, 1000, absl::MakeSpan(local), &write), CutResult::kNotRegistered);
  EXPECT_EQ(CutWrite(stream, kRail, 2000, 1000, absl::MakeSpan(local), &write), CutResult::kNotRegistered) << "the end";
}

TEST(PlanWindows, PiecesThatTouchShareAWindow) {
  const auto segment = Registered(10000);
  MemoryRanges memory;
  for (const auto& [offset, length] : {std::pair{4000, 1000}, {2000, 2000}, {9000, 500}, {5000, 1000}}) {
    testing::Append(&memory, segment, static_cast<uint64_t>(offset), static_cast<uint64_t>(length));
  }
  ZonePlan plan;
  ASSERT_TRUE(PlanWindows(memory, kRail, &plan));
  ASSERT_EQ(plan.windows.size(), 2u);
  EXPECT_EQ(plan.windows[0].address, reinterpret_cast<uint64_t>(segment->base()) + 2000);
  EXPECT_EQ(plan.windows[0].length_bytes, 4000u);
  EXPECT_EQ(plan.windows[1].length_bytes, 500u);
  EXPECT_EQ(plan.window_of, (std::vector<uint32_t>{0, 0, 1, 0}));
}

TEST(PlanWindows, EveryPieceLiesInTheWindowOfItsSegment) {
  std::mt19937_64 random = testing::SeededRandom();
  const auto segment = Registered(10000);
  const auto other = Registered(10000);
  MemoryRanges memory;
  for (uint64_t i = 0; i < 40; ++i)
    testing::Append(&memory, random() % 2 == 0 ? segment : other, random() % 20 * 500, 500);
  ZonePlan plan;
  ASSERT_TRUE(PlanWindows(memory, kRail, &plan));
  ASSERT_EQ(plan.window_of.size(), memory.pieces().size());
  for (size_t i = 0; i < plan.window_of.size(); ++i) {
    const MemoryRanges::Piece& piece = memory.pieces()[i];
    const ZonePlan::Window& window = plan.windows.at(plan.window_of[i]);
    EXPECT_EQ(window.registration, piece.segment->registration(kRail.value()));
    EXPECT_GE(Address(piece), window.address);
    EXPECT_LE(Address(piece) + piece.length_bytes, window.address + window.length_bytes);
  }
}

TEST(PlanWindows, OneByteOfEachSegmentThatNeedsItIsFlushed) {
  const auto host = Registered(10000);
  MemoryRanges memory;
  testing::Append(&memory, host, 0, 100);
  ZonePlan plan;
  ASSERT_TRUE(PlanWindows(memory, kRail, &plan));
  EXPECT_TRUE(plan.flushes.empty());
  const auto device = Registered(10000, true), other = Registered(10000, true);
  for (const uint64_t offset : {5000, 1000, 9000}) {
    testing::Append(&memory, device, offset, 500);
    testing::Append(&memory, host, offset, 500);
    testing::Append(&memory, other, offset, 500);
  }
  ASSERT_TRUE(PlanWindows(memory, kRail, &plan));
  ASSERT_EQ(plan.flushes.size(), 2u);
  for (const auto& segment : {device, other}) {
    const bool first = plan.flushes[0].registration == segment->registration(kRail.value());
    const ZonePlan::Flush& flush = plan.flushes[first ? 0 : 1];
    EXPECT_EQ(flush.registration, segment->registration(kRail.value()));
    EXPECT_EQ(flush.address, reinterpret_cast<uint64_t>(segment->base()) + 9499) << "the last byte";
  }
}

TEST(PlanWindows, NothingRegistered) {
  MemoryRanges memory;
  testing::Append(&memory, Registered(1000), 0, 10);
  ZonePlan plan;
  EXPECT_TRUE(PlanWindows(memory, kRail, &plan));
  testing::Append(&memory, MakeSegment(1000), 0, 10);
  EXPECT_FALSE(PlanWindows(memory, kRail, &plan));
}

TEST(QueuePairOf, SlotsThatFollowEachOtherTakeTurns) {
  for (uint16_t slot = 1; slot < 10; ++slot) {
    EXPECT_LT(QueuePairOf({slot, 1}, 3), 3u);
    EXPECT_NE(QueuePairOf({slot, 1}, 3), QueuePairOf({static_cast<uint16_t>(slot + 1), 1}, 3));
    EXPECT_EQ(QueuePairOf({slot, 1}, 1), 0u);
  }
}

}  // namespace
}  // namespace railsd::verbs
