// Keeps a storm of one event out of the log, and says how many lines it has kept out.
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

// A sink before the real one, which needs no lock of its own. Lines with the same first word (the event) and level are
// repeats, whatever their fields: the first `limit` in a window go through, of errors, too; further ones are counted.
// Later, "repeated event=NAME times=N last=LINE" follows under the same level: with the first line after the window, or
// when the log is flushed, which somebody does from time to time. No line is lost without being counted.
// Time is that of the lines. Any thread.
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
    uint64_t held = 0;   // of those, not told of
    std::string last;    // of those held
    spdlog::log_clock::time_point at;
  };

  void TellOfHeld();

  const spdlog::sink_ptr next_;
  const uint64_t limit_;
  const std::chrono::nanoseconds window_;
  // Guarded by the mutex of base_sink, as sink_it_ and flush_ are. As many as the program has events: first words are
  // never made of what others said.
  std::map<std::pair<std::string, spdlog::level::level_enum>, Event> events_;
  spdlog::log_clock::time_point begun_;
  bool held_ = false;  // any event has some
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_REPEAT_LIMITER_H_
