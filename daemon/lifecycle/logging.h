// The daemon's log: one logger, made in main() and passed down. Lines read "event key=value key=\"two words\"".
#ifndef RAILSD_DAEMON_LIFECYCLE_LOGGING_H_
#define RAILSD_DAEMON_LIFECYCLE_LOGGING_H_

#include <spdlog/fwd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/base/log_value.h"
#include "daemon/config/config.h"

namespace railsd {

// Writes each line at once to standard error or the file; but of one event no more than 100 lines a second, the others
// counted (repeat_limiter.h). flush() tells of those. Error: the file cannot be opened.
absl::StatusOr<std::shared_ptr<spdlog::logger>> MakeLogger(const LogConfig& config);
// The level from which on the logger logs: "trace", "debug", "info", "warning", "error" or "off". Any thread.
std::string LogLevelOf(const spdlog::logger& log);
// Sets it, at once and for all threads, and logs that as a warning, unless warnings are logged neither before nor
// after. Returns the level before. Error: INVALID_ARGUMENT, naming `level` and those that there are; "warn" is
// "warning".
absl::StatusOr<std::string> SetLogLevel(spdlog::logger* log, absl::string_view level);

// The last line of a daemon that cannot go on: "railsd: why" on standard error, and in the log where that is a file or
// JSON; what reads JSON from standard error gets nothing else there.
void LogFatal(const LogConfig& config, const absl::Status& why);

// Drops everything; for tests.
std::shared_ptr<spdlog::logger> NullLogger();

// A line taken apart: the words that are no pair ("peer up"), and the pairs in order, unquoted.
struct LogFields {
  std::string event;
  std::vector<std::pair<std::string, std::string>> pairs;
};
LogFields SplitLogLine(absl::string_view line);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_LOGGING_H_
