#include "daemon/link/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/seeds.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

struct Copy {
  FrameKind kind;
  uint64_t number;
  std::string body;
  bool operator==(const Copy&) const = default;
};

// Collects the frames of a reader until its error.
class FrameTest : public ::testing::Test {
 protected:
  // Feeds at most as much as the reader has space for, and at most `step()` bytes at once.
  template <typename Step>
  void Feed(absl::string_view bytes, Step step) {
    while (!bytes.empty()) {
      size_t space = 0;
      char* const to = reader.Space(&space);
      ASSERT_GT(space, 0u);
      ASSERT_LE(space, kFrameHeaderBytes + kMaxFrameBody);
      const size_t size = std::min({space, bytes.size(), static_cast<size_t>(step())});
      std::memcpy(to, bytes.data(), size);
      reader.Arrived(size);
      bytes.remove_prefix(size);
      Take();
    }
  }
  void Feed(absl::string_view bytes) {
    Feed(bytes, [] { return ~size_t{0}; });
  }
  void Take() {
    while (true) {
      const absl::StatusOr<std::optional<Frame>> frame = reader.Next();
      if (!frame.ok()) error = frame.status();
      if (!frame.ok() || !*frame) return;
      frames.push_back({(*frame)->kind, (*frame)->number, std::string((*frame)->body)});
    }
  }
  static std::string Header(uint32_t length, uint8_t kind = 1) {
    std::string bytes = FrameOf(static_cast<FrameKind>(kind), 0);
    for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
    return bytes;
  }

  FrameReader reader;
  std::vector<Copy> frames;
  absl::Status error;
};

TEST_F(FrameTest, TheLayoutIsFixed) {
  EXPECT_EQ(FrameOf(FrameKind::kTaken, 0x0102030405060708, "ab"),
            std::string("\x0b\0\0\0\x06\x08\x07\x06\x05\x04\x03\x02\x01"
                        "ab",
                        15));
  std::string frame = FrameWithoutHeader() + "ab";
  SetHeader(FrameKind::kTaken, 0x0102030405060708, &frame);
  EXPECT_EQ(frame, FrameOf(FrameKind::kTaken, 0x0102030405060708, "ab"));
}

TEST_F(FrameTest, FramesComeOutAsTheyWentInHoweverTheyArrive) {
  for (const uint64_t seed : testing::Seeds(50)) {
    SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed));
    std::mt19937_64 random(seed);
    std::vector<Copy> sent;
    std::string bytes(kLinkPreface);
    for (int i = 0; i < 20; ++i) {
      const size_t size = random() % 4 > 0 ? random() % 40 : i % 2 ? kMaxFrameBody : random() % kMaxFrameBody;
      sent.push_back({static_cast<FrameKind>(1 + random() % 8), random(), std::string(size, static_cast<char>(i))});
      bytes += FrameOf(sent.back().kind, sent.back().number, sent.back().body);
    }
    reader = FrameReader();
    frames.clear();
    const uint64_t most = uint64_t{1} << (seed % 18);
    ASSERT_NO_FATAL_FAILURE(Feed(bytes, [&] { return 1 + random() % most; }));
    EXPECT_TRUE(frames == sent);
    EXPECT_TRUE(error.ok()) << error;
  }
}

TEST_F(FrameTest, ALengthOutsideItsBoundsIsAnErrorBeforeTheRestComes) {
  const std::string least = Header(9), most = Header(9 + kMaxFrameBody);
  Feed(absl::StrCat(kLinkPreface, least, most));
  EXPECT_EQ(frames.size(), 1u);
  EXPECT_TRUE(error.ok()) << error;
  for (const uint32_t length : {0u, 8u, static_cast<uint32_t>(10 + kMaxFrameBody), ~0u}) {
    reader = FrameReader();
    Feed(absl::StrCat(kLinkPreface, Header(length).substr(0, 4)));
    EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(error.message(), absl::StrCat("a frame of ", length, " bytes, outside 9 to 65545"));
  }
  EXPECT_EQ(frames.size(), 1u);
}

TEST_F(FrameTest, AnUnknownKindIsAnErrorAndNothingComesAfterIt) {
  for (const uint8_t kind : {0, 9, 255}) {
    reader = FrameReader();
    Feed(absl::StrCat(kLinkPreface, Header(9, kind), FrameOf(FrameKind::kTaken, 1)));
    EXPECT_EQ(error, absl::InvalidArgumentError(absl::StrCat("a frame of kind ", kind)));
    error = absl::OkStatus();
    Feed(FrameOf(FrameKind::kTaken, 1));
    EXPECT_FALSE(error.ok());
  }
  EXPECT_TRUE(frames.empty());
}

TEST_F(FrameTest, AnotherProtocolIsToldFromThisOne) {
  const std::string version = "run the same version of railsd on all nodes";
  const std::string tls = "set the same tls.mode on all nodes";
  const std::pair<std::string, std::string> kOthers[] = {
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "the other end speaks gRPC, as a railsd before this protocol does, not"},
      {std::string("\0\0\x18\4\0\0\0\0\0", 9), "speaks gRPC"},  // SETTINGS: a gRPC server speaks first
      {"railsd-link/2\r\n", "the other end speaks another protocol, not railsd-link/1"},
      {"GET / HTTP/1.1\r\n\r\n", "(it begins with \"GET / HTTP/1.1\\r\")"},
      {std::string("\x16\x03\x01\0\xff", 5), "one end has TLS"},
      {"\x15", "one end has TLS"}};
  for (const auto& [beginning, text] : kOthers) {
    reader = FrameReader();
    Feed(beginning);
    EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(error.message()), HasSubstr(text));
    EXPECT_THAT(std::string(error.message()), HasSubstr(absl::StrContains(text, "TLS") ? tls : version));
    EXPECT_EQ(reader.Next().status(), error) << "for good";
  }
  // The first byte that differs gives the error.
  reader = FrameReader();
  Feed("railsd-");
  EXPECT_TRUE(reader.Next().ok());
  Feed("x");
  EXPECT_FALSE(reader.Next().ok());
}

TEST_F(FrameTest, AnHttp2PrefaceIsKnownHoweverItArrives) {
  Feed("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [] { return 1; });
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(error.message()), HasSubstr("speaks gRPC"));
}

}  // namespace
}  // namespace railsd
