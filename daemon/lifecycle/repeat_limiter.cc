#include "daemon/lifecycle/repeat_limiter.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/base/log_value.h"

namespace railsd {

void RepeatLimiter::sink_it_(const spdlog::details::log_msg& msg) {
  // A new window begins also when the clock was set back.
  if (msg.time - begun_ >= window_ || msg.time < begun_) {
    TellOfHeld();
    for (auto& [key, event] : events_) event.lines = 0;
    begun_ = msg.time;
  }
  const absl::string_view line(msg.payload.data(), msg.payload.size());
  Event& event = events_[{std::string(line.substr(0, line.find(' '))), msg.level}];
  if (++event.lines <= limit_) {
    next_->log(msg);
    next_->flush();
    return;
  }
  ++event.held;
  event.last = std::string(line.substr(0, 300));
  event.at = msg.time;
  held_ = true;
}

void RepeatLimiter::flush_() {
  TellOfHeld();
  next_->flush();
}

void RepeatLimiter::TellOfHeld() {
  if (!held_) return;
  held_ = false;
  for (auto& [key, event] : events_) {
    if (event.held == 0) continue;
    const std::string line =
        absl::StrCat("repeated event=", LogValue(key.first), " times=", event.held, " last=", LogValue(event.last));
    next_->log(spdlog::details::log_msg(event.at, {}, "railsd", key.second, line));
    event.held = 0;
  }
  next_->flush();
}

}  // namespace railsd
