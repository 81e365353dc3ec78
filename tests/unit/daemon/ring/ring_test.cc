// The Reader and the Writer of common/ring/ring.h, which both ends use.
#include "common/ring/ring.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/seeds.h"

namespace rails::ring {
namespace {

using railsd::testing::Rounds;
using railsd::testing::SeededRandom;
using railsd::testing::Seeds;

// As in docs/protocol.md.
static_assert(offsetof(RequestControl, taken) == 64 && offsetof(RequestControl, sleeps) == 128);
static_assert(offsetof(RequestControl, wants_room) == 132);
static_assert(offsetof(AnswerControl, taken) == 64 && offsetof(AnswerControl, sleeps) == 128);
static_assert(offsetof(AnswerControl, missed) == 136);

// One direction. The data is on the heap and no byte longer, so that a sanitizer sees what reads past it.
struct Direction {
  std::unique_ptr<std::byte[]> data{new std::byte[kDataBytes]()};
  std::atomic<uint64_t> written{0}, taken{0};
  Writer writer{data.get(), &written, &taken};
  Reader reader{data.get(), &written, &taken};
};

std::string Noise(std::mt19937_64& random, size_t length) {
  std::string text(length, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(RingTest, RecordsArriveInOrderOverManyWraps) {
  std::mt19937_64 random = SeededRandom();
  Direction direction;
  std::deque<std::pair<uint64_t, std::string>> sent;
  RecordHeader header;
  std::string payload;
  for (uint64_t i = 0; i < Rounds(5000); ++i) {
    const size_t length = random() % (random() % 50 == 0 ? kMaxPayloadBytes + 1 : 3000);
    while (direction.writer.Room() < static_cast<int64_t>(RecordBytes(length)) || random() % 3 == 0) {
      if (sent.empty()) break;
      ASSERT_EQ(direction.reader.Next(&header, &payload), Reader::Result::kRecord);
      ASSERT_EQ(header.id, sent.front().first);
      ASSERT_TRUE(payload == sent.front().second);
      sent.pop_front();
    }
    sent.emplace_back(i, Noise(random, length));
    direction.writer.Write(Kind::kSubmit, static_cast<uint16_t>(i & 1), i, sent.back().second);
    ASSERT_TRUE(direction.reader.Pending());
  }
  EXPECT_GT(direction.written.load(), kDataBytes) << "wraps";
}

TEST(RingTest, AWriterKnowsItsRoomToTheByte) {
  Direction direction;
  EXPECT_EQ(direction.writer.Room(), static_cast<int64_t>(kDataBytes));
  for (int i = 0; i < 2; ++i) direction.writer.Write(Kind::kAnswer, 0, 1, std::string(kMaxPayloadBytes - 16, 'x'));
  EXPECT_EQ(direction.writer.Room(), 0);
  RecordHeader header;
  std::string payload;
  ASSERT_EQ(direction.reader.Next(&header, &payload), Reader::Result::kRecord);
  EXPECT_EQ(direction.writer.Room(), static_cast<int64_t>(kMaxPayloadBytes));
  direction.taken = direction.written + 1;
  EXPECT_EQ(direction.writer.Room(), -1) << "more was taken than written";
  direction.taken = direction.written - kDataBytes - 1;
  EXPECT_EQ(direction.writer.Room(), -1) << "more is left than the ring holds";
}

// The length that is judged is the one that is taken: what a writer makes of a record meanwhile changes nothing.
TEST(RingTest, ALongRecordStaysUntilItIsAskedFor) {
  Direction direction;
  RecordHeader header;
  std::string payload;
  direction.writer.Write(Kind::kSubmit, 0, 1, std::string(100, 'a'));
  direction.writer.Write(Kind::kSubmit, 0, 2, std::string(101, 'b'));
  ASSERT_EQ(direction.reader.Next(&header, &payload, 100), Reader::Result::kRecord);
  const uint64_t taken = direction.taken;
  for (int i = 0; i < 2; ++i) ASSERT_EQ(direction.reader.Next(&header, &payload, 100), Reader::Result::kLong);
  EXPECT_EQ(payload, std::string(100, 'a'));
  EXPECT_EQ(direction.taken, taken);
  ASSERT_EQ(direction.reader.Next(&header, &payload), Reader::Result::kRecord);
  EXPECT_EQ(header.id, 2u);
  EXPECT_EQ(payload, std::string(101, 'b'));
}

TEST(RingTest, AReaderTakesNoImpossibleCounter) {
  for (const uint64_t written : {uint64_t{1}, uint64_t{15}, kDataBytes + 1, ~uint64_t{0}, uint64_t{1} << 63}) {
    Direction direction;
    direction.written = written;
    RecordHeader header;
    std::string payload;
    EXPECT_EQ(direction.reader.Next(&header, &payload), Reader::Result::kBroken) << written;
    EXPECT_EQ(direction.taken.load(), 0u);
  }
}

// Counters and headers of noise: a reader takes no byte that is not there, and never more than it was told.
TEST(RingTest, AReaderSurvivesNoise) {
  for (const uint64_t seed : Seeds(200)) {
    std::mt19937_64 random(seed);
    Direction direction;
    for (size_t at = 0; at + sizeof(RecordHeader) <= kDataBytes; at += 16) {
      // Most lengths are short, so that a reader gets far.
      const uint32_t length = random() % 100 == 0 ? static_cast<uint32_t>(random()) : random() % 2000;
      memcpy(&direction.data[at], &length, sizeof(length));
    }
    RecordHeader header;
    std::string payload;
    uint64_t told = 0;
    for (int i = 0; i < 1000; ++i) {
      if (random() % 4 == 0) told += random() % 50 == 0 ? random() : random() % 4096;
      direction.written = told;
      const uint64_t before = direction.taken;
      const Reader::Result result = direction.reader.Next(&header, &payload);
      if (result == Reader::Result::kBroken) break;
      if (result == Reader::Result::kNothing) {
        ASSERT_EQ(before, told);
        continue;
      }
      ASSERT_EQ(payload.size(), header.length_bytes);
      ASSERT_LE(payload.size(), kMaxPayloadBytes);
      ASSERT_EQ(direction.taken - before, RecordBytes(payload.size()));
      ASSERT_LE(direction.taken - before, told - before);
    }
  }
}

// Both ends sleep as the protocol says. It ends only if no wake is lost.
TEST(RingTest, NoWakeIsLost) {
  struct Bell {  // a doorbell: rings add up until somebody listens
    std::atomic<uint32_t> rings{0};
    void Ring() {
      rings.fetch_add(1);
      rings.notify_one();
    }
    void Listen() {
      rings.wait(0);
      rings.exchange(0);
    }
  };
  Direction direction;
  Bell reader_bell, writer_bell;
  std::atomic<uint32_t> reader_sleeps{0}, writer_waits{0};
  const uint64_t records = Rounds(30'000);
  std::thread writer([&] {
    for (uint64_t i = 0; i < records; ++i) {
      const std::string payload(i % 2000 == 0 ? kMaxPayloadBytes : i % 100, 'x');
      const int64_t needed = static_cast<int64_t>(RecordBytes(payload.size()));
      while (direction.writer.Room() < needed) {
        writer_waits.store(1);
        if (direction.writer.Room() < needed) writer_bell.Listen();
        writer_waits.store(0);
      }
      direction.writer.Write(Kind::kSubmit, 0, i, payload);
      if (reader_sleeps.load() == 1 && reader_sleeps.exchange(0) == 1) reader_bell.Ring();
    }
  });
  RecordHeader header;
  std::string payload;
  for (uint64_t i = 0; i < records;) {
    if (direction.reader.Next(&header, &payload) == Reader::Result::kRecord) {
      ASSERT_EQ(header.id, i++);
      if (writer_waits.load() == 1 && writer_waits.exchange(0) == 1) writer_bell.Ring();
      continue;
    }
    reader_sleeps.store(1);
    if (!direction.reader.Pending()) reader_bell.Listen();
    reader_sleeps.store(0);
  }
  writer.join();
  EXPECT_FALSE(direction.reader.Pending());
}

}  // namespace
}  // namespace rails::ring
