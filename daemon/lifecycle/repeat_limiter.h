// Limits how many lines of one event reach the log, and counts the others.
#ifndef RAILSD_DAEMON_LIFECYCLE_REPEAT_LIMITER_H_
#define RAILSD_DAEMON_LIFECYCLE_REPEAT_LIMITER_H_

#include <spdlog/sinks/base_sink.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace railsd {

// A sink in front of the real sink, which then needs no lock. Lines with the same first word (the event) and level are
// repeats, whatever their fields. The first `limit` in a window pass, errors too; further ones are counted. "repeated
// event=NAME times=N last=LINE" follows under the same level, with the first line after the window or at the next
// flush. Every dropped line is counted. The lines' own times count. Any thread.
class RepeatLimiter final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  RepeatLimiter(spdlog::sink_ptr next, uint64_t limit, std::chrono::nanoseconds window)
      : next_(std::move(next)), limit_(limit), window_(window) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& msg) override;
  void flush_() override;
  void set_pattern_(const std::string& pattern) override { next_->set_pattern(pattern); }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    next_->set_formatter(std::move(formatter));
  }

 private:
  struct Event {
    uint64_t lines = 0;  // in the window
    uint64_t held = 0;   // dropped and not reported yet
    std::string last;    // the last dropped line
    spdlog::log_clock::time_point at;
  };

  void TellOfHeld();

  const spdlog::sink_ptr next_;
  const uint64_t limit_;
  const std::chrono::nanoseconds window_;
  // The mutex of base_sink guards these, as it guards sink_it_ and flush_. Bounded by the number of events in the
  // program: a line's first word never comes from outside.
  std::map<std::pair<std::string, spdlog::level::level_enum>, Event> events_;
  spdlog::log_clock::time_point begun_;
  bool held_ = false;  // an event has dropped lines
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_REPEAT_LIMITER_H_
