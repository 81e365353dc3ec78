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
  explicit FakeRegistration(uint32_t key) : key_(key) {}
  uint32_t local_key() const override { return key_; }

 private:
  const uint32_t key_;
};

// Keys count up from 100, so that two segments never share one.
class FakeRegistrar final : public MemoryRegistrar {
 public:
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Segment& /*segment*/) override {
    return std::make_unique<FakeRegistration>(next_++);
  }

 private:
  uint32_t next_ = 100;
};

// Rail 1 of two; rail 0 has no device.
std::shared_ptr<const Segment> Registered(uint64_t bytes) {
  static const auto registrar = std::make_shared<FakeRegistrar>();
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
  uint64_t offset = 0;
  for (const uint64_t length : lengths) {
    zone.pieces.push_back({offset, 0x1000000 + 2 * offset, length, static_cast<uint32_t>(zone.keys.size())});
    zone.keys.insert(zone.keys.end(), {0, 500 + static_cast<uint32_t>(zone.pieces.size())});
    offset += length;
  }
  return zone;
}

TEST(CutWrite, OnePieceAtEachEndIsOneWorkRequest) {
  SendFlow flow;
  flow.memory.Append(Registered(5000), 100, 3000);
  flow.remote = MakeRemote({3000});
  std::array<LocalPiece, 4> local;
  RemoteWrite write;
  ASSERT_EQ(CutWrite(flow, kRail, 1000, 500, absl::MakeSpan(local), &write), CutResult::kOk);
  EXPECT_EQ(write.length_bytes, 500u);
  EXPECT_EQ(write.pieces, 1u);
  EXPECT_EQ(write.address, 0x1000000u + 1000);
  EXPECT_EQ(write.key, 501u);
  EXPECT_EQ(local[0].address, Address(flow.memory.pieces()[0]) + 1000);
  EXPECT_EQ(local[0].length_bytes, 500u);
  EXPECT_EQ(local[0].key, flow.memory.pieces()[0].segment->registration(1)->local_key());
}

TEST(CutWrite, EveryByteOnceHoweverBothEndsAreCut) {
  std::mt19937_64 random = testing::SeededRandom();
  for (uint64_t round = 0; round < testing::Rounds(50); ++round) {
    const uint64_t bytes = 1 + random() % 20000;
    SendFlow flow;
    flow.memory = Scatter(Registered(bytes + 100), 50, bytes, 1 + random() % 30, random);
    std::vector<uint64_t> lengths;
    for (uint64_t left = bytes; left > 0; left -= lengths.back()) lengths.push_back(1 + random() % left);
    flow.remote = MakeRemote(lengths);
    const size_t most_pieces = 1 + random() % 4;
    const uint64_t limit = 1 + random() % 3000;
    std::array<LocalPiece, 4> local;
    uint64_t offset = 0;
    while (offset < bytes) {
      RemoteWrite write;
      ASSERT_EQ(CutWrite(flow, kRail, offset, limit, {local.data(), most_pieces}, &write), CutResult::kOk);
      ASSERT_GT(write.length_bytes, 0u);
      ASSERT_LE(write.length_bytes, limit);
      ASSERT_LE(write.pieces, most_pieces);
      uint64_t at = offset;
      for (size_t i = 0; i < write.pieces; ++i) {
        const auto piece = flow.memory.PieceAt(at);
        ASSERT_EQ(local[i].address, Address(*piece) + at - piece->flow_offset_bytes);
        at += local[i].length_bytes;
        ASSERT_LE(at, piece->flow_offset_bytes + piece->length_bytes);
      }
      ASSERT_EQ(at, offset + write.length_bytes);
      // All of it lies in one remote piece.
      ASSERT_EQ(write.address, 0x1000000 + 2 * flow.remote.pieces[write.key - 501].offset_bytes + offset -
                                   flow.remote.pieces[write.key - 501].offset_bytes);
      ASSERT_LE(at,
                flow.remote.pieces[write.key - 501].offset_bytes + flow.remote.pieces[write.key - 501].length_bytes);
      offset = at;
    }
  }
}

TEST(CutWrite, WhatReadyDoesNotGiveIsNotReachable) {
  SendFlow flow;
  flow.memory.Append(Registered(5000), 0, 3000);
  std::array<LocalPiece, 4> local;
  RemoteWrite write;
  EXPECT_EQ(CutWrite(flow, kRail, 0, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "no pieces";
  flow.remote = MakeRemote({2000});
  EXPECT_EQ(CutWrite(flow, kRail, 2000, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "too short";
  ASSERT_EQ(CutWrite(flow, kRail, 1900, 500, absl::MakeSpan(local), &write), CutResult::kOk);
  EXPECT_EQ(write.length_bytes, 100u);
  flow.remote.keys.resize(1);
  EXPECT_EQ(CutWrite(flow, kRail, 0, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "no key";
  flow.remote = MakeRemote({2000});
  flow.remote.pieces[0].offset_bytes = 10;
  EXPECT_EQ(CutWrite(flow, kRail, 5, 500, absl::MakeSpan(local), &write), CutResult::kNotReachable) << "a gap";
}

TEST(CutWrite, MemoryThatTheDeviceDoesNotKnow) {
  SendFlow flow;
  flow.memory.Append(Registered(1000), 0, 1000);
  flow.memory.Append(MakeSegment(1000), 0, 1000);
  flow.remote = MakeRemote({3000});
  std::array<LocalPiece, 4> local;
  RemoteWrite write;
  EXPECT_EQ(CutWrite(flow, kRail, 0, 1000, absl::MakeSpan(local), &write), CutResult::kOk);
  EXPECT_EQ(CutWrite(flow, kRail, 500, 1000, absl::MakeSpan(local), &write), CutResult::kNotRegistered);
  EXPECT_EQ(CutWrite(flow, RailIndex(0), 0, 1000, absl::MakeSpan(local), &write), CutResult::kNotRegistered);
  EXPECT_EQ(CutWrite(flow, kRail, 2000, 1000, absl::MakeSpan(local), &write), CutResult::kNotRegistered) << "the end";
}

TEST(PlanWindows, RangesThatTouchShareAWindow) {
  const auto segment = Registered(10000);
  ReceiveSet set;
  set.zones.resize(3);
  set.zones[0].Append(segment, 4000, 1000);
  set.zones[1].Append(segment, 2000, 2000);
  set.zones[1].Append(segment, 9000, 500);
  set.zones[2].Append(segment, 5000, 1000);
  ZonePlan plan;
  ASSERT_TRUE(PlanWindows(set, kRail, 1, &plan));
  ASSERT_EQ(plan.windows.size(), 2u);
  EXPECT_EQ(plan.windows[0].address, reinterpret_cast<uint64_t>(segment->base()) + 2000);
  EXPECT_EQ(plan.windows[0].length_bytes, 4000u);
  EXPECT_EQ(plan.windows[1].length_bytes, 500u);
  ASSERT_EQ(plan.ranges.size(), 4u);
  EXPECT_EQ(plan.ranges[0].window, 0u);
  EXPECT_EQ(plan.ranges[1].window, 0u);
  EXPECT_EQ(plan.ranges[2].window, 1u);
  EXPECT_EQ(plan.ranges[3].window, 0u);
}

TEST(PlanWindows, QueuePairsAndSegmentsHaveWindowsOfTheirOwn) {
  const auto segment = Registered(10000);
  const auto other = Registered(10000);
  ReceiveSet set;
  set.zones.resize(4);
  for (uint64_t i = 0; i < 3; ++i) set.zones[i].Append(segment, i * 1000, 1000);
  set.zones[3].Append(other, 3000, 1000);
  ZonePlan plan;
  ASSERT_TRUE(PlanWindows(set, kRail, 2, &plan));
  EXPECT_EQ(plan.windows.size(), 4u) << "0 and 2 do not touch, 1 and 3 are of two segments";
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(plan.windows[plan.ranges[i].window].lane, LaneOf({0, 0, i}, 2));
    EXPECT_EQ(plan.windows[plan.ranges[i].window].registration, plan.ranges[i].registration);
  }
}

TEST(PlanWindows, NothingToOpenAndNothingRegistered) {
  ReceiveSet set;
  set.zones.resize(2);  // of no bytes
  ZonePlan plan;
  EXPECT_TRUE(PlanWindows(set, kRail, 1, &plan));
  EXPECT_TRUE(plan.windows.empty());
  set.zones[1].Append(MakeSegment(1000), 0, 10);
  EXPECT_FALSE(PlanWindows(set, kRail, 1, &plan));
}

}  // namespace
}  // namespace railsd::verbs
