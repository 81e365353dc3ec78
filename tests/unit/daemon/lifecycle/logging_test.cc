#include "daemon/lifecycle/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace railsd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::StartsWith;

TEST(LoggingTest, QuotesWhatIsNoPlainWord) {
  EXPECT_EQ(LogValue("rail0"), "rail0");
  EXPECT_EQ(LogValue(""), "\"\"");
  EXPECT_EQ(LogValue("two words"), "\"two words\"");
  EXPECT_EQ(LogValue("a=b"), "\"a=b\"");
  EXPECT_EQ(LogValue("x\ny \"z\""), "\"x\\ny \\\"z\\\"\"") << "nobody writes lines of his own";
}

TEST(LoggingTest, SplitsWhatItQuoted) {
  const LogFields fields = SplitLogLine("peer_down node=n1 reason=" + LogValue("a \"b\"\nc") + " n=3");
  EXPECT_EQ(fields.event, "peer_down");
  EXPECT_THAT(fields.pairs, ElementsAre(Pair("node", "n1"), Pair("reason", "a \"b\"\nc"), Pair("n", "3")));
  EXPECT_EQ(SplitLogLine("").event, "");
  EXPECT_EQ(SplitLogLine("a \"b c=\"").event, "a \"b");
  SplitLogLine("k=\"never closed \\");
}

TEST(LoggingTest, WritesOneObjectALine) {
  char path[] = "/tmp/railsd-log.XXXXXX";
  close(mkstemp(path));
  auto logger = MakeLogger({"info", path, LogFormat::kJson});
  ASSERT_TRUE(logger.ok());
  (*logger)->info("session_opened pid={} client={}", 7, LogValue("a\"b\n"));
  (*logger)->debug("not shown");
  (*logger)->warn("log_level_set level=debug client={}", LogValue("\xff"));
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("\"level\":\"info\",\"event\":\"session_opened\",\"pid\":\"7\",\"client\":"
                                    "\"a\\\"b\\n\"}\n"));
  EXPECT_THAT(text.str(), HasSubstr("\"level\":\"warning\",\"event\":\"log_level_set\",\"field_level\":\"debug\","));
  EXPECT_EQ(text.str().find("not shown"), std::string::npos);
  unlink(path);
}

TEST(LoggingTest, TheFatalLineIsOfTheLogsFormat) {
  const auto said = [](const LogConfig& config) {
    ::testing::internal::CaptureStderr();
    LogFatal(config, absl::UnavailableError("cannot listen on \"x\""));
    return ::testing::internal::GetCapturedStderr();
  };
  const char object[] = "\"level\":\"critical\",\"event\":\"fatal\",\"reason\":\"cannot listen on \\\"x\\\"\"}\n";
  EXPECT_THAT(said({"info", "", LogFormat::kJson}), AllOf(StartsWith("{\"time\":"), EndsWith(object)));
  EXPECT_EQ(said({"info", "", LogFormat::kText}), "railsd: cannot listen on \"x\"\n");
  char path[] = "/tmp/railsd-log.XXXXXX";
  close(mkstemp(path));
  EXPECT_EQ(said({"info", path, LogFormat::kJson}), "railsd: cannot listen on \"x\"\n");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), EndsWith(object));
  unlink(path);
  // A message that cannot be logged is still printed.
  EXPECT_EQ(said({"info", "/proc/nowhere/log", LogFormat::kJson}), "railsd: cannot listen on \"x\"\n");
}

TEST(LoggingTest, AFileThatCannotBeOpenedIsSaid) {
  const auto logger = MakeLogger({"info", "/proc/nowhere/log", LogFormat::kText});
  EXPECT_THAT(std::string(logger.status().message()), HasSubstr("log.file: '/proc/nowhere/log'"));
}

TEST(LoggingTest, ChangesOfTheLevelAreLoggedWhicheverWayTheyGo) {
  std::ostringstream text;
  spdlog::logger log("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  log.set_pattern("%l %v");
  EXPECT_EQ(*SetLogLevel(&log, "off"), "info");
  log.error("not shown");
  EXPECT_EQ(*SetLogLevel(&log, "debug"), "off");
  log.debug("shown");
  EXPECT_EQ(text.str(),
            "warning log_level_set level=off before=info hint=\"until the daemon ends\"\n"
            "warning log_level_set level=debug before=off hint=\"until the daemon ends\"\n"
            "debug shown\n");
  EXPECT_EQ(SetLogLevel(&log, "").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LogLevelOf(log), "debug");
}

}  // namespace
}  // namespace railsd
