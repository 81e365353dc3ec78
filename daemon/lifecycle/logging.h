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

// Writes each line at once to standard error or the file. Writes at most 100 lines of one event a second and counts
// the others (repeat_limiter.h); flush() reports the counts. Error: the file cannot be opened.
absl::StatusOr<std::shared_ptr<spdlog::logger>> MakeLogger(const LogConfig& config);
// The lowest level that the logger logs: "trace", "debug", "info", "warning", "error" or "off". Any thread.
std::string LogLevelOf(const spdlog::logger& log);
// Sets the level at once for all threads and returns the old one. Logs a warning if either level logs warnings.
// Takes "warn" for "warning". INVALID_ARGUMENT: names `level` and the known levels.
absl::StatusOr<std::string> SetLogLevel(spdlog::logger* log, absl::string_view level);

// Writes the last line of a daemon that cannot go on: "railsd: why" on standard error, and also in the log if that is a
// file. If the log is JSON on standard error, writes only JSON there.
void LogFatal(const LogConfig& config, const absl::Status& why);

// Drops every line. For tests.
std::shared_ptr<spdlog::logger> NullLogger();

// The parts of a line: the event ("peer_up"), that is all words that are not pairs, and the unquoted pairs in order.
struct LogFields {
  std::string event;
  std::vector<std::pair<std::string, std::string>> pairs;
};
LogFields SplitLogLine(absl::string_view line);

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_LOGGING_H_
