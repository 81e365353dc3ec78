#include "daemon/lifecycle/repeat_limiter.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <memory>
#include <sstream>
#include <string>

namespace railsd {
namespace {

using std::chrono::milliseconds;

class RepeatLimiterTest : public ::testing::Test {
 protected:
  RepeatLimiterTest() { limiter_.set_pattern("%l %v"); }

  // `at`: in milliseconds.
  void Say(int at, const std::string& line, spdlog::level::level_enum level = spdlog::level::info) {
    limiter_.log(spdlog::details::log_msg(Time(at), {}, "railsd", level, line));
  }
  static spdlog::log_clock::time_point Time(int at) {
    return spdlog::log_clock::time_point(std::chrono::hours(100)) + milliseconds(at);
  }
  // Text written since the last call.
  std::string Written() {
    std::string text = out_.str();
    out_.str("");
    return text;
  }

  std::ostringstream out_;
  RepeatLimiter limiter_{std::make_shared<spdlog::sinks::ostream_sink_st>(out_), 2, milliseconds(1000)};
};

TEST_F(RepeatLimiterTest, CountsWhatIsTooMuchAndSaysSoAfterTheWindow) {
  for (int i = 0; i < 5; ++i) Say(i, "rail_down rail=" + std::to_string(i));
  Say(5, "peer_up node=n1");
  EXPECT_EQ(Written(), "info rail_down rail=0\ninfo rail_down rail=1\ninfo peer_up node=n1\n");
  Say(999, "rail_down rail=5");
  EXPECT_EQ(Written(), "");
  Say(1000, "rail_down rail=6");
  EXPECT_EQ(Written(), "info repeated event=rail_down times=4 last=\"rail_down rail=5\"\ninfo rail_down rail=6\n");
}

TEST_F(RepeatLimiterTest, LevelsCountForThemselves) {
  for (int i = 0; i < 3; ++i) Say(i, "same", spdlog::level::info);
  for (int i = 0; i < 3; ++i) Say(i, "same", spdlog::level::err);
  EXPECT_EQ(Written(), "info same\ninfo same\nerror same\nerror same\n");
  limiter_.flush();
  EXPECT_EQ(Written(), "info repeated event=same times=1 last=same\nerror repeated event=same times=1 last=same\n");
}

TEST_F(RepeatLimiterTest, AFlushTellsAtOnceAndOnlyOnce) {
  for (int i = 0; i < 4; ++i) Say(i, "job_done seq=" + std::to_string(i));
  Written();
  limiter_.flush();
  EXPECT_EQ(Written(), "info repeated event=job_done times=2 last=\"job_done seq=3\"\n");
  limiter_.flush();
  EXPECT_EQ(Written(), "");
  Say(500, "job_done seq=4");  // in the same window
  Say(2000, "other");
  EXPECT_EQ(Written(), "info repeated event=job_done times=1 last=\"job_done seq=4\"\ninfo other\n");
}

TEST_F(RepeatLimiterTest, AClockThatIsSetBackSilencesNobody) {
  for (int i = 0; i < 3; ++i) Say(5000, "e");
  Say(-5000, "e");
  EXPECT_EQ(Written(), "info e\ninfo e\ninfo repeated event=e times=1 last=e\ninfo e\n");
}

TEST_F(RepeatLimiterTest, EveryLineIsWrittenOrCounted) {
  int said = 0;
  uint64_t told = 0;
  for (int at = 0; at < 20'000; at += 7) {
    Say(at, at % 3 == 0 ? "a x=\"1 2\"" : "b");
    ++said;
    if (at % 911 == 0) limiter_.flush();
  }
  limiter_.flush();
  std::istringstream lines(Written());
  for (std::string line; std::getline(lines, line);) {
    const size_t times = line.find(" times=");
    told += times == std::string::npos ? 1 : std::stoull(line.substr(times + 7));
  }
  EXPECT_EQ(told, static_cast<uint64_t>(said));
}

}  // namespace
}  // namespace railsd
