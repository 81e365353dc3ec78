#include "agent/transport/zone_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace railsd {
namespace {

std::shared_ptr<ReceiveZone> NewZone(uint32_t peer = 1) {
  auto zone = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
  zone->peer = PeerIndex(peer);
  return zone;
}
ZoneRef OpenNew(ZoneTable& table) {
  const auto zone = NewZone();
  table.Open(zone);
  return zone->ref;
}

TEST(ZoneTableTest, AnOpenZoneIsEntered) {
  ZoneTable table;
  const auto zone = NewZone(7);
  table.Open(zone);
  EXPECT_EQ(zone->ref, (ZoneRef{1, 1}));
  EXPECT_EQ(OpenNew(table), (ZoneRef{2, 1}));
  EXPECT_EQ(table.taken(), 2u);
  EXPECT_EQ(table.Enter(zone->ref), zone.get());
  EXPECT_EQ(table.Enter(zone->ref), zone.get()) << "another rail";
  EXPECT_FALSE(table.Leave(zone->ref));
  EXPECT_FALSE(table.Leave(zone->ref));
  for (const ZoneRef wrong :
       {ZoneRef{0, 0}, ZoneRef{1, 0}, ZoneRef{1, 2}, ZoneRef{1, 17}, ZoneRef{3, 0}, ZoneRef{3, 1}, ZoneRef{65535, 1}}) {
    EXPECT_EQ(table.Enter(wrong), nullptr) << wrong.slot << "/" << wrong.generation;
  }
}

TEST(ZoneTableTest, TheLastOneInsideAClosedZoneSaysSo) {
  ZoneTable table;
  const ZoneRef ref = OpenNew(table), other = OpenNew(table);
  ASSERT_NE(table.Enter(ref), nullptr);
  ASSERT_NE(table.Enter(ref), nullptr);
  EXPECT_FALSE(table.Close(ref));
  EXPECT_EQ(table.Enter(ref), nullptr);
  EXPECT_FALSE(table.Leave(ref));
  EXPECT_TRUE(table.Leave(ref));
  EXPECT_TRUE(table.Close(other)) << "nobody was inside";
  table.Release(ref);
  table.Release(other);
  EXPECT_EQ(table.taken(), 0u);
}

TEST(ZoneTableTest, AReleasedZoneIsForgotten) {
  ZoneTable table;
  auto zone = NewZone();
  table.Open(zone);
  const std::weak_ptr<ReceiveZone> seen = zone;
  const ZoneRef ref = zone->ref;
  zone.reset();
  EXPECT_FALSE(seen.expired());
  EXPECT_TRUE(table.Close(ref));
  table.Release(ref);
  EXPECT_TRUE(seen.expired());
  EXPECT_EQ(table.Enter(ref), nullptr);
}

TEST(ZoneTableTest, ShortGenerationsNameThePresentOne) {
  ZoneTable table;
  ZoneRef found;
  EXPECT_EQ(table.Look(0, 0, &found), ZoneTable::State::kUnknown);
  EXPECT_EQ(table.Look(1, 0, &found), ZoneTable::State::kUnknown);
  const ZoneRef ref = OpenNew(table);
  EXPECT_EQ(table.Look(ref.slot, 1, &found), ZoneTable::State::kOpen);
  EXPECT_EQ(found, ref);
  EXPECT_EQ(table.Look(ref.slot, 2, &found), ZoneTable::State::kUnknown);
  EXPECT_EQ(table.Look(ref.slot, 17, &found), ZoneTable::State::kUnknown) << "that is none";
  table.Close(ref);
  EXPECT_EQ(table.Look(ref.slot, 1, &found), ZoneTable::State::kClosed);
  table.Release(ref);
  EXPECT_EQ(table.Look(ref.slot, 1, &found), ZoneTable::State::kClosed);
  EXPECT_EQ(found, ref);
}

TEST(ZoneTableTest, SlotsRestAsLongAsTheyCan) {
  ZoneTable table;
  std::vector<ZoneRef> refs;
  while (table.free() > 0) refs.push_back(OpenNew(table));
  ASSERT_EQ(refs.size(), ZoneTable::kSlots - 1);
  EXPECT_EQ(refs.back(), (ZoneRef{65535, 1}));
  for (const size_t i : {500, 3, 70}) {
    table.Close(refs[i]);
    table.Release(refs[i]);
  }
  EXPECT_EQ(table.free(), 3u);
  for (const size_t i : {500, 3, 70}) {
    const ZoneRef next = OpenNew(table);
    EXPECT_EQ(next, (ZoneRef{refs[i].slot, 2})) << "the one that was released first";
    EXPECT_EQ(table.Enter(refs[i]), nullptr);
    ASSERT_NE(table.Enter(next), nullptr);
    EXPECT_FALSE(table.Leave(next));
    ZoneRef found;
    EXPECT_EQ(table.Look(next.slot, 1, &found), ZoneTable::State::kUnknown);
    EXPECT_EQ(table.Look(next.slot, 2, &found), ZoneTable::State::kOpen);
  }
  // The only slot comes again and again: its short generations repeat, its generations do not.
  ZoneRef ref{refs[70].slot, 2};
  for (uint32_t generation = 3; generation <= 20; ++generation) {
    table.Close(ref);
    table.Release(ref);
    ref = OpenNew(table);
    ASSERT_EQ(ref, (ZoneRef{refs[70].slot, generation}));
  }
  ZoneRef found;
  EXPECT_EQ(table.Look(ref.slot, ZoneRef{0, 4}.short_generation(), &found), ZoneTable::State::kOpen);
  EXPECT_EQ(found, ref);
  EXPECT_EQ(table.Enter(ZoneRef{ref.slot, 4}), nullptr);
}

// Rails that got in when Close() said that nobody was inside would write into memory that is somebody else's by then.
TEST(ZoneTableTest, NobodyIsInsideOnceTheCloseIsTold) {
  ZoneTable table;
  for (int round = 0; round < 100; ++round) {
    const auto zone = NewZone();
    table.Open(zone);
    const ZoneRef ref = zone->ref;
    std::atomic<int> entered{0}, inside{0}, late{0}, last{0};
    std::vector<std::thread> rails;
    for (int r = 0; r < 3; ++r) {
      rails.emplace_back([&] {
        while (const ReceiveZone* found = table.Enter(ref)) {
          ++inside;
          ++entered;
          late += found->ref != ref;
          --inside;
          if (!table.Leave(ref)) continue;
          ++last;
          late += inside.load();
        }
      });
    }
    while (entered.load() == 0) std::this_thread::yield();
    const bool empty = table.Close(ref);
    if (empty) late += inside.load();
    for (std::thread& rail : rails) rail.join();
    ASSERT_EQ(last.load(), empty ? 0 : 1) << "one kZoneClosed, if any is awaited";
    ASSERT_EQ(late.load(), 0);
    table.Release(ref);
  }
}

// The engine takes the zone away as soon as it may, while rails still knock.
TEST(ZoneTableTest, AZoneIsReleasedWhileRailsLookForIt) {
  ZoneTable table;
  std::atomic<uint64_t> present{0};  // slot and generation
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<uint64_t> told{0}, visits{0};
  std::vector<std::thread> rails;
  for (int r = 0; r < 2; ++r) {
    rails.emplace_back([&] {
      while (!stop.load()) {
        const uint64_t name = present.load();
        const ZoneRef ref{static_cast<uint16_t>(name >> 32), static_cast<uint32_t>(name)};
        const ReceiveZone* zone = table.Enter(ref);
        if (zone == nullptr) {
          std::this_thread::yield();
          continue;
        }
        wrong += zone->ref != ref;
        ++visits;
        if (table.Leave(ref)) told.store(name);
      }
    });
  }
  for (int i = 0; i < 3000 || visits.load() < 100; ++i) {
    const ZoneRef ref = OpenNew(table);
    const uint64_t name = uint64_t{ref.slot} << 32 | ref.generation;
    present.store(name);
    if (i % 8 == 0) std::this_thread::yield();
    if (!table.Close(ref)) {
      while (told.load() != name) std::this_thread::yield();
    }
    table.Release(ref);
  }
  stop = true;
  for (std::thread& rail : rails) rail.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace railsd
