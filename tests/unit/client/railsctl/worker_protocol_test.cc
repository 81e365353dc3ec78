#include "client/railsctl/replay/worker_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <random>

#include "tests/support/seeds.h"

namespace rails::ctl {
namespace {

using ::testing::HasSubstr;

TEST(WorkerProtocol, CommandsSurviveTheTrip) {
  const StartCommand start{"/run/x y\n\"", "g", "secret", 3, 8, 1u << 30, 7, true, ~uint64_t{0}, 99};
  const auto parsed = ParseCommand(Encode(start));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto& back = std::get<StartCommand>(*parsed);
  EXPECT_EQ(back.socket_dir, start.socket_dir);
  EXPECT_EQ(back.seed, start.seed);
  EXPECT_EQ(back.timeout_milliseconds, 99u);
  EXPECT_TRUE(back.huge_pages);
  const auto prepare = ParseCommand(Encode(PrepareCommand{5, {1, 2}, {3, ~uint64_t{0}}, 7, false, true}));
  ASSERT_TRUE(prepare.ok());
  EXPECT_EQ(std::get<PrepareCommand>(*prepare).column, (std::vector<uint64_t>{3, ~uint64_t{0}}));
  EXPECT_FALSE(std::get<PrepareCommand>(*prepare).fill);
  EXPECT_TRUE(std::get<PrepareCommand>(*prepare).prepared);
  EXPECT_TRUE(std::get<GoCommand>(*ParseCommand(Encode(GoCommand{true, 7}))).tell_accepted);
  EXPECT_EQ(std::get<GoCommand>(*ParseCommand(Encode(GoCommand{true, -7}))).at_ns, -7);
  EXPECT_TRUE(std::holds_alternative<CheckCommand>(*ParseCommand(Encode(CheckCommand{}))));
  EXPECT_TRUE(std::holds_alternative<QuitCommand>(*ParseCommand(Encode(QuitCommand{}))));
}

TEST(WorkerProtocol, EventsSurviveTheTrip) {
  DoneEvent done;
  done.status = absl::UnavailableError("rail 1 \xff is down");
  done.submit_ns = -1;
  done.done_ns = 1'000'000'000'000;
  done.rail_tx_bytes = {1, 2};
  done.eager_sent_bytes = 3;
  done.eager_received_bytes = 4;
  const auto parsed = ParseEvent(Encode(done));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(std::get<DoneEvent>(*parsed).status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(std::get<DoneEvent>(*parsed).done_ns, done.done_ns);
  EXPECT_EQ(std::get<DoneEvent>(*parsed).eager_sent_bytes, 3u);
  EXPECT_EQ(std::get<DoneEvent>(*parsed).eager_received_bytes, 4u);
  const auto checked = ParseEvent(Encode(CheckedEvent{4, WrongByte{false, 2, 10, 20, 0xAB, 0xCD}}));
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(std::get<CheckedEvent>(*checked).first->expected, 0xABu);
  EXPECT_FALSE(std::get<CheckedEvent>(*ParseEvent(Encode(CheckedEvent{}))).first.has_value());
}

TEST(WorkerProtocol, HostileLinesAreRefusedAndTheFieldIsNamed) {
  for (const char* line :
       {"", "{", "[]", "3", "null", "{}", R"({"event":3})", R"({"event":"nonsense"})", "\xff\xfe",
        R"({"event":"done"})", R"({"event":"joined","node":7})", R"({"event":"checked","wrong_bytes":-1})",
        R"({"event":"checked","wrong_bytes":1.5})", R"({"event":"checked","wrong_bytes":1})",
        R"({"event":"failed","doing":"x","code":99,"message":""})"}) {
    EXPECT_EQ(ParseEvent(line).status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
  EXPECT_THAT(std::string(ParseEvent(R"({"event":"joined","node":7})").status().message()), HasSubstr("'node'"));
  EXPECT_THAT(std::string(ParseCommand(R"({"do":"go"})").status().message()), HasSubstr("'tell_accepted'"));
  std::string deep(100'000, '[');
  EXPECT_FALSE(ParseEvent(deep).ok());
}

TEST(WorkerProtocol, CutAndFlippedLinesNeverCrash) {
  DoneEvent done;
  done.rail_tx_bytes = {1, 2, 3};
  const std::string line = Encode(done);
  for (size_t length = 0; length < line.size(); ++length) EXPECT_FALSE(ParseEvent(line.substr(0, length)).ok());
  std::mt19937_64 random = railsd::testing::SeededRandom();
  for (int round = 0; round < 5000; ++round) {
    std::string flipped = line;
    flipped[random() % flipped.size()] = static_cast<char>(random());
    ParseEvent(flipped).status().IgnoreError();
  }
}

TEST(LineReader, CutsAsItArrives) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  LineReader reader(fds[0]);
  ASSERT_EQ(write(fds[1], "ab", 2), 2);
  ASSERT_TRUE(*reader.Fill());
  EXPECT_FALSE(reader.Next().has_value());
  ASSERT_EQ(write(fds[1], "c\n\nde\nf", 7), 7);
  ASSERT_TRUE(*reader.Fill());
  EXPECT_EQ(reader.Next(), "abc");
  EXPECT_EQ(reader.Next(), "");
  EXPECT_EQ(reader.Next(), "de");
  EXPECT_FALSE(reader.Next().has_value());
  close(fds[1]);
  EXPECT_FALSE(*reader.Fill());
  EXPECT_EQ(reader.pending(), 1u);
  close(fds[0]);
}

}  // namespace
}  // namespace rails::ctl
