#include "daemon/peer/lane_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/daemon/peer/lane_tools.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

void Append(LaneSealer& sealer, const std::string& message, std::string* out) {
  sealer.Append(
      message.size(), [&](char* to) { std::memcpy(to, message.data(), message.size()); }, out);
}

class LaneCodecTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Sealed, LaneCodecTest, ::testing::Bool());

TEST_P(LaneCodecTest, MessagesComeOutAsTheyWentInHoweverTheyArrive) {
  std::vector<std::string> messages = {"", "a", std::string(kMaxLaneMessageBytes, 'x')};
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) messages.push_back(std::string(random() % 3000, static_cast<char>(i)));
  LaneSealer sealer(MakeLaneKeys(1, GetParam()));
  std::string bytes;
  for (const std::string& message : messages) Append(sealer, message, &bytes);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, bytes.size()}) {
    LaneOpener opener(MakeLaneKeys(1, GetParam()));
    std::vector<std::string> out;
    EXPECT_TRUE(OpenLaneFrames(opener, bytes, piece, &out).ok());
    EXPECT_EQ(out, messages) << "in pieces of " << piece;
  }
}

TEST_P(LaneCodecTest, AFrameThatIsTooLongIsRefusedBeforeItIsWaitedFor) {
  LaneOpener opener(MakeLaneKeys(1, GetParam()));
  std::vector<std::string> out;
  const absl::Status status = OpenLaneFrames(opener, std::string("\xff\xff\xff\xff", 4), 4, &out);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4294967295 bytes"));
  EXPECT_FALSE(opener.Next().ok()) << "nothing comes after that";
}

TEST(LaneCodecSealedTest, NothingCanBeChangedRepeatedOrLeftOut) {
  LaneSealer sealer(MakeLaneKeys());
  std::string first, second;
  Append(sealer, "the first message", &first);
  Append(sealer, "the second", &second);
  EXPECT_EQ(first.find("message"), std::string::npos);
  for (size_t i = 0; i < first.size(); ++i) {
    std::string changed = first;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    LaneOpener opener(MakeLaneKeys());
    std::vector<std::string> out;
    const absl::Status status = OpenLaneFrames(opener, changed + second, 1000, &out);
    EXPECT_TRUE(out.empty()) << i;
    // A length that has grown is waited for first.
    if (i >= kLaneHeaderBytes) {
      EXPECT_FALSE(status.ok()) << i;
    }
  }
  for (const std::string& bytes : {first + first, second, second + first}) {
    LaneOpener opener(MakeLaneKeys());
    std::vector<std::string> out;
    EXPECT_FALSE(OpenLaneFrames(opener, bytes, 1000, &out).ok());
    EXPECT_EQ(out.size(), bytes == first + first ? 1u : 0u);
  }
  LaneOpener other(MakeLaneKeys(2));
  std::vector<std::string> out;
  EXPECT_FALSE(OpenLaneFrames(other, first, 1000, &out).ok()) << "another stream's key";
}

TEST(LaneCodecSealedTest, ShorterThanATagIsNoFrame) {
  LaneOpener opener(MakeLaneKeys());
  std::vector<std::string> out;
  EXPECT_FALSE(OpenLaneFrames(opener, std::string("\x0f\0\0\0", 4), 4, &out).ok());
}

TEST(LaneGreetingTest, NamesItsLaneAndDependsOnEverything) {
  const std::string greeting = MakeLaneKeys().Greeting();
  EXPECT_EQ(greeting.size(), kLaneGreetingBytes);
  EXPECT_EQ(MakeLaneKeys().Answer().size(), kLaneAnswerBytes);
  EXPECT_EQ(LookAtBeginning(greeting, true, true), Beginning::kLane);
  ASSERT_TRUE(ShareOfGreeting(greeting).has_value());
  EXPECT_EQ(*ShareOfGreeting(greeting), MakeLaneKeys().dialler);
  EXPECT_FALSE(ShareOfGreeting(greeting.substr(1)).has_value());
  EXPECT_FALSE(ShareOfGreeting(std::string(kLaneGreetingBytes, 'x')).has_value());
  EXPECT_NE(greeting, MakeLaneKeys(1, false).Greeting()) << "both ends must mean the same";
  LaneKeys other = MakeLaneKeys();
  other.key[0] ^= 1;
  EXPECT_NE(greeting, other.Greeting());
  EXPECT_NE(MakeLaneKeys().Answer(), other.Answer());
  EXPECT_NE(greeting.substr(40), MakeLaneKeys().Answer().substr(8)) << "an answer is no greeting";
}

}  // namespace
}  // namespace railsd
