#include "client/railsctl/replay/worker_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <random>

#include "tests/support/seeds.h"
#include "tests/unit/client/railsctl/text_message.h"

namespace rails::ctl {
namespace {

using ::testing::HasSubstr;

// Why an event of this text is refused; "" if it is not.
std::string WhyNot(const char* text) {
  const absl::Status status = ParseEvent(FromText<Event>(text).SerializeAsString()).status();
  EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << text;
  return std::string(status.message());
}

TEST(WorkerProtocol, PartsAreFoundByTheirType) {
  Event event;
  EXPECT_EQ(NameOf(event), "nothing");
  event.mutable_done()->set_done_ns(-7);
  EXPECT_EQ(NameOf(event), "done");
  EXPECT_EQ(PartOf<ReadyEvent>(&event), nullptr);
  EXPECT_EQ(PartOf<DoneEvent>(&event)->done_ns(), -7);
  EXPECT_EQ((FieldOf<Command, CheckCommand>()->name()), "check");
  EXPECT_EQ((FieldOf<Command, DoneEvent>()), nullptr);
  QuitCommand quit;
  quit.set_message("2 wrong bytes \xff");
  const std::string bytes = EncodeAs<Command>(quit);
  ASSERT_GT(bytes.size(), 4u);
  EXPECT_EQ(bytes.substr(0, 3), std::string(3, '\0'));
  EXPECT_EQ(static_cast<size_t>(bytes[3]), bytes.size() - 4);
  const auto parsed = ParseCommand(bytes.substr(4));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->quit().message(), quit.message());
}

TEST(WorkerProtocol, StatusesSurviveTheTrip) {
  const absl::Status status = absl::UnavailableError("rail 1 \xff is down");
  EXPECT_EQ(StatusOf(OutcomeOf(status)), status);
  EXPECT_TRUE(StatusOf(OutcomeOf(absl::OkStatus())).ok());
}

TEST(WorkerProtocol, WhatIsOutOfRangeIsRefusedAndNamed) {
  EXPECT_EQ(WhyNot(""), "no event");
  EXPECT_THAT(WhyNot("done {}"), HasSubstr("'outcome' is missing"));
  EXPECT_EQ(WhyNot("done { outcome {} }"), "");
  EXPECT_THAT(WhyNot("connected {}"), HasSubstr("'node' is missing"));
  EXPECT_THAT(WhyNot("rails {}"), HasSubstr("'node' is missing"));
  EXPECT_THAT(WhyNot("done { outcome { code: 17 } }"), HasSubstr("'outcome.code'"));
  EXPECT_THAT(WhyNot("done { outcome {} submit_ns: 2000000000000000000 }"), HasSubstr("'submit_ns'"));
  EXPECT_THAT(WhyNot("done { outcome {} accepted_ns: -2000000000000000000 }"), HasSubstr("'accepted_ns'"));
  EXPECT_THAT(WhyNot("done { outcome {} done_ns: -9223372036854775808 }"), HasSubstr("'done_ns'"));
  for (const char* field :
       {"waiting_for_ranks_seconds", "waiting_for_peers_seconds", "elapsed_seconds", "to_first_chunk_seconds"}) {
    for (const char* value : {"nan", "inf", "-inf", "1e10"}) {
      EXPECT_THAT(WhyNot(absl::StrCat("done { outcome {} ", field, ": ", value, " }").c_str()), HasSubstr(field));
    }
  }
  EXPECT_THAT(WhyNot("checked {}"), HasSubstr("'wrong_bytes' is missing"));
  EXPECT_EQ(WhyNot("checked { wrong_bytes: 0 }"), "");
  EXPECT_EQ(WhyNot("checked { wrong_bytes: 1 first {} }"), "");
  EXPECT_THAT(WhyNot("checked { wrong_bytes: 1 }"), HasSubstr("'first'"));
  EXPECT_THAT(WhyNot("checked { wrong_bytes: 0 first {} }"), HasSubstr("'first'"));
  EXPECT_THAT(WhyNot("checked { wrong_bytes: 1000000000000000 first {} }"), HasSubstr("'wrong_bytes'"));
  EXPECT_THAT(WhyNot("failed { outcome { code: -1 } }"), HasSubstr("'outcome.code'"));
  EXPECT_THAT(WhyNot("clock { now_ns: 2000000000000000000 }"), HasSubstr("'now_ns'"));
  Event rails;
  rails.mutable_rails()->set_node("n0");
  for (int i = 0; i < 1025; ++i) rails.mutable_rails()->add_rails();
  EXPECT_FALSE(ParseEvent(rails.SerializeAsString()).ok());
  EXPECT_FALSE(ParseEvent("\xff\xfe").ok());

  EXPECT_FALSE(ParseCommand("").ok());
  Command command;
  command.mutable_quit()->set_exit_code(256);
  EXPECT_THAT(std::string(ParseCommand(command.SerializeAsString()).status().message()), HasSubstr("'exit_code'"));
  command.mutable_go()->set_at_ns(INT64_MIN);
  EXPECT_THAT(std::string(ParseCommand(command.SerializeAsString()).status().message()), HasSubstr("'at_ns'"));
}

TEST(WorkerProtocol, CutAndFlippedMessagesNeverCrash) {
  const std::string bytes =
      FromText<Event>("done { outcome {} done_ns: 5 rail_tx_bytes: [1, 2, 3] elapsed_seconds: 0.5 }")
          .SerializeAsString();
  for (size_t length = 0; length < bytes.size(); ++length) EXPECT_FALSE(ParseEvent(bytes.substr(0, length)).ok());
  std::mt19937_64 random = railsd::testing::SeededRandom();
  for (int round = 0; round < 5000; ++round) {
    std::string flipped = bytes;
    flipped[random() % flipped.size()] = static_cast<char>(random());
    ParseEvent(flipped).status().IgnoreError();
  }
}

TEST(MessageReader, CutsAsItArrives) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  MessageReader reader(fds[0], /*max_message_bytes=*/5);
  const auto arrives = [&](const std::string& bytes) {
    EXPECT_EQ(write(fds[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return reader.Fill();
  };
  using std::string_literals::operator""s;
  ASSERT_TRUE(*arrives("\0\0"s));
  EXPECT_FALSE(reader.Next().has_value());
  ASSERT_TRUE(*arrives("\0\3ab"s));
  EXPECT_FALSE(reader.Next().has_value());
  ASSERT_TRUE(*arrives("c\0\0\0\0\0\0\0\5defgh\0\0\0\2x"s));
  EXPECT_EQ(reader.Next(), "abc");
  EXPECT_EQ(reader.Next(), "");
  EXPECT_EQ(reader.Next(), "defgh");
  EXPECT_FALSE(reader.Next().has_value());
  EXPECT_EQ(reader.pending(), 5u);
  ASSERT_TRUE(*arrives("y\0\0\0\6"s));
  EXPECT_EQ(reader.Next(), "xy");
  EXPECT_FALSE(reader.Next().has_value());
  EXPECT_THAT(std::string(reader.Fill().status().message()),
              HasSubstr(R"(no message of a replay: "\000\000\000\006")"));
  EXPECT_TRUE(absl::IsInvalidArgument(arrives("more").status()));
  close(fds[1]);
  close(fds[0]);
}

TEST(MessageReader, ALengthThatIsTooLongIsRefusedAtOnce) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  MessageReader reader(fds[0]);
  ASSERT_EQ(write(fds[1], "GET / HTTP/1.1\r\n", 16), 16);
  EXPECT_TRUE(absl::IsInvalidArgument(reader.Fill().status()));
  EXPECT_FALSE(reader.Next().has_value());
  close(fds[1]);
  close(fds[0]);
}

}  // namespace
}  // namespace rails::ctl
