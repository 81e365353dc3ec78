#include "daemon/lifecycle/logging.h"

#include <spdlog/formatter.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/json/json.h"
#include "daemon/lifecycle/repeat_limiter.h"

namespace railsd {
namespace {

// Most lines of one event in a window: more than people read, far fewer than busy jobs can cause.
constexpr uint64_t kRepeats = 100;
constexpr std::chrono::seconds kRepeatWindow(1);

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& msg, spdlog::memory_buf_t& dest) override {
    const LogFields fields = SplitLogLine(absl::string_view(msg.payload.data(), msg.payload.size()));
    const auto level = spdlog::level::to_string_view(msg.level);
    nlohmann::ordered_json json = {
        {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::FromChrono(msg.time), absl::UTCTimeZone())},
        {"level", std::string(level.data(), level.size())},
        {"event", fields.event}};
    for (const auto& [key, value] : fields.pairs) json[json.contains(key) ? absl::StrCat("field_", key) : key] = value;
    // Names come from outside and may not be UTF-8.
    const std::string line = rails::DumpJson(json) + "\n";
    dest.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

bool IsKeyCharacter(char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.'; }

}  // namespace

absl::StatusOr<std::shared_ptr<spdlog::logger>> MakeLogger(const LogConfig& config) {
  spdlog::sink_ptr sink;
  try {
    if (config.file.empty()) {
      sink = std::make_shared<spdlog::sinks::stderr_sink_st>();
    } else {
      sink = std::make_shared<spdlog::sinks::basic_file_sink_st>(config.file);
    }
  } catch (const spdlog::spdlog_ex& e) {
    return absl::InvalidArgumentError(absl::StrCat("log.file: '", config.file, "': ", e.what()));
  }
  auto logger = std::make_shared<spdlog::logger>(
      "railsd", std::make_shared<RepeatLimiter>(std::move(sink), kRepeats, kRepeatWindow));
  if (config.format == LogFormat::kJson) {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else {
    logger->set_formatter(
        std::make_unique<spdlog::pattern_formatter>("%Y-%m-%dT%H:%M:%S.%fZ %l %v", spdlog::pattern_time_type::utc));
  }
  logger->set_level(spdlog::level::from_str(config.level));
  return logger;
}

void LogFatal(const LogConfig& config, const absl::Status& why) {
  const bool json = config.format == LogFormat::kJson;
  const bool logged = json || !config.file.empty();
  const absl::StatusOr<std::shared_ptr<spdlog::logger>> log =
      logged ? MakeLogger(config) : absl::UnavailableError("not wanted");
  if (log.ok()) {
    (*log)->critical("fatal reason={}", LogValue(std::string(why.message())));
    (*log)->flush();
    if (json && config.file.empty()) return;
  }
  std::cerr << "railsd: " << why.message() << "\n";
}

std::string LogLevelOf(const spdlog::logger& log) {
  const auto name = spdlog::level::to_string_view(log.level());
  return std::string(name.data(), name.size());
}

absl::StatusOr<std::string> SetLogLevel(spdlog::logger* log, absl::string_view level) {
  static constexpr absl::string_view kLevels[] = {"trace", "debug", "info", "warning", "error", "off"};
  const absl::string_view name = level == "warn" ? "warning" : level;
  if (std::find(std::begin(kLevels), std::end(kLevels), name) == std::end(kLevels)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown log level '", level, "'; give one of ", absl::StrJoin(kLevels, ", ")));
  }
  const spdlog::level::level_enum before = log->level(), after = spdlog::level::from_str(std::string(name));
  const std::string before_name = LogLevelOf(*log);
  // Logs while the lower of the two levels is set.
  if (after < before) log->set_level(after);
  log->warn("log_level_set level={} before={} hint=\"until the daemon ends\"", std::string(name), before_name);
  log->set_level(after);
  return before_name;
}

std::shared_ptr<spdlog::logger> NullLogger() {
  return std::make_shared<spdlog::logger>("null", std::make_shared<spdlog::sinks::null_sink_mt>());
}

LogFields SplitLogLine(absl::string_view line) {
  LogFields out;
  size_t at = 0;
  while (at < line.size()) {
    size_t end = at;
    while (end < line.size() && IsKeyCharacter(line[end])) ++end;
    if (end == at || end == line.size() || line[end] != '=') {  // a word of the event
      end = std::min(line.find(' ', at), line.size());
      if (end > at) absl::StrAppend(&out.event, out.event.empty() ? "" : " ", line.substr(at, end - at));
      at = end + 1;
      continue;
    }
    const std::string key(line.substr(at, end - at));
    std::string value;
    at = end + 1;
    if (at < line.size() && line[at] == '"') {
      end = at + 1;
      while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
      end = std::min(end, line.size());
      if (!absl::CUnescape(line.substr(at + 1, end - at - 1), &value))
        value = std::string(line.substr(at + 1, end - at - 1));
      at = end + 2;
    } else {
      end = std::min(line.find(' ', at), line.size());
      value = std::string(line.substr(at, end - at));
      at = end + 1;
    }
    out.pairs.emplace_back(key, std::move(value));
  }
  return out;
}

}  // namespace railsd
